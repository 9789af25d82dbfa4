// Keeps the page up to date: fetches it again and changes only what differs.
//
//   live     the last request succeeded; the next follows after the sampler's interval
//   paused   by the button, or while the page is hidden
//   lost     the last request failed; retried with growing delays, and the content stays
//
// After an action nothing is fetched: its response is the next page, and this one may be gone.
//
// The server responds 304 if there is no newer sample, so that most requests cost it nothing.

import { morph } from "./morph.js";

const WAIT_MS_MAX = 30_000;
const ANSWER_MS_MAX = 20_000;

export class Live {
  #main = document.querySelector("main");
  #sign = document.getElementById("live");
  #button = document.getElementById("live-pause");
  #lost = document.getElementById("lost");
  #interval_ms = Number(document.body.dataset.interval) || 5000;
  #state = "live";
  #tag = null;
  #timer = 0;
  #fetching = false;
  #failures = 0;
  #leaving = null;
  #updated = Date.now();
  #patched;

  // `patched` is called after each change, before the browser draws.
  constructor(patched) {
    this.#patched = patched;
    if (this.#sign === null) return;
    this.#button.hidden = false;
    this.#button.addEventListener("click", () => this.#toggle());
    document.addEventListener("visibilitychange", () => this.#visibility());
    document.addEventListener("submit", (event) => {
      if (!event.defaultPrevented && event.target.matches("form[method=post]")) this.#leave();
    });
    addEventListener("pageshow", (event) => {
      if (event.persisted) this.#stay();
    });
    this.#stay();
    setInterval(() => this.#show(), 1000);
    this.#show();
  }

  // Fetch now instead of after the interval.  A page without a sign is not live.
  async update() {
    if (this.#sign === null || this.#fetching) return;
    clearTimeout(this.#timer);
    this.#fetching = true;
    try {
      await this.#fetch();
      this.#failures = 0;
      this.#updated = Date.now();
      if (this.#state === "lost") this.#become("live");
    } catch {
      if (this.#leaving.signal.aborted) return;
      this.#failures += 1;
      if (this.#state === "live") this.#become("lost");
    } finally {
      this.#fetching = false;
      this.#show();
      this.#later(Math.min(this.#interval_ms * 2 ** this.#failures, WAIT_MS_MAX));
    }
  }

  async #fetch() {
    const headers = { Accept: "text/html" };
    if (this.#tag !== null) headers["If-None-Match"] = this.#tag;
    const answer = await fetch(address(), {
      headers, cache: "no-store", redirect: "error",
      signal: AbortSignal.any([AbortSignal.timeout(ANSWER_MS_MAX), this.#leaving.signal]),
    });
    if (answer.status === 304) return;
    // A deleted topic, channel or node has an error page.
    if (!answer.ok && answer.status !== 404) throw new Error(`status ${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector("main");
    if (fresh === null) throw new Error("not a page");
    this.#tag = answer.headers.get("ETag");
    // Keep an action's result until the user leaves the page.
    const outcome = this.#main.querySelector(".outcome");
    if (outcome !== null) fresh.querySelector(".head")?.before(document.importNode(outcome, true));
    morph(this.#main, fresh);
    document.title = page.title;
    this.#patched();
  }

  #later(wait_ms) {
    clearTimeout(this.#timer);
    if (this.#state === "paused" || document.hidden || this.#leaving.signal.aborted) return;
    this.#timer = setTimeout(() => this.update(), wait_ms);
  }

  #leave() {
    clearTimeout(this.#timer);
    this.#leaving.abort();
  }

  #stay() {
    this.#leaving = new AbortController();
    this.#later(this.#interval_ms);
  }

  #visibility() {
    if (document.hidden) clearTimeout(this.#timer);
    else if (this.#state !== "paused" && !this.#leaving.signal.aborted) this.update();
  }

  #toggle() {
    if (this.#state === "paused") {
      this.#become("live");
      this.update();
    } else {
      this.#become("paused");
      clearTimeout(this.#timer);
    }
  }

  #become(state) {
    this.#state = state;
    this.#sign.dataset.state = state;
    this.#lost.hidden = state !== "lost";
    this.#button.textContent = state === "paused" ? "Resume" : "Pause";
    this.#show();
  }

  #show() {
    const ago_s = Math.round((Date.now() - this.#updated) / 1000);
    const ago = ago_s < 2 ? "now" : `${ago_s} s ago`;
    const text = { live: "Live", paused: `Paused, ${ago}`, lost: `No response, ${ago}` }[this.#state];
    const sign = this.#sign.querySelector("span");
    if (sign.textContent !== text) sign.textContent = text;
  }
}

// The browser filters and sorts by itself, and an action's result is fetched only once.
function address() {
  const url = new URL(location.href);
  url.searchParams.delete("q");
  url.searchParams.delete("sort");
  url.searchParams.delete("done");
  return url.pathname + url.search;
}
