// Live chart of pending messages by due time, with bars that move towards "now" on the left.

import { h, morph, s } from "./dom.js";
import { count, counted, duration, iso } from "./format.js";

/** Selectable time windows, with bar width (about 60 bars each) and number of axis ticks. */
export const WINDOWS = [
  { name: "1 min", windowMs: 60_000, bucketMs: 1_000, steps: 4 },
  { name: "10 min", windowMs: 600_000, bucketMs: 10_000, steps: 5 },
  { name: "1 h", windowMs: 3_600_000, bucketMs: 60_000, steps: 4 },
  { name: "1 day", windowMs: 86_400_000, bucketMs: 1_800_000, steps: 4 },
  { name: "30 days", windowMs: 2_592_000_000, bucketMs: 43_200_000, steps: 5 },
];

const HEIGHT = 240;
const TOP = 14;
const BOTTOM = 26;
const LEFT = 52;
const RIGHT = 14;
// Left of "now": messages that are due but not delivered.
const OVERDUE_WIDTH = 46;
const GAP = 1;
const FEW_STEPS = 2;
// The bars keep moving for this time after a response, and stop, like the figures, if none follows.
const GLIDE_MS = 1_500;
const LEAST_WIDTH = 240;
const OVERDUE_MS = 1_000;

export class DueChart {
  /** Create once, and pass to render() each time. */
  element;
  #svg;
  #moving = s("g", { class: "moving" });
  #plot = s("g", { "clip-path": "url(#due-plot)", "data-key": "bars" }, this.#moving);
  #animation = null;
  #width = 800;
  #shown = null;

