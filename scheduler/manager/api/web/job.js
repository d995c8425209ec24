// The page of one job: its request, why it waits, a bar of its states, its processes and its history.

import { at, make } from "./dom.js";
import { ask, now_s } from "./live.js";
import { bytes, look, many, moment, plain, span, told } from "./words.js";

const OVER = new Set(["done", "failed", "cancelled", "timed_out"]);
let asked = 0;

/** Draws job `id` anew. An answer is dropped if another job was asked for meanwhile. */
export async function drawJob(id) {
  const turn = ++asked, where = `/v1/jobs/${encodeURIComponent(id)}`;
  try {
    const [job, history] = await Promise.all([ask(where), ask(`${where}/history`)]);
    const why = OVER.has(job.state) ? [] : await ask(`${where}/explain`).then((said) => said.lines, () => []);
    if (turn === asked) show(job, history.entries, why);
    return OVER.has(job.state);
  } catch (error) {
    if (error.status === 401) throw error;
    if (turn === asked) showProblem(id, error.detail || "The manager does not answer.");
    return false;
  }
}

const back = () => make("a", { href: "#/", class: "back" }, "← Overview");

function showProblem(id, detail) {
  at("job").replaceChildren(back(), make("h1", { id: "job-title", tabindex: "-1" }, `Job ${id}`), make("p", { class: "sub" }, detail));
}

function show(job, entries, why) {
  const hadFocus = document.activeElement?.id === "job-title";
  const title = make("h1", { id: "job-title", tabindex: "-1" }, `Job ${job.id}`, " ", make("span", { class: "count" }, job.name));
  at("job").replaceChildren(
    back(), title,
    make("p", { class: "sub" }, make("span", { class: look(job.state) }, plain(job.state)), make("span", {}, job.reason)),
    ...(why.length && (job.state === "waiting" || job.recalls.length) ? [make("div", { class: "why" }, ...why.map((line) => make("p", {}, line)))] : []),
    life(job, entries),
    make("div", { class: "columns" }, facts(job), make("div", {}, processes(job), past(entries))),
  );
  document.title = `Job ${job.id} · Farside`;
  if (hadFocus) title.focus();
}

// ---- its states over time

const STEPS = {
  JobSubmitted: "waits", JobPlaced: "waits", JobUnplaced: "waits", JobStarted: "runs", JobStopping: "stops", JobRequeued: "waits", JobEnded: "",
};

function life(job, entries) {
  const steps = entries.filter((entry) => entry.type in STEPS).map((entry) => ({ at_s: entry.at_s, kind: STEPS[entry.type] }));
  const parts = [], end_s = job.end_s || now_s();
  for (const [index, step] of steps.entries()) {
    const until_s = index + 1 < steps.length ? steps[index + 1].at_s : end_s, last = parts.at(-1);
    if (!step.kind) continue;
    if (last && last.kind === step.kind) last.until_s = until_s;
    else parts.push({ kind: step.kind, from_s: step.at_s, until_s });
  }
  const sum = { waits: 0, runs: 0, stops: 0 };
  const track = make("div", { class: "track", "aria-hidden": "true" });
  for (const part of parts) {
    const length_s = Math.max(0, part.until_s - part.from_s), bar = make("i", { class: part.kind, title: `${part.kind} ${span(length_s)}` });
    sum[part.kind] += length_s;
    bar.style.flexGrow = Math.max(length_s, 1e-3);
    track.append(bar);
  }
  const said = [`waited ${span(sum.waits)}`, `ran ${span(sum.runs)}`, ...(sum.stops ? [`was being stopped for ${span(sum.stops)}`] : [])];
  return make("div", { class: "life" }, track,
    make("div", { class: "ends" }, make("span", {}, moment(job.submit_s)), make("span", {}, said.join(", ")),
      make("span", {}, job.end_s ? moment(job.end_s) : "now")));
}

// ---- its request

