// Sorts and filters tables in the browser.  Both survive updates and are in the URL, so that a link
// shows the same to others: ?sort=topics.depth.descending&q=orders
//
//   <table id="topics" data-sortable>  ... <th><button class="sort">Depth</button></th> ...
//   <input data-filter="topics">           hides rows whose data-key does not contain the words
//   <output data-filtered="topics">        shows how many match
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
    // The links between the spans of charts keep the order and the filter.
    document.addEventListener("click", (event) => {
      const link = event.target.closest?.(".spans a");
      if (link === null || link === undefined) return;
      const url = new URL(link.href);
      const here = new URL(location.href).searchParams;
      for (const name of ["sort", "q", "topic"]) {
        url.searchParams.delete(name);
        for (const value of here.getAll(name)) url.searchParams.append(name, value);
      }
      link.href = url;
    });
    this.refresh();
  }

  // Sort and filter rows that an update added or changed.
  refresh() {
    for (const table of document.querySelectorAll("table[data-sorted]")) sort(table);
    for (const input of document.querySelectorAll("input[data-filter]")) filter(input);
  }
}

function turn(heading) {
  const table = heading.closest("table");
  const before = heading.getAttribute("aria-sort");
  for (const other of table.tHead.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
  // Numbers start with the largest, names with the first.
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

// An unknown value (a dash) sorts below all numbers.
function compare(one, other) {
  const numbers = (typeof one === "number") - (typeof other === "number");
  if (numbers !== 0) return numbers;
  return typeof one === "number" ? one - other : collator.compare(one, other);
}

// A column's name in the URL: "In flight" is in-flight.
function nameOf(heading) {
  return heading.textContent.trim().toLowerCase().replaceAll(/[^a-z0-9]+/g, "-").replace(/-$/, "");
}

function keep(table, heading) {
  const order = heading.getAttribute("aria-sort");
  const url = new URL(location.href);
  const others = url.searchParams.getAll("sort").filter((text) => !text.startsWith(`${table.id}.`));
  url.searchParams.delete("sort");
  for (const text of [...others, `${table.id}.${nameOf(heading)}.${order}`]) {
    url.searchParams.append("sort", text);
  }
  history.replaceState(null, "", url);
  try {
    const state = [nameOf(heading), order];
    sessionStorage.setItem(`sort:${location.pathname}:${table.id}`, JSON.stringify(state));
  } catch {
    // the URL has it
  }
}

// The order from the URL, or the last one on this page in this window.
function recall(table) {
  const params = new URL(location.href).searchParams;
  const text = params.getAll("sort").find((text) => text.startsWith(`${table.id}.`));
  const [column, order] = text !== undefined ? text.split(".").slice(1) : remembered(table);
  if (order !== "ascending" && order !== "descending") return;
  const headings = [...table.tHead.rows[0].cells];
  const heading = headings.find((cell) => cell.querySelector(".sort") && nameOf(cell) === column);
  if (heading === undefined) return;
  heading.setAttribute("aria-sort", order);
  table.setAttribute("data-sorted", "");
  if (text === undefined) keep(table, heading);
}

function remembered(table) {
  try {
    return JSON.parse(sessionStorage.getItem(`sort:${location.pathname}:${table.id}`)) ?? [];
  } catch {
    return [];
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
