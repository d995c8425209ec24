// The overview: figures, nodes, loans, and three lists of jobs.

import { at, keep, make, write } from "./dom.js";
import { jobs, known, nodes, now_s, sensed } from "./live.js";
import { bytes, look, many, moment, plain, span } from "./words.js";

const VALUE_CHARS = 100;

export function drawOverview() {
  if (!known.cluster) return;
  drawFigures();
  drawNodes();
  drawLoans();
  drawAggregation();
  drawGroups();
  drawDeployments();
  drawJobs();
}

/** Updates texts that change with the clock alone. */
export function drawTimes() {
  for (const cell of document.querySelectorAll("#overview td[data-since]")) {
    if (cell.offsetParent !== null) write(cell, span(now_s() - Number(cell.dataset.since)) + (cell.dataset.tail || ""));
  }
}

// ---- figures

function drawFigures() {
  const all = known.cluster, count = (state) => known.counts[state] || 0;
  const running = count("running") + count("starting") + count("stopping") + count("placed");
  const figures = [
    { label: "GPUs in use", value: all.gpus_held, more: `of ${all.gpus.toLocaleString("en")}` },
    { label: "Running", value: running, more: running === 1 ? "job" : "jobs" },
    { label: "Waiting", value: count("waiting"), more: count("held") ? `and ${count("held")} held` : count("waiting") === 1 ? "job" : "jobs" },
    { label: "Nodes up", value: all.nodes_up, more: `of ${all.nodes.toLocaleString("en")}` },
    { label: "Memory for jobs", value: bytes(all.headroom_bytes), more: `of ${bytes(all.memory_bytes)}` },
  ];
  if (all.loan_bytes) figures.push({ label: "Memory lent", value: bytes(all.loan_bytes), more: "to other nodes" });
  if (all.promised_bytes) figures.push({ label: "Memory promised", value: bytes(all.promised_bytes), more: "of other nodes, to jobs" });
  if (all.gpu_power_w !== null) figures.push({ label: "GPU power", value: (all.gpu_power_w / 1000).toFixed(1), more: "kW now" });
  figures.push(...energy(all));
  keep(at("figures"), figures, (one) => one.label, figure, (element, one) => {
    write(element.querySelector("b"), one.value.toLocaleString("en"));
    write(element.querySelector("small"), one.more);
    element.title = one.title || "";
  });
}

/** Figures of a cluster whose nodes sleep, or have slept. */
function energy(all) {
  const isKept = all.nodes_wanted !== null && all.nodes_wanted !== undefined;
  if (!isKept && !all.nodes_asleep && !all.saved_kwh) return [];
  const moving = [[all.nodes_booting, "booting"], [all.nodes_closing, "closing"]].filter(([count]) => count);
  const figures = [
    { label: "Asleep", value: all.nodes_asleep, more: moving.length ? moving.map(([count, what]) => `${count} ${what}`).join(", ") : all.nodes_asleep === 1 ? "node" : "nodes" },
    { label: "Energy saved", value: all.saved_kwh < 10 ? all.saved_kwh.toFixed(2) : Math.round(all.saved_kwh), more: "kWh, against all nodes on" },
  ];
  if (isKept) {
    const more = (all.forecast || "").startsWith("no forecast") ? "nodes to stay on, without a forecast" : "nodes to stay on";
    figures.push({ label: "Needed", value: all.nodes_wanted, more, title: [all.wanted_reason, all.forecast].filter(Boolean).join("; ") });
  }
  return figures;
}

function figure(one) {
  const value = make("b");
  return make("div", {}, make("dt", {}, one.label), make("dd", {}, value, " ", make("small")));
}

// ---- nodes

function drawNodes() {
  at("nodes-none").hidden = known.order.nodes.length > 0;
  keep(at("nodes"), known.order.nodes.map((name) => nodes.get(name)), (node) => node.name, nodeCard, fillNode);
}

function nodeCard(node) {
  return make("li", {},
    make("div", { class: "row" }, make("span", { class: "name" }, node.name), make("span", { class: "state" }), make("span", { class: "used" })),
    make("div", { class: "gpus", role: "img" }),
    make("div", { class: "row facts" }, make("span", {}, "memory for jobs"), make("span", { class: "room" })),
    make("div", { class: "bar" }, make("i")),
    make("p", { class: "facts partition" }), make("p", { class: "facts sensed" }), make("div", { class: "facts services" }), make("p", { class: "reason" }));
}

