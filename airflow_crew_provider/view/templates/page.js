"use strict";
// Follows Airflow's theme, counts seconds, and replaces changed parts while the execution runs.
const PAUSE = 2000, SLOWEST = 30000; // ms
const crew = document.getElementById("crew");
let mark = null, pause = PAUSE;

function parentOf() { try { return window.parent !== window && window.parent.document ? window.parent : null; } catch { return null; } }

function follow(theme) {
  const classes = theme.document.documentElement.classList;
  const name = classes.contains("dark") ? "dark" : "light";
  document.documentElement.dataset.theme = name;
}

function clock(from, to) {
  const seconds = Math.max(0, Math.round(((to ? Date.parse(to) : Date.now()) - Date.parse(from)) / 1000));
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
  return hours ? `${hours} h ${minutes % 60} min` : minutes ? `${minutes} min ${seconds % 60} s` : `${seconds} s`;
}

function tick() {
  for (const each of document.querySelectorAll("[data-from]")) each.textContent = clock(each.dataset.from, each.dataset.to);
}

function localize() {
  for (const each of document.querySelectorAll("time:not([title])")) {
    each.title = each.textContent;
    each.textContent = new Date(each.dateTime).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
  }
  tick();
}

function nameOf(link) { return [link.closest("details[id]")?.id, link.getAttribute("href")].join(" "); }

// A screen reader only announces a live region that stays on the page while its text changes.
function announce() {
  const said = document.getElementById("said"), state = document.getElementById("state"), bar = document.getElementById("progress");
  if (!said || !state) return;
  const text = state.textContent + (bar ? `, ${bar.getAttribute("aria-valuenow")} of ${bar.getAttribute("aria-valuemax")} tasks done` : "");
  if (said.textContent !== text) said.textContent = text;
}

function replace(html) {
  const open = new Map([...crew.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
  const scrolled = new Map([...crew.querySelectorAll("details[id] .box")].map((box) => [box.closest("details").id, box.scrollTop]));
  const active = document.activeElement?.closest("#crew a, #crew summary"), focused = active && nameOf(active);
  const fresh = new DOMParser().parseFromString(html, "text/html");
  crew.replaceChildren(...(fresh.getElementById("crew") ?? fresh.body).childNodes);
  for (const [id, was] of open) document.getElementById(id)?.toggleAttribute("open", was);
  for (const [id, top] of scrolled) { const box = document.getElementById(id)?.querySelector(".box"); if (box) box.scrollTop = top; }
  if (focused) [...crew.querySelectorAll("a, summary")].find((each) => nameOf(each) === focused)?.focus({ preventScroll: true });
  localize();
  announce();
}

async function refresh() {
  let answer;
  try {
    answer = await fetch(crew.dataset.address || location.href, { headers: mark ? { "If-None-Match": mark } : {}, credentials: "same-origin" });
    if (answer.status === 200) {
      mark = answer.headers.get("ETag");
      replace(await answer.text());
      if (answer.headers.get("Crew-Live") === "no") return;
    }
  } catch { answer = null; }
  const works = answer !== null && (answer.ok || answer.status === 304);
  document.getElementById("silent")?.toggleAttribute("hidden", works);
  pause = works ? PAUSE : Math.min(pause * 2, SLOWEST);
  schedule();
}

function schedule() { setTimeout(() => (document.hidden ? schedule() : refresh()), pause); }

// This frame is not allowed to open pages, but the page around it is.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[target]"), around = parentOf();
  if (!link || !around || !/^(https?|mailto):/.test(link.href)) return;
  event.preventDefault();
  const twin = around.document.createElement("a");
  twin.href = link.href;
  twin.rel = "noopener noreferrer";
  if (link.target === "_blank") twin.target = "_blank";
  twin.click();
});

const around = parentOf();
if (around) {
  follow(around);
  new MutationObserver(() => follow(around)).observe(around.document.documentElement, { attributes: true, attributeFilter: ["class"] });
}
localize();
setInterval(tick, 1000);
if (crew && "live" in crew.dataset) schedule();
