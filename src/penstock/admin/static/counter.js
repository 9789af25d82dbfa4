// The total of the counter page: keeps counting between two samples, at the rate of the last one.

export class Counter {
  #output = document.querySelector("[data-total]");
  #from = 0;
  #rate = 0;
  #since_ms = 0;

  constructor() {
    if (this.#output === null) return;
    this.#from = Number(this.#output.dataset.total);
    this.refresh();
    const still = matchMedia("(prefers-reduced-motion: reduce)");
    const step = () => {
      this.#draw(still.matches ? this.#target() : this.#value());
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  // Aim at the count after one more interval, so that it moves without jumps.
  refresh() {
    if (this.#output === null) return;
    const interval_s = (Number(document.body.dataset.interval) || 5000) / 1000;
    const total = Number(this.#output.dataset.total);
    const now = this.#value();
    this.#from = now > total + this.#rate * interval_s ? total : now;
    this.#since_ms = performance.now();
    const ahead = total + Number(this.#output.dataset.rate) * interval_s - this.#from;
    this.#rate = Math.max(ahead, 0) / interval_s;
  }

  #target() {
    return Number(this.#output.dataset.total);
  }

  #value() {
    return this.#from + (this.#rate * (performance.now() - this.#since_ms)) / 1000;
  }

  #draw(value) {
    const text = Math.round(value).toLocaleString("en");
    if (this.#output.textContent !== text) this.#output.textContent = text;
  }
}