function facts(job) {
  const spec = job.spec, pairs = [
    ["User", job.user === job.account ? job.user : `${job.user} (${job.account})`],
    ["Command", spec.argv.join(" ")],
    ["Folder", spec.cwd],
    ["GPUs", `${job.gpus}${spec.gpu_model ? ` ${spec.gpu_model}` : ""}, held for ${span(job.held_s)} in all`],
    ["Nodes", job.nodes.join(", ") || "none yet"],
    ["Starts", `${job.starts}, preempted ${many(job.preemptions, "time")}, failed ${many(job.failures, "time")}`],
    ...(job.expected_s === null ? [] : [["Expected", expected(job)]]),
    ...(job.expected_problem ? [["Expected", `nobody could be asked: ${job.expected_problem}`]] : []),
    ...job.recalls.map((one) => ["Memory recalled", recall(one)]),
    ...(job.idle_gpus ? [["Idle GPUs", idle(job.idle_gpus)]] : []),
    ...job.ended_starts.filter((one) => one.iteration_s !== null).map((one) => [`Start ${one.start}`, iterations(one)]),
    ["Time limit", spec.time_limit_s ? span(spec.time_limit_s) : "none"],
    ["Memory", memory(job)],
    ...fences(job),
    ["Checkpoints", spec.checkpoint_dir || "none"],
    ["After", spec.after.length ? `job ${spec.after.join(", ")}` : "no other job"],
    ["Exit code", job.exit_code === null ? "none yet" : job.exit_code],
  ];
  const list = make("dl", { class: "pairs" });
  for (const [name, value] of pairs) list.append(make("dt", {}, name), make("dd", {}, String(value)));
  return make("section", { "aria-label": "Request" }, make("h2", {}, "Request"), list);
}

const UNASKED = { share: "its GPUs' share of the node's", warn: "no limit, a warning above its GPUs' share", none: "no limit" };

function memory(job) {
  const spec = job.spec, asked = spec.memory_bytes_per_gpu ? `${bytes(spec.memory_bytes_per_gpu)} a GPU` : spec.memory_bytes ? bytes(spec.memory_bytes) : "";
  const said = new Set(job.safeguards.map((one) => UNASKED[one.memory]).filter(Boolean));
  return [asked, ...said].filter(Boolean).join("; ") || "none asked for";
}

function fences(job) {
  const nodes = new Map();
  for (const one of job.safeguards) nodes.set(fence(job, one), [...(nodes.get(fence(job, one)) || []), one.node]);
  return [...nodes].map(([said, names]) => ["Fence", `${said} (${names.join(", ")})`]);
}

function fence(job, one) {
  const earlier = one.starts.filter((start) => start < job.starts).map((start) => `; start ${start} may still run there`).join("");
  return (one.fence_s ? `on: processes end ${span(one.fence_s)} after the node lost the manager` : "off: processes run on while the node is cut off") + earlier;
}

function expected(job) {
  const from = `${span(job.expected_s)} in all (the median), from ${many(job.expected_from_jobs, "job")}`;
  return job.expected_error === null ? from : `${from}; half of such estimates were ${off(job.expected_error)} lately`;
}

// As format_off in units.py.
function off(factor) {
  if (factor < 1.1) return `right to ${Math.max(1, Math.ceil(100 * (factor - 1) - 1e-6))} %`;
  return `off by a factor of at most ${factor.toPrecision(2)}`;
}

function recall(one) {
  const what = `${bytes(one.recalled_bytes)} that ${one.node} had lent`;
  const expected = one.expected_s === null ? "no recall was measured before" : `expected to take ${span(one.expected_s)}`;
  return `${what} ${one.back_s === null ? "are recalled" : `came back in ${span(one.back_s - one.ordered_s)}`}; ${expected}`;
}

function idle(told) {
  const since = `all less than ${told.below_pct} % busy since ${moment(told.since_s)}`;
  return told.ends_s === null ? since : `${since}; the job ends at ${moment(told.ends_s)} unless they are used`;
}

function iterations(start) {
  const how = start.is_spread === null ? "" : start.is_spread ? ", spread" : ", consolidated";
  return `on ${many(start.nodes, "node")}${how}: ${start.iteration_s.toPrecision(3)} s an iteration, median of ${start.iterations}`;
}

function processes(job) {
  if (!job.tasks.length) return make("span");
  const body = make("tbody", {}, ...job.tasks.map((task) => make("tr", {},
    make("td", {}, `rank ${task.rank}`), make("td", {}, task.node), make("td", {}, task.gpus.length ? `GPU ${task.gpus.join(", ")}` : "no GPU"),
    make("td", {}, make("span", { class: look(task.state) }, plain(task.state))), make("td", {}, task.output))));
  const head = make("thead", {}, make("tr", {}, ...["Rank", "Node", "GPUs", "State", "Output"].map((name) => make("th", { scope: "col" }, name))));
  return make("section", { "aria-label": "Processes" }, make("h2", {}, "Processes of the latest start"), make("table", {}, head, body));
}

function past(entries) {
  const lines = entries.toReversed().map((entry) => make("li", {},
    make("time", { datetime: new Date(entry.at_s * 1000).toISOString() }, moment(entry.at_s)),
    make("div", { class: "words" }, told(entry), " ", make("span", { class: "by" }, `· ${entry.cause}`))));
  return make("section", { "aria-label": "History" }, make("h2", {}, "History, latest first"), make("ol", { class: "history" }, ...lines));
}
