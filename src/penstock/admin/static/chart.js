// A cursor in the charts: follows the pointer or the arrow keys and shows the values there.
//
// The server draws the chart (charts.py).  The figure has the time between values (data-step,
// seconds) and the time of the newest (data-end, ms), and each line its numbers (data-values).

const WIDTH = 1000;

export class Charts {
  #figure = null; // the one with a cursor
  #at = 0; // position from the newest value, so that the cursor keeps its age

  constructor() {
    this.refresh();
    document.addEventListener("pointermove", (event) => this.#point(event));
    document.addEventListener("keydown", (event) => this.#press(event));
    document.addEventListener("focusin", (event) => {
      const figure = figureOf(event.target);
      if (figure !== null && event.target.matches(":focus-visible")) this.#show(figure, 0);
    });
    document.addEventListener("focusout", (event) => {
      if (figureOf(event.target) !== null) this.#hide();
    });
  }

  refresh() {
    for (const plot of document.querySelectorAll(".chart svg.plot")) {
      if (plot.getAttribute("role") === "slider") continue;
      plot.setAttribute("role", "slider");
      plot.setAttribute("tabindex", "0");
      plot.setAttribute("aria-valuemax", "0");
      plot.setAttribute("aria-valuenow", "0");
      plot.setAttribute("aria-valuemin", String(1 - countOf(plot.closest(".chart"))));
    }
    if (this.#figure === null) return;
    if (this.#figure.isConnected) this.#show(this.#figure, this.#at);
    else this.#figure = null;
  }

  #point(event) {
    const figure = figureOf(event.target);
    if (figure === null) {
      if (this.#figure !== null && !this.#figure.contains(document.activeElement)) this.#hide();
      return;
    }
    const box = figure.querySelector(".plot").getBoundingClientRect();
    const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
    this.#show(figure, Math.round((1 - share) * (countOf(figure) - 1)));
  }

  #press(event) {
    const figure = figureOf(event.target);
    if (figure === null) return;
    const last = countOf(figure) - 1;
    const to = {
      ArrowLeft: this.#at + 1, ArrowRight: this.#at - 1, PageUp: this.#at + 12,
      PageDown: this.#at - 12, Home: last, End: 0,
    }[event.key];
    if (event.key === "Escape") this.#hide();
    if (to === undefined) return;
    event.preventDefault();
    this.#show(figure, Math.min(Math.max(to, 0), last));
  }

  #show(figure, at) {
    if (this.#figure !== null && this.#figure !== figure) this.#hide();
    this.#figure = figure;
    this.#at = at;
    const count = countOf(figure);
    const cursor = figure.querySelector(".cursor");
    const x = String(WIDTH * (count < 2 ? 1 : 1 - at / (count - 1)));
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.setAttribute("visibility", "visible");
    const when = whenText(figure, at * Number(figure.dataset.step));
    const parts = [when];
    for (const key of figure.querySelectorAll(".key")) {
      const value = valuesOf(figure, key.dataset.line)[count - 1 - at];
      const text = valueText(value, figure.dataset.unit);
      key.querySelector("output").textContent = text;
      parts.push(`${key.querySelector(".name").textContent} ${text}`);
    }
    figure.querySelector(".when").textContent = when;
    const plot = figure.querySelector(".plot");
    plot.setAttribute("aria-valuenow", String(-at));
    plot.setAttribute("aria-valuetext", parts.join(", "));
  }

  #hide() {
    const figure = this.#figure;
    if (figure === null) return;
    this.#figure = null;
    figure.querySelector(".cursor").setAttribute("visibility", "hidden");
    figure.querySelector(".when").textContent = "";
    for (const key of figure.querySelectorAll(".key")) {
      key.querySelector("output").textContent = key.dataset.now;
    }
  }
}

function figureOf(target) {
  const figure = target.closest?.("svg.plot")?.closest(".chart");
  return figure ?? null;
}

function valuesOf(figure, line) {
  const trace = figure.querySelector(`.trace[data-line="${CSS.escape(line)}"]`);
  return trace.dataset.values.split(",");
}

function countOf(figure) {
  return valuesOf(figure, figure.querySelector(".key").dataset.line).length;
}

// Clock time in UTC, as on all pages, and the age.
function whenText(figure, ago_s) {
  const end_ms = Number(figure.dataset.end);
  if (!(end_ms > 0)) return agoText(ago_s);
  const clock = new Date(end_ms - ago_s * 1000).toISOString().slice(11, 19);
  return `${clock} UTC, ${agoText(ago_s)}`;
}

function agoText(ago_s) {
  if (ago_s < 1) return "now";
  const minutes = Math.floor(ago_s / 60);
  const seconds = Math.round(ago_s % 60);
  return `${minutes > 0 ? `${minutes} min ` : ""}${seconds > 0 || minutes === 0 ? `${seconds} s ` : ""}ago`;
}

function valueText(value, unit) {
  if (value === undefined || value === "") return "–";
  const number = Number(value);
  if (unit === "count") return Math.round(number).toLocaleString("en");
  if (unit === "span") return spanText(number);
  const places = number >= 100 ? 0 : number >= 10 ? 1 : 2;
  return `${number.toLocaleString("en", { maximumFractionDigits: places })}/s`;
}

function spanText(seconds) {
  if (seconds >= 60) return agoText(seconds).replace(" ago", "");
  const [number, unit] = seconds >= 1 || seconds === 0 ? [seconds, "s"] : [seconds * 1000, "ms"];
  return `${number.toLocaleString("en", { maximumSignificantDigits: 3 })} ${unit}`;
}
