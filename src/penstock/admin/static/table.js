// Sorting and filtering of tables in the browser; both outlast updates.
//
//   <table id="topics" data-sortable>  ... <th><button class="sort">Depth</button></th> ...
//   <input data-filter="topics">           hides rows whose data-key does not contain the words
//   <output data-filtered="topics">        says how many are left
//
// A cell sorts by its data-value if it has one, else by its text: as a number if it is one.

import { move } from "./morph.js";

const collator = new Intl.Collator(undefined, { numeric: true });

export class Tables {
  constructor() {
    document.addEventListener("click", (event) => {
      const button = event.target.closest?.("button.sort");
      if (button !== null && button !== undefined) turn(button.closest("th"));
    });
    document.addEventListener("input", (event) => {
      if (event.target.matches?.("input[data-filter]")) typed(event.target);
    });
    document.addEventListener("submit", (event) => {
      if (event.target.querySelector("input[data-filter]") !== null) event.preventDefault();
    });
    for (const table of document.querySelectorAll("table[data-sortable]")) recall(table);
    this.refresh();
  }

  // Put rows that an update added or changed where they belong.
  refresh() {
    for (const table of document.querySelectorAll("table[data-sorted]")) sort(table);
    for (const input of document.querySelectorAll("input[data-filter]")) filter(input);
  }
}

function turn(heading) {
  const table = heading.closest("table");
  const before = heading.getAttribute("aria-sort");
  for (const other of table.tHead.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
  // Numbers are looked at from the largest, names from the first.
  const first = heading.classList.contains("number") ? "descending" : "ascending";
  const second = first === "descending" ? "ascending" : "descending";
  heading.setAttribute("aria-sort", before === first ? second : first);
  table.setAttribute("data-sorted", "");
  sort(table);
  keep(table, heading);
}

function sort(table) {
  const heading = table.tHead.querySelector("[aria-sort]");
  if (heading === null) return;
  const column = heading.cellIndex;
  const sign = heading.getAttribute("aria-sort") === "descending" ? -1 : 1;
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [valueOf(row.cells[column]), row]);
  const sorted = rows.toSorted((one, other) => sign * compare(one[0], other[0]));
  let place = body.rows[0];
  for (const [, row] of sorted) {
    if (row === place) place = place.nextElementSibling;
    else move(body, row, place);
  }
}

function valueOf(cell) {
  if (cell === undefined) return "";
  const text = cell.getAttribute("data-value") ?? cell.textContent.trim();
  const number = Number(text.replaceAll(",", ""));
  return text === "" || Number.isNaN(number) ? text : number;
}

// What is not known (a dash) stands behind numbers of either order's small end.
function compare(one, other) {
  const numbers = (typeof one === "number") - (typeof other === "number");
  if (numbers !== 0) return numbers;
  return typeof one === "number" ? one - other : collator.compare(one, other);
}

function keep(table, heading) {
  try {
    const state = [heading.cellIndex, heading.getAttribute("aria-sort")];
    sessionStorage.setItem(`sort:${location.pathname}:${table.id}`, JSON.stringify(state));
  } catch {
    // it holds for this page then
  }
}

function recall(table) {
  try {
    const kept = sessionStorage.getItem(`sort:${location.pathname}:${table.id}`);
    if (kept === null) return;
    const [column, order] = JSON.parse(kept);
    table.tHead.rows[0].cells[column]?.setAttribute("aria-sort", order);
    table.setAttribute("data-sorted", "");
  } catch {
    // then it is not sorted
  }
}

function typed(input) {
  filter(input);
  const url = new URL(location.href);
  if (input.value === "") url.searchParams.delete("q");
  else url.searchParams.set("q", input.value);
  history.replaceState(null, "", url);
}

function filter(input) {
  const table = document.getElementById(input.dataset.filter);
  if (table === null) return;
  const words = input.value.toLowerCase().split(/\s+/).filter((word) => word !== "");
  let shown = 0;
  const rows = table.tBodies[0].rows;
  for (const row of rows) {
    const key = row.getAttribute("data-key").toLowerCase();
    const matches = words.every((word) => key.includes(word));
    if (row.hidden === matches) row.hidden = !matches;
    shown += matches;
  }
  const output = document.querySelector(`output[data-filtered="${CSS.escape(table.id)}"]`);
  const text = words.length === 0 ? "" : `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")}`;
  if (output !== null && output.textContent !== text) output.textContent = text;
}