function fillNode(card, node) {
  const part = (name) => card.querySelector(name), held = node.gpus.filter((gpu) => gpu.shares.length).length;
  card.className = node.state === "lost" || node.state === "asleep" ? "down" : "";
  write(part(".state"), plain(node.state));
  part(".state").className = look(node.state);
  write(part(".used"), node.gpus.length ? `${held} of ${node.gpus.length}` : "no GPUs");
  part(".gpus").setAttribute("aria-label", spoken(node, held));
  keep(part(".gpus"), node.gpus, (gpu) => gpu.index, () => make("i"), (square, gpu) => {
    square.className = gpu.shares.length ? "held" : gpu.healthy ? "" : "broken";
    square.title = `GPU ${gpu.index}${gpu.model ? ` (${gpu.model})` : ""}: ${holder(gpu) || (gpu.healthy ? "free" : gpu.reason || "errors")}`;
  });
  write(part(".room"), `${bytes(node.headroom_bytes)} of ${bytes(node.memory_bytes)}`);
  part(".bar > i").style.width = `${node.memory_bytes ? Math.min(100, 100 * node.headroom_bytes / node.memory_bytes) : 0}%`;
  write(part(".partition"), [node.partition ? `partition ${node.partition}` : "", node.borrower ? `jobs of ${node.borrower}` : ""].filter(Boolean).join(", "));
  write(part(".sensed"), feeling(sensed.get(node.name)));
  keep(part(".services"), Object.entries(node.services), ([name]) => name, () => make("p"), (line, [name, state]) => write(line, `${name}: ${stateOf(state)}`));
  write(part(".reason"), node.reason);
}

/** Who has a GPU: of others' jobs the manager tells users no number. */
const holder = (gpu) => gpu.job ? `job ${gpu.job}` : gpu.shares.length ? "another user's job" : "";

/** State of a node service in one line; any service may report any JSON value. */
function stateOf(state) {
  if (state === null || typeof state !== "object" || Array.isArray(state)) return valueOf("", state);
  const facts = Object.entries(state).filter(([, value]) => value !== null && value !== "");
  return facts.map(([name, value]) => `${plain(name.replace(/_bytes$/, ""))} ${valueOf(name, value)}`).join(", ");
}

function valueOf(name, value) {
  if (typeof value === "number") return name.endsWith("_bytes") ? bytes(value) : value.toLocaleString("en");
  if (typeof value === "boolean") return value ? "yes" : "no";
  return (typeof value === "string" ? value : JSON.stringify(value)).slice(0, VALUE_CHARS);
}

function spoken(node, held) {
  const broken = node.gpus.filter((gpu) => !gpu.healthy).length;
  return `${held} of ${many(node.gpus.length, "GPU")} in use${broken ? `, ${broken} with errors` : ""}`;
}

function feeling(told) {
  if (!told) return "";
  const words = [];
  if (told.gpu_busy_pct !== null) words.push(`GPUs ${told.gpu_busy_pct} % busy`);
  if (told.gpu_power_w !== null) words.push(`${told.gpu_power_w.toLocaleString("en")} W`);
  if (told.memory_stall_pct >= 1) words.push(`memory stalls ${Math.round(told.memory_stall_pct)} %`);
  const memory = told.memory;
  if (memory.lent_bytes) words.push(`lends ${bytes(memory.lent_bytes)}`);
  if (memory.lend_limit_bytes !== null) words.push(`lends at most ${bytes(memory.lend_limit_bytes)}`);
  if (memory.lendable_bytes) words.push(`could lend ${bytes(memory.lendable_bytes)}${memory.lent_bytes ? " more" : ""}`);
  if (memory.remote_bytes) words.push(`${bytes(memory.remote_bytes)} at donors`);
  if (memory.on_disk_bytes) words.push(`${bytes(memory.on_disk_bytes)} on its disk alone`);
  if (memory.pages_at_risk) words.push(`${many(memory.pages_at_risk, "page")} at risk`);
  if (memory.disk_failed) words.push("its backup disk fails");
  return words.join(" · ");
}

// ---- loans

function drawLoans() {
  const loans = known.order.nodes.flatMap((name) => (sensed.get(name)?.loans || []).map((loan) => ({ lender: name, ...loan })));
  at("loans-part").hidden = !loans.length;
  keep(at("loans"), loans, (loan) => `${loan.lender} ${loan.borrower}`,
    () => make("li", {}, make("span", { class: "who" }), make("span")),
    (line, loan) => {
      write(line.firstElementChild, `${loan.lender} lends to ${loan.borrower}`);
      write(line.lastElementChild, bytes(loan.bytes));
    });
}

// ---- shared aggregation

function drawAggregation() {
  const { aggregators, jobs: rows } = known.aggregation || { aggregators: [], jobs: [] };
  at("aggregation-part").hidden = !aggregators.length && !rows.length;
  const line = () => make("li", {}, make("span", { class: "who" }), make("span"));
  const fill = (element, [who, what]) => { write(element.firstElementChild, who); write(element.lastElementChild, what); };
  keep(at("aggregators"), aggregators.map((one) => [one.node, aggregatorWords(one)]), ([node]) => node, line, fill);
  keep(at("aggregated"), rows.map((one) => [`job ${one.job}`, aggregatedWords(one)]), ([job]) => job, line, fill);
}

