"use strict";
// Updates the page part by part, except for parts that somebody is reading or typing in.

const PAUSE = 3000; // ms between updates
const SLOWEST = 30000; // at most, after failures
let pause = PAUSE;
const shown = new Map(); // each part's HTML in the server's last response

// The server does not know the reader's time zone, so it writes UTC, which remains if this script does not run.
function localize() {
  for (const time of document.querySelectorAll("time[datetime]:not([title])")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    time.title = time.textContent;
    time.textContent = moment.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
  }
}

function remember(root) {
  for (const part of root.querySelectorAll("[data-live]")) shown.set(part.id, part.outerHTML);
}

function typed(part) {
  return [...part.querySelectorAll("textarea, input[type=search]")].some((field) => field.value !== field.defaultValue);
}

function inUse(part) {
  const selection = document.getSelection();
  const selected = selection && !selection.isCollapsed && selection.intersectsNode?.(part);
  const read = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  const active = document.activeElement; // an element that was opened with a click must still be updated
  return typed(part) || (part.contains(active) && active.tagName !== "SUMMARY") || selected || read;
}

function replace(part, fresh) {
  for (const details of [fresh, ...fresh.querySelectorAll("details[id]")]) {
    const now = details.tagName === "DETAILS" && document.getElementById(details.id);
    if (now) details.open = now.open;
  }
  const focused = part.contains(document.activeElement) && document.activeElement.closest("details[id]")?.id;
  const boxes = [...part.querySelectorAll("pre, .draft")].map((box) => box.scrollTop);
  part.replaceWith(fresh);
  [...fresh.querySelectorAll("pre, .draft")].forEach((box, index) => (box.scrollTop = boxes[index] ?? 0));
  if (focused) document.getElementById(focused)?.querySelector("summary")?.focus({ preventScroll: true });
}

function update(next) {
  const old = new Set([...document.querySelectorAll("[data-live]")].map((part) => part.id));
  for (const fresh of next.querySelectorAll("[data-live]")) {
    const html = fresh.outerHTML;
    const part = document.getElementById(fresh.id);
    old.delete(fresh.id);
    if (!part) insert(fresh);
    else if (shown.get(fresh.id) === html || inUse(part)) continue;
    else replace(part, document.importNode(fresh, true));
    shown.set(fresh.id, html);
  }
  for (const id of old) retire(document.getElementById(id));
  restore();
  localize();
}

function insert(fresh) {
  const list = fresh.closest("[data-list]");
  const here = (list && document.getElementById(list.id)) || document.querySelector("main");
  here.append(document.importNode(fresh, true));
}

function retire(part) {
  shown.delete(part.id);
  if (!typed(part)) return part.remove();
  if (part.querySelector(".gone")) return;
  const note = document.createElement("p");
  note.className = "problem gone";
  note.textContent = "This draft is no longer waiting; your text is still here.";
  part.prepend(note);
  for (const button of part.querySelectorAll("button")) button.disabled = true;
}

async function refresh() {
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
    document.getElementById("ended")?.toggleAttribute("hidden", answer.status !== 401);
    if (answer.ok) {
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      update(next);
      renewForms(next);
    }
    pause = answer.ok ? PAUSE : Math.min(pause * 2, SLOWEST);
  } catch {
    pause = Math.min(pause * 2, SLOWEST);
  }
  schedule();
}

// After a new login, the forms on the page still belong to the previous session.
function renewForms(next) {
  const key = next.querySelector("input[name=form_key]")?.value;
  if (key) for (const field of document.querySelectorAll("input[name=form_key]")) field.value = key;
}

function schedule() {
  setTimeout(() => (document.hidden ? schedule() : refresh()), pause);
}

// Typed text survives a reload, a reopened tab and the end of a session.
function keep(field) {
  const key = "feedback-" + field.dataset.keep;
  if (field.value) sessionStorage.setItem(key, field.value);
  else sessionStorage.removeItem(key);
}

function restore() {
  for (const field of document.querySelectorAll("textarea[data-keep]")) {
    const kept = sessionStorage.getItem("feedback-" + field.dataset.keep);
    if (kept && !field.value) {
      field.value = kept;
      for (let part = field.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
    }
  }
}

document.addEventListener("input", (event) => {
  if (event.target.dataset?.keep) keep(event.target);
});

if (document.querySelector("[data-live]")) {
  remember(document);
  localize();
  restore();
  schedule();
}
