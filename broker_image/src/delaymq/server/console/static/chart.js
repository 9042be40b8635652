// Common parts of the charts of pending messages: the figure, its scale and axis, and the sizes of bars.

import { h, s } from "./dom.js";
import { count, rounded } from "./format.js";

export const HEIGHT = 240;
export const TOP = 14;
export const BOTTOM = 26;
export const LEFT = 52;
export const RIGHT = 14;
const LEAST_WIDTH = 240;
const LEAST_BAR_HEIGHT = 2;
// Below this width, the axis has few ticks.
const NARROW = 420;
const FEW_STEPS = 2;
// From this number on, values do not fit to the left of the plot in full.
const LONG_VALUE = 1_000_000;

/** A figure that is drawn again when its width changes. Subclasses implement draw(shown). */
export class Chart {
  /** Create once, and pass to render() each time. */
  figure;
  svg = s("svg", { class: "due", role: "group", height: HEIGHT, width: "100%" });
  width = 800;
  #shown = null;

  constructor(key) {
    this.figure = h("figure", { class: "due-figure", "data-key": key }, this.svg);
    new ResizeObserver(() => {
      const width = Math.max(LEAST_WIDTH, this.figure.clientWidth);
      if (width === this.width) return;
      this.width = width;
      if (this.#shown) this.show(this.#shown);
    }).observe(this.figure);
  }

  show(shown) {
    this.#shown = shown;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.draw(shown);
  }

  /** Lines from 0 to `highest`, with their values. */
  grid(highest, y, plot) {
    const steps = Math.min(highest, 5);
    const textOf = highest < LONG_VALUE ? count : rounded;
    const lines = Array.from({ length: steps + 1 }, (_, at) => {
      const value = (highest * at) / steps;
      return [
        s("line", { class: "grid", x1: LEFT, x2: plot.right, y1: y(value), y2: y(value) }),
        s("text", { class: "tick end", x: LEFT - 8, y: y(value) + 4 }, textOf(value)),
      ];
    });
    return s("g", { "data-key": `grid ${highest} ${this.width}` }, lines);
  }

  /** "now" and up to `many` later times, each as `textOf(part)`, where `part` is 0 to 1. */
  ticks(key, many, plot, textOf) {
    const steps = plot.right - plot.left < NARROW ? FEW_STEPS : many;
    const texts = Array.from({ length: steps + 1 }, (_, at) => {
      const x = plot.left + ((plot.right - plot.left) * at) / steps;
      const text = at === 0 ? "now" : textOf(at / steps);
      return s("text", { class: at === 0 ? "tick start strong" : at === steps ? "tick end" : "tick middle", x: at === 0 ? x + 2 : x, y: HEIGHT - 8 }, text);
    });
    return s("g", { "data-key": `ticks ${key} ${this.width}` }, texts);
  }
}

/** The line at the current time. */
export function nowLine(plot) {
  return s("line", { class: "now", x1: plot.left, x2: plot.left, y1: TOP - 8, y2: plot.bottom + 5 });
}

/** The height of a number of messages, as a function, if `highest` fills the plot. */
export function scaleOf(highest, plot) {
  return (pending) => plot.bottom - ((plot.bottom - TOP) * pending) / highest;
}

/** The rectangle of a bar, with `children`; it remains visible if there are few messages. */
export function barShape(kind, pending, x, width, y, bottom, ...children) {
  const top = Math.min(y(pending), bottom - LEAST_BAR_HEIGHT);
  const shape = { x: x.toFixed(1), y: top.toFixed(1), width: width.toFixed(1), height: (bottom - top).toFixed(1), rx: 1.5 };
  return s("rect", { class: kind, ...shape, "data-pending": pending }, children);
}

export function sum(rows) {
  return rows.reduce((all, row) => all + row.pending, 0);
}

/** The smallest of 1, 2, 5, 10, 20, … that is at least `value`. */
export function niceAbove(value) {
  let size = 1;
  for (;;) {
    for (const step of [1, 2, 5]) {
      if (step * size >= value) return step * size;
    }
    size *= 10;
  }
}