function aggregatorWords(one) {
  const words = [one.is_in_pool ? many(one.cores, "core") : `offers ${many(one.cores, "core")}`];
  if (one.planned_pct !== null && one.chunks) words.push(`${Math.round(one.planned_pct)} % planned`);
  if (one.chunks) words.push(many(one.chunks, "chunk"));
  if (one.used_bytes) words.push(`${bytes(one.used_bytes)} of ${bytes(one.memory_bytes)}`);
  if (one.jobs.length) words.push(`jobs ${one.jobs.join(", ")}`);
  if (one.problem) words.push(one.problem);
  return words.join(" · ");
}

function aggregatedWords(one) {
  const words = [one.state];
  if (one.nodes.length) words.push(`on ${one.nodes.join(", ")}`);
  if (one.moving_chunks) words.push(`${one.moving_chunks} of ${many(one.chunks, "chunk")} under way`);
  if (one.loss_pct !== null) words.push(`${Math.round(one.loss_pct)} % slower than alone${one.is_loss_accepted ? ", accepted" : ""}`);
  if (one.waits_for !== null) words.push(`waits for rank ${one.waits_for}`);
  if (one.problem) words.push(one.problem);
  return words.join(" · ");
}

// ---- turns on nodes

function drawGroups() {
  const groups = known.groups || [];
  at("groups-part").hidden = !groups.length;
  keep(at("groups"), groups, (group) => group.node, () => make("li", {}, make("span", { class: "who" }), make("span")),
    (line, group) => { write(line.firstElementChild, group.node); write(line.lastElementChild, groupWords(group)); });
}

const BOUND = { cpu: "computing", network: "communicating", job: "one job", disk: "its disk", peer: "peers' memory" };

function groupWords(group) {
  const words = group.jobs.length ? [`job ${group.jobs.map((one) => one.job).join(", ")}`] : [];
  if (group.others) words.push(many(group.others, "other"));
  if (group.bound !== null) words.push(`bound by ${BOUND[group.bound]}`);
  if (group.predicted_s !== null) words.push(`${group.predicted_s.toPrecision(3)} s predicted`);
  if (group.measured_s !== null) words.push(`${group.measured_s.toPrecision(3)} s measured`);
  for (const one of group.jobs) if (one.processor) words.push(processorWords(one.job, one.processor));
  for (const one of group.jobs) if (one.spill && one.spill.spilled) words.push(spillWords(one.job, one.spill));
  if (group.plan !== null) words.push(planWords(group.plan));
  return words.join(" · ");
}

function processorWords(job, used) {
  return `job ${job}: ${used.rest_s.toPrecision(3)} CPU s for updates, of ${many(used.processors, "processor")}`;
}

function spillWords(job, spill) {
  const words = [`job ${job}: ${Math.round(100 * spill.spilled)} % of ${bytes(spill.input_bytes)} not in memory`];
  if (spill.disk_bytes) words.push(`${bytes(spill.disk_bytes)} read from disk`);
  if (spill.peer_bytes) words.push(`${bytes(spill.peer_bytes)} from peers`);
  if (spill.waited_s) words.push(`${spill.waited_s.toPrecision(3)} s waited for it`);
  return words.join(", ");
}

function planWords(plan) {
  const where = plan.nodes.length > 1 ? ` on ${plan.nodes.join(", ")}` : "";
  const words = [`grouped${where}: job ${plan.jobs.join(", ") || "of others"}`];
  if (plan.others && plan.jobs.length) words.push(many(plan.others, "other"));
  if (plan.predicted_s !== null) words.push(`${plan.predicted_s.toPrecision(3)} s as decided`);
  if (plan.measuring !== null) words.push(`job ${plan.measuring} is being measured`);
  return words.join(", ");
}

// ---- deployments of inference

function drawDeployments() {
  const all = known.deployments || [];
  at("deployments-part").hidden = !all.length;
  keep(at("deployments"), all, (one) => `${one.name} ${one.user}`, deploymentCard, fillDeployment);
}

const twoTexts = () => make("li", { class: "row" }, make("span"), make("span"));

function fillTwo(line, [left, right]) {
  write(line.firstElementChild, left);
  write(line.lastElementChild, right);
}

function deploymentCard(one) {
  return make("li", {},
    make("div", { class: "row" }, make("span", { class: "name" }, one.name), make("span", { class: "facts" }, one.user), make("span", { class: "state" })),
    make("p", { class: "reason" }), make("ul", { class: "leased" }), make("ul", { class: "served facts" }), make("ul", { class: "changes facts" }));
}

