// Chart of the messages that will be due in each hour or day from now on, with the details of the selected range.

import { barShape, BOTTOM, Chart, HEIGHT, LEFT, niceAbove, nowLine, RIGHT, scaleOf, sum, TOP } from "./chart.js";
import { h, morph, s } from "./dom.js";
import { counted, dateTime } from "./format.js";
import { link, section } from "./parts.js";

const GAP = 2;
const STEPS = 4;
const SELECTING = ["pointerover", "focusin"];
const LEAVING = ["pointerleave", "focusout"];

export class ForecastChart extends Chart {
  /** The chart with its title. Create once, and pass to render() each time. */
  element;
  #period;
  #textOf;
  #later = h("span", {});
  #details = h("figcaption", { class: "due-details" });
  #selected = null;
  #ranges = [];
  #label = "";

  /** `period` is the time that the chart covers, in words; `textOf(ms)` labels the axis. */
  constructor(period, textOf) {
    super("chart");
    this.#period = period;
    this.#textOf = textOf;
    this.figure.append(this.#details);
    this.element = section(`Next ${period}`, { beside: this.#later }, this.figure);
    for (const name of SELECTING) this.svg.addEventListener(name, ({ target }) => this.#select(target.closest("[data-range]")));
    for (const name of LEAVING) this.svg.addEventListener(name, () => this.#select(null));
  }

  /** Draws `rows` ({fromMs, toMs, pending}; the first has no start, the last no end) as of `nowMs`. Each links to `placeOf(fromMs, toMs)`. */
  draw({ rows, nowMs, placeOf }) {
    const later = rows.at(-1);
    this.#ranges = rows.slice(0, -1);
    const endMs = this.#ranges.at(-1).toMs;
    const plot = { left: LEFT, right: this.width - RIGHT, bottom: HEIGHT - BOTTOM };
    const highest = niceAbove(Math.max(...this.#ranges.map((row) => row.pending)));
    const y = scaleOf(highest, plot);
    const width = (plot.right - plot.left) / this.#ranges.length;
    const bars = this.#ranges.map((row, at) => rangeBar(at, row, placeOf(row.fromMs, row.toMs), plot.left + at * width, width, y, plot.bottom));
    this.#label = `${counted(sum(this.#ranges), "message")} due within ${this.#period}`;
    this.svg.setAttribute("aria-label", `${this.#label}, ${counted(later.pending, "message")} later`);
    morph(
      this.svg,
      this.grid(highest, y, plot),
      this.ticks("", STEPS, plot, (part) => this.#textOf(nowMs + (endMs - nowMs) * part)),
      bars,
      nowLine(plot),
    );
    const text = `${counted(later.pending, "message")} later`;
    morph(this.#later, later.pending ? link(placeOf(later.fromMs, null), text) : text);
    this.#tell();
  }

  #select(range) {
    this.#selected = range === null ? null : Number(range.dataset.range);
    this.#tell();
  }

  #tell() {
    const range = this.#ranges[this.#selected] ?? null;
    morph(this.#details, range === null ? this.#label : describe(range));
  }
}

/** A range, which can be selected in its full height. */
function rangeBar(at, row, href, x, width, y, bottom) {
  const whole = s("rect", { class: "due-range", x: x.toFixed(1), y: TOP, width: width.toFixed(1), height: bottom - TOP });
  if (row.pending === 0) return s("g", { "data-key": `empty ${at}`, "data-range": at }, whole);
  const bar = barShape("due-bar", row.pending, x + GAP / 2, width - GAP, y, bottom);
  return s("a", { "data-key": `range ${at}`, "data-range": at, href, "aria-label": describe(row) }, whole, bar);
}

function describe({ fromMs, toMs, pending }) {
  const from = fromMs === null ? "by" : `from ${dateTime(fromMs)} to`;
  return `${counted(pending, "message")} due ${from} ${dateTime(toMs)}`;
}
