// Figures, times and states in words, as the command line prints them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(count) {
  let value = count, unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) { value /= 1024; unit += 1; }
  return `${value >= 100 || Number.isInteger(value) ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function span(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor(s % 3600 / 60)).padStart(2, "0")} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
}

export function moment(at_s) {
  const date = new Date(at_s * 1000), pad = (number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

export const many = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;
export const plain = (state) => state.replaceAll("_", " ");

const GOOD = new Set(["running", "done", "busy"]), BAD = new Set(["failed", "timed_out", "lost"]);

/** How a state looks. */
export const look = (state) => `state ${GOOD.has(state) ? "good" : BAD.has(state) ? "bad" : ""}`;

const EVENTS = {
  JobSubmitted: (e) => e.is_held ? "submitted, held" : "submitted",
  JobPlaced: (e) => `allocated ${e.places.map((p) => `${many(p.gpus, "GPU")} of ${p.node}`).join(", ")}: ${e.reason}`,
  JobUnplaced: (e) => `allocation released: ${e.reason}`,
  MemoryRecalled: (e) => `${bytes(e.recalled_bytes)} that ${e.node} lends are recalled${e.expected_s === null ? "" : `, expected to take ${span(e.expected_s)}`}`,
  JobStarted: (e) => `start ${e.start}: ${many(e.tasks.length, "process").replace("processs", "processes")}`,
  JobStopping: (e) => `stopping (${plain(e.cause)}): ${e.reason}`,
  JobRequeued: (e) => `requeued: ${e.reason}`,
  JobEnded: (e) => `${plain(e.ending)}: ${e.reason}`,
  JobPromoted: (e) => `promoted: ${e.reason}`,
  JobIdleWarned: (e) => `warned: ${e.reason}`,
  IdleWarningLifted: (e) => `no longer warned: ${e.reason}`,
  TaskIdle: (e) => `rank ${e.rank} on ${e.node}: ${e.since_s ? `GPUs less than ${e.below_pct} % busy since ${moment(e.since_s)}` : "GPUs used again, or not watched"}`,
  TaskChanged: (e) => `rank ${e.rank} on ${e.node}: ${plain(e.phase)}${e.exit_code === null || e.exit_code === undefined ? "" : `, exit code ${e.exit_code}`}${e.signal ? `, signal ${e.signal}` : ""}${e.cause ? `, ${e.cause}` : ""}`,
  CancelRequested: (e) => `cancelled by ${e.by}`,
  HoldRequested: (e) => `held by ${e.by}`,
  ReleaseRequested: (e) => `released by ${e.by}`,
};

/** One entry of a job's history in words; an unknown type of entry is shown by its name. */
export function told(entry) {
  const words = EVENTS[entry.type];
  return words ? words(entry.event) : entry.type.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();
}