function fillDeployment(card, one) {
  const part = (name) => card.querySelector(name);
  write(part(".state"), one.ready ? "ready" : "not ready");
  part(".state").className = look(one.ready ? "running" : "failed");
  write(part(".reason"), one.problem);
  keep(part(".leased"), one.gpus, (gpu) => gpu.job, () => make("li", {}, make("div", { class: "row facts" }, make("span"), make("span")), make("div", { class: "cut", role: "img" })), fillLeased);
  keep(part(".served"), one.models, (model) => model.name, twoTexts, (line, model) => fillTwo(line, [model.name, modelWords(model)]));
  keep(part(".changes"), one.changes.slice(-3), (change) => change.at_s, twoTexts, (line, change) =>
    fillTwo(line, [moment(change.at_s), `${change.cause}: ${change.problem || many(change.gpus, "GPU")}`]));
}

/** A GPU as a bar: its parts as wide as they are, filled as far as batches take their cycle. */
function fillLeased(line, gpu) {
  const cut = line.lastElementChild, words = gpu.parts.map(partWords);
  fillTwo(line.firstElementChild, [`job ${gpu.job}${gpu.node ? ` on ${gpu.node}` : ""}`, `${plain(gpu.state)}${gpu.left_s ? ` · ${span(gpu.left_s)} left` : ""}`]);
  cut.setAttribute("aria-label", words.join("; ") || "no part in use");
  keep(cut, gpu.parts.map((part, at) => ({ ...part, at })), (part) => part.at, () => make("i", {}, make("b")), (bar, part) => {
    bar.style.width = `${part.part_pct}%`;
    bar.title = words[part.at];
    bar.firstElementChild.style.width = `${Math.min(100, part.busy_pct)}%`;
  });
}

const partWords = (part) => `${part.part_pct} %: ${part.models}, cycle ${part.cycle_ms.toFixed(1)} ms, ${Math.round(part.busy_pct)} % occupied`;

function modelWords(one) {
  const words = [`${one.rate.toFixed(1)} of ${one.planned_rate.toFixed(1)} planned/s`, `p99 ${one.p99_ms.toFixed(1)} of ${one.slo_ms} ms`];
  if (one.violated) words.push(`${one.violated.toLocaleString("en")} late or failed`);
  if (one.dropped) words.push(`${one.dropped.toLocaleString("en")} dropped`);
  return words.join(" · ");
}

// ---- jobs

const LISTS = {
  active: { since: (job) => job.started_s || job.submit_s, text: (job) => job.nodes.join(", ") || job.reason },
  waiting: { since: (job) => job.submit_s, text: (job) => (known.why[job.id] || job.reason).replace(/^waits: /, "") },
  ended: { since: (job) => job.end_s, tail: " ago", text: (job) => job.reason },
};
const TOTAL = { active: ["placed", "starting", "running", "stopping"], waiting: ["waiting", "held"] };

export function drawJobs() {
  const filter = at("filter").value.trim().toLowerCase();
  for (const [name, list] of Object.entries(LISTS)) {
    const listed = (known.order[name] || []).map((id) => jobs.get(id));
    const shown = filter ? listed.filter((job) => matches(job, filter, list.text(job))) : listed;
    keep(at(name), shown, (job) => job.id, jobLine, (line, job) => fillJob(line, job, list));
    at(`${name}-none`).hidden = shown.length > 0;
    if (!TOTAL[name]) continue;
    const total = TOTAL[name].reduce((sum, state) => sum + (known.counts[state] || 0), 0);
    write(at(`${name}-count`), total ? total.toLocaleString("en") : "");
    at(`${name}-more`).hidden = total <= listed.length;
    write(at(`${name}-more`), `and ${many(total - listed.length, "job")} more: farside queue lists all`);
  }
}

const matches = (job, filter, text) =>
  [job.id, job.name, job.user, job.account, plain(job.state), ...job.nodes, text].some((one) => one.toLowerCase().includes(filter));

function jobLine(job) {
  const link = make("a", { href: `#/jobs/${encodeURIComponent(job.id)}`, class: "job" }, job.id);
  return make("tr", {}, make("td", {}, link), make("td", {}, job.name), make("td", {}, job.user), make("td", {}, make("span")),
    make("td", { class: "number" }, String(job.gpus)), make("td", { class: "number" }), make("td"));
}

function fillJob(line, job, list) {
  const [, , , state, gpus, time, text] = line.children;
  write(state.firstChild, plain(job.state));
  state.firstChild.className = look(job.state);
  gpus.dataset.unit = job.gpus === 1 ? " GPU" : " GPUs";
  time.dataset.since = list.since(job);
  if (list.tail) time.dataset.tail = list.tail;
  write(time, span(now_s() - list.since(job)) + (list.tail || ""));
  write(text, list.text(job));
}
