// Scripts of all pages.  Without them a page is complete, but does not refresh itself.

import { Charts } from "./chart.js";
import { Counter } from "./counter.js";
import { Live } from "./live.js";
import { Tables } from "./table.js";

const tables = new Tables();
const charts = new Charts();
const counter = new Counter();
const live = new Live(() => {
  tables.refresh();
  charts.refresh();
  counter.refresh();
});

// A page that was opened with a filter has only the matching rows.
if (new URLSearchParams(location.search).get("q")) live.update();

// Confirmation panels: one at a time; Escape or a click elsewhere closes it.
const panels = () => document.querySelectorAll("details.ask[open]");
document.addEventListener("toggle", (event) => {
  if (!event.target.matches?.("details.ask") || !event.target.open) return;
  for (const panel of panels()) if (panel !== event.target) panel.open = false;
  event.target.querySelector("input:not([type=hidden]), textarea")?.focus();
}, true);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const panel of panels()) {
    if (panel.contains(document.activeElement)) panel.querySelector("summary").focus();
    panel.open = false;
  }
});
document.addEventListener("click", (event) => {
  for (const panel of panels()) if (!panel.contains(event.target)) panel.open = false;
});

// One action per click.
document.addEventListener("submit", (event) => {
  if (event.defaultPrevented || event.target.method !== "post") return;
  // A disabled button does not send its value.
  if (event.submitter?.name) {
    const field = Object.assign(document.createElement("input"), { type: "hidden" });
    field.name = event.submitter.name;
    field.value = event.submitter.value;
    event.target.append(field);
  }
  for (const button of event.target.querySelectorAll("button")) button.disabled = true;
});
// After "Back" the browser shows the page in its last state.
window.addEventListener("pageshow", (event) => {
  if (!event.persisted) return;
  for (const button of document.querySelectorAll("form button:disabled:not([hidden])")) {
    button.disabled = false;
  }
});

// Focus an action's result once, so that it is read out; the sample that shows it may come later.
const outcome = document.querySelector(".outcome");
if (outcome !== null) {
  outcome.focus({ preventScroll: true });
  const url = new URL(location.href);
  url.searchParams.delete("done");
  history.replaceState(null, "", url);
  setTimeout(() => live.update(), 1000);
}
