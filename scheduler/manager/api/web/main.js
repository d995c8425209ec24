// Routes of the page, sign-in, and keys.

import { at, write } from "./dom.js";
import { drawJob } from "./job.js";
import { ask, follow, stop } from "./live.js";
import { drawJobs, drawOverview, drawTimes } from "./overview.js";

const TICK_MS = 1000, KEYS = "farside-keys";
let job = null, isIn = false;

// ---- parts

function see(part) {
  for (const name of ["sign-in", "overview", "job"]) at(name).hidden = name !== part;
}

function route() {
  if (!isIn) return;
  const found = /^#\/jobs\/(.+)$/.exec(location.hash), wasJob = job;
  job = found ? decodeURIComponent(found[1]) : null;
  see(job ? "job" : "overview");
  document.title = job ? `Job ${job} · Farside` : "Farside";
  if (job) {
    refreshJob().then(() => at("job-title")?.focus());
    scrollTo(0, 0);
  } else {
    drawOverview();
    if (wasJob) document.querySelector(`a.job[href="#/jobs/${CSS.escape(encodeURIComponent(wasJob))}"]`)?.focus();
  }
}

async function refreshJob() {
  try {
    await drawJob(job);
  } catch {
    signedOut();
  }
}

// ---- who

async function begin() {
  try {
    const me = await ask("/v1/whoami");
    isIn = true;
    write(at("who"), me.role === "operator" ? `${me.name}, operator` : me.name);
    at("out").hidden = me.proved; // a user whom the kernel proves has nothing to sign out of
    follow({ onNews, onState, onOver: signedOut });
    route();
  } catch (error) {
    if (error.status === 401) return signedOut();
    onState("away");
    setTimeout(begin, 3 * TICK_MS);
  }
}

function signedOut() {
  stop();
  isIn = false;
  at("out").hidden = true;
  write(at("who"), "");
  write(at("live"), "");
  see("sign-in");
  at("token").focus();
}

at("sign-in-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const body = JSON.stringify({ token: at("token").value });
  write(at("sign-in-error"), "");
  try {
    await ask("/ui/session", { method: "POST", body, headers: { "Content-Type": "application/json" } });
    at("token").value = "";
    await begin();
    at("main").focus();
  } catch (error) {
    write(at("sign-in-error"), error.detail || "The manager does not answer.");
    at("token").select();
  }
});

at("out").addEventListener("click", async () => {
  await ask("/ui/session", { method: "DELETE" }).catch(() => {});
  signedOut();
});

// ---- news

function onNews(ids) {
  if (!job) drawOverview();
  else if (ids.has(job)) refreshJob();
}

function onState(state) {
  at("live").className = state === "live" ? "on" : "";
  write(at("live"), state === "live" ? "live" : "no answer, trying again");
}

setInterval(() => { if (isIn && !job && !document.hidden) drawTimes(); }, TICK_MS);
addEventListener("hashchange", () => { if (location.hash !== "#main") route(); });
at("filter").addEventListener("input", drawJobs);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); at("main").focus(); });

// ---- keys

const JUMPS = { n: "nodes-title", r: "active-title", w: "waiting-title", e: "ended-title" };

function move(step) {
  const links = [...document.querySelectorAll("#overview a.job")], now = links.indexOf(document.activeElement);
  links[Math.max(0, Math.min(links.length - 1, now < 0 ? 0 : now + step))]?.focus();
}

function home() {
  if (!job) return;
  location.hash = "#/";
  route(); // now, not at the browser's event: the caller needs the overview at once
}

function jump(id) {
  home();
  at(id).scrollIntoView({ block: "start" });
  at(id).focus({ preventScroll: true });
}

addEventListener("keydown", (event) => {
  const isTyping = event.target.matches?.("input, textarea, select") || at("keys").open;
  if (event.key === "Escape" && event.target.id === "filter") { event.target.value = ""; drawJobs(); event.target.blur(); }
  if (isTyping || !isIn || event.ctrlKey || event.metaKey || event.altKey || !at("keys-on").checked) return;
  if (event.key in JUMPS) jump(JUMPS[event.key]);
  else if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
  else if (event.key === "u") home();
  else if (event.key === "/") { home(); at("filter").focus(); }
  else if (event.key === "?") at("keys").showModal();
  else return;
  event.preventDefault();
});

at("help").addEventListener("click", () => at("keys").showModal());
at("keys-on").checked = localStorage.getItem(KEYS) !== "off";
at("keys-on").addEventListener("change", () => localStorage.setItem(KEYS, at("keys-on").checked ? "on" : "off"));

begin();