  constructor() {
    this.#svg = s("svg", { class: "due", role: "group", height: HEIGHT, width: "100%" });
    this.element = h("figure", { class: "due-figure", "data-key": "due-chart" }, this.#svg);
    new ResizeObserver(() => {
      const width = Math.max(LEAST_WIDTH, this.element.clientWidth);
      if (width === this.#width) return;
      this.#width = width;
      if (this.#shown) this.show(this.#shown);
    }).observe(this.element);
  }

  /**
   * Draws `rows` ({fromMs, toMs, pending, nextDueMs}; the last may have no end) at `nowMs`, out of `total` messages.
   * Each bar links to `placeOf(fromMs, toMs)`.
   */
  show({ rows, total, nowMs, windowMs, steps, placeOf }) {
    this.#shown = { rows, total, nowMs, windowMs, steps, placeOf };
    const plot = { left: LEFT + OVERDUE_WIDTH, right: this.#width - RIGHT, bottom: HEIGHT - BOTTOM };
    const perMs = (plot.right - plot.left) / windowMs;
    // Messages that have just become due are being delivered, and are not overdue.
    const overdue = sum(rows.filter((row) => row.toMs <= nowMs && row.nextDueMs < nowMs - OVERDUE_MS));
    const ahead = rows.filter((row) => row.toMs > nowMs && row.fromMs < nowMs + windowMs);
    const later = Math.max(0, total - overdue - sum(ahead));
    const highest = niceAbove(Math.max(overdue, ...ahead.map((row) => row.pending)));
    const y = (pending) => plot.bottom - ((plot.bottom - TOP) * pending) / highest;
    const label = describe({ ahead, overdue, later, windowMs });
    this.#svg.setAttribute("viewBox", `0 0 ${this.#width} ${HEIGHT}`);
    this.#svg.setAttribute("aria-label", label);
    morph(this.#moving, ahead.map((row) => bar(row, placeOf(row.fromMs, row.toMs), plot.left + (row.fromMs - nowMs) * perMs, perMs, y, plot.bottom)));
    morph(
      this.#svg,
      s("defs", {}, s("clipPath", { id: "due-plot" }, s("rect", { x: plot.left, y: 0, width: plot.right - plot.left, height: HEIGHT }))),
      this.#grid(highest, y, plot),
      this.#ticks(windowMs, steps, plot),
      overdue ? this.#overdue(overdue, placeOf(null, nowMs), y, plot.bottom) : null,
      this.#plot,
      s("line", { class: "now", x1: plot.left, x2: plot.left, y1: TOP - 8, y2: plot.bottom + 5 }),
      later ? s("text", { class: "later", x: plot.right, y: TOP }, `${count(later)} later →`) : null,
      total === 0 ? s("text", { class: "none", x: (plot.left + plot.right) / 2, y: HEIGHT / 2 }, "No pending messages") : null,
    );
    this.#glide(-GLIDE_MS * perMs);
  }

  #glide(distance) {
    this.#animation?.cancel();
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    const steps = [{ transform: "translateX(0)" }, { transform: `translateX(${distance}px)` }];
    this.#animation = this.#moving.animate(steps, { duration: GLIDE_MS, fill: "forwards" });
  }

  #overdue(overdue, href, y, bottom) {
    const top = Math.min(y(overdue), bottom - 2);
    return s(
      "g",
      { "data-key": "overdue" },
      s("a", { href, "aria-label": `${counted(overdue, "message")} overdue` }, s("rect", { class: "due-overdue", x: LEFT + 8, y: top, width: OVERDUE_WIDTH - 18, height: bottom - top, rx: 1.5 }, s("title", {}, `${counted(overdue, "message")} overdue`))),
      s("text", { class: "tick middle", x: LEFT + OVERDUE_WIDTH / 2 - 1, y: HEIGHT - 8 }, "overdue"),
    );
  }

  #grid(highest, y, plot) {
    const steps = Math.min(highest, 5);
    const lines = Array.from({ length: steps + 1 }, (_, at) => {
      const value = (highest * at) / steps;
      return [
        s("line", { class: "grid", x1: LEFT, x2: plot.right, y1: y(value), y2: y(value) }),
        s("text", { class: "tick end", x: LEFT - 8, y: y(value) + 4 }, count(value)),
      ];
    });
    return s("g", { "data-key": `grid ${highest} ${this.#width}` }, lines);
  }

  #ticks(windowMs, many, plot) {
    const steps = plot.right - plot.left < 420 ? FEW_STEPS : many;
    const texts = Array.from({ length: steps + 1 }, (_, at) => {
      const x = plot.left + ((plot.right - plot.left) * at) / steps;
      const text = at === 0 ? "now" : `+${duration((windowMs * at) / steps)}`;
      return s("text", { class: at === 0 ? "tick start strong" : at === steps ? "tick end" : "tick middle", x: at === 0 ? x + 2 : x, y: HEIGHT - 8 }, text);
    });
    return s("g", { "data-key": `ticks ${windowMs} ${this.#width}` }, texts);
  }
}

function bar(row, href, x, perMs, y, bottom) {
  const width = Math.max(1.5, (row.toMs - row.fromMs) * perMs - GAP);
  const top = Math.min(y(row.pending), bottom - 2);
  const title = `${counted(row.pending, "message")} due from ${iso(row.fromMs)} to ${iso(row.toMs)}`;
  const shape = { class: "due-bar", x: x.toFixed(1), y: top.toFixed(1), width: width.toFixed(1), height: (bottom - top).toFixed(1), rx: 1.5, "data-pending": row.pending };
  return s("a", { href, "aria-label": title, "data-key": row.toMs }, s("rect", shape, s("title", {}, title)));
}

/** The smallest window that shows 90 % of the messages. */
export function fittingWindow(rows, total, nowMs) {
  const fits = ({ windowMs }) => sum(rows.filter((row) => row.fromMs < nowMs + windowMs)) >= 0.9 * total;
  return WINDOWS.find(fits) ?? WINDOWS.at(-1);
}

function describe({ ahead, overdue, later, windowMs }) {
  const parts = [`${counted(sum(ahead), "message")} due within ${duration(windowMs)}`];
  if (overdue) parts.push(`${count(overdue)} overdue`);
  if (later) parts.push(`${count(later)} later`);
  return parts.join(", ");
}

function sum(rows) {
  return rows.reduce((all, row) => all + row.pending, 0);
}

/** The smallest of 1, 2, 5, 10, 20, … that is at least `value`. */
function niceAbove(value) {
  let size = 1;
  for (;;) {
    for (const step of [1, 2, 5]) {
      if (step * size >= value) return step * size;
    }
    size *= 10;
  }
}
