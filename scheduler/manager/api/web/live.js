// The state of the cluster, kept up to date by one stream of events.

const FIRST_PAUSE_MS = 1000, LONGEST_PAUSE_MS = 30000;

/** Everything about the cluster. `skew_s` is the manager's clock less ours. */
export const known = { cluster: null, aggregation: null, groups: null, deployments: [], counts: {}, order: {}, why: {}, skew_s: 0 };
export const jobs = new Map(), nodes = new Map(), sensed = new Map();

let source = null, pause_ms = FIRST_PAUSE_MS, timer = 0;

export const now_s = () => Date.now() / 1000 + known.skew_s;

/** Sends a request to the API; a refusal is thrown as {status, detail}. */
export async function ask(path, options = {}) {
  const response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw { status: response.status, detail: answer.detail || `the manager answers ${response.status}` };
  return answer;
}

function take(told, isAll) {
  if (isAll) { jobs.clear(); nodes.clear(); sensed.clear(); }
  for (const job of told.jobs) jobs.set(job.id, job);
  for (const node of told.nodes) nodes.set(node.name, node);
  for (const [name, one] of Object.entries(told.sensed)) sensed.set(name, one);
  const listed = new Set([...told.active, ...told.waiting, ...told.ended]);
  for (const id of jobs.keys()) if (!listed.has(id)) jobs.delete(id);
  known.cluster = told.cluster;
  known.aggregation = told.aggregation;
  known.groups = told.groups;
  known.deployments = told.deployments;
  known.counts = told.counts;
  known.why = told.why;
  known.order = { active: told.active, waiting: told.waiting, ended: told.ended, nodes: told.node_names };
  known.skew_s = told.at_s - Date.now() / 1000;
  return new Set(told.jobs.map((job) => job.id));
}

/** Follows the stream until `stop`. `onNews(ids)` gets the jobs that changed; `onState` live, away; `onOver` no longer signed in. */
export function follow({ onNews, onState, onOver }) {
  stop();
  source = new EventSource("/v1/overview/stream");
  const mine = source;
  const heard = (isAll) => (event) => {
    pause_ms = FIRST_PAUSE_MS;
    onNews(take(JSON.parse(event.data), isAll));
    onState("live");
  };
  source.addEventListener("all", heard(true));
  source.addEventListener("change", heard(false));
  source.addEventListener("over", () => { mine.close(); onOver(); });
  source.onerror = async () => {
    onState("away");
    // The browser does not reopen a closed stream: our session has ended, or the manager refused it for now.
    if (mine.readyState !== EventSource.CLOSED) return;
    try {
      await ask("/v1/whoami");
    } catch (error) {
      if (error.status === 401) return onOver();
    }
    if (mine !== source) return;
    timer = setTimeout(() => follow({ onNews, onState, onOver }), pause_ms);
    pause_ms = Math.min(LONGEST_PAUSE_MS, 2 * pause_ms);
  };
}

export function stop() {
  clearTimeout(timer);
  source?.close();
  source = null;
}
