// Live chart of pending messages by due time, with bars that move towards "now" on the left.

import { barShape, BOTTOM, Chart, HEIGHT, LEFT, niceAbove, nowLine, RIGHT, scaleOf, sum, TOP } from "./chart.js";
import { morph, s } from "./dom.js";
import { count, counted, duration, iso } from "./format.js";

/** Selectable time windows, with bar width (about 60 bars each) and number of axis ticks. */
export const WINDOWS = [
  { name: "1 min", windowMs: 60_000, bucketMs: 1_000, steps: 4 },
  { name: "10 min", windowMs: 600_000, bucketMs: 10_000, steps: 5 },
  { name: "1 h", windowMs: 3_600_000, bucketMs: 60_000, steps: 4 },
  { name: "1 day", windowMs: 86_400_000, bucketMs: 1_800_000, steps: 4 },
  { name: "30 days", windowMs: 2_592_000_000, bucketMs: 43_200_000, steps: 5 },
];

// Left of "now": messages that are due but not delivered.
const OVERDUE_WIDTH = 46;
const GAP = 1;
const LEAST_BAR_WIDTH = 1.5;
// The bars keep moving for this time after a response, and stop, like the figures, if none follows.
const GLIDE_MS = 1_500;
const OVERDUE_MS = 1_000;

export class DueChart extends Chart {
  #moving = s("g", { class: "moving" });
  #plot = s("g", { "clip-path": "url(#due-plot)", "data-key": "bars" }, this.#moving);
  #animation = null;

  constructor() {
    super("due-chart");
  }

  /**
   * Draws `rows` ({fromMs, toMs, pending, nextDueMs}; the last may have no end) at `nowMs`, out of `total` messages.
   * Each bar links to `placeOf(fromMs, toMs)`.
   */
  draw({ rows, total, nowMs, windowMs, steps, placeOf }) {
    const plot = { left: LEFT + OVERDUE_WIDTH, right: this.width - RIGHT, bottom: HEIGHT - BOTTOM };
    const perMs = (plot.right - plot.left) / windowMs;
    // Messages that have just become due are being delivered, and are not overdue.
    const overdue = sum(rows.filter((row) => row.toMs <= nowMs && row.nextDueMs < nowMs - OVERDUE_MS));
    const ahead = rows.filter((row) => row.toMs > nowMs && row.fromMs < nowMs + windowMs);
    const later = Math.max(0, total - overdue - sum(ahead));
    const highest = niceAbove(Math.max(overdue, ...ahead.map((row) => row.pending)));
    const y = scaleOf(highest, plot);
    this.svg.setAttribute("aria-label", describe({ ahead, overdue, later, windowMs }));
    morph(this.#moving, ahead.map((row) => bar(row, placeOf(row.fromMs, row.toMs), plot.left + (row.fromMs - nowMs) * perMs, perMs, y, plot.bottom)));
    morph(
      this.svg,
      s("defs", {}, s("clipPath", { id: "due-plot" }, s("rect", { x: plot.left, y: 0, width: plot.right - plot.left, height: HEIGHT }))),
      this.grid(highest, y, plot),
      this.ticks(windowMs, steps, plot, (part) => `+${duration(windowMs * part)}`),
      overdue ? overdueBar(overdue, placeOf(null, nowMs), y, plot.bottom) : null,
      this.#plot,
      nowLine(plot),
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
}

function overdueBar(overdue, href, y, bottom) {
  const title = `${counted(overdue, "message")} overdue`;
  return s(
    "g",
    { "data-key": "overdue" },
    s("a", { href, "aria-label": title }, barShape("due-overdue", overdue, LEFT + 8, OVERDUE_WIDTH - 18, y, bottom, s("title", {}, title))),
    s("text", { class: "tick middle", x: LEFT + OVERDUE_WIDTH / 2 - 1, y: HEIGHT - 8 }, "overdue"),
  );
}

function bar(row, href, x, perMs, y, bottom) {
  const width = Math.max(LEAST_BAR_WIDTH, (row.toMs - row.fromMs) * perMs - GAP);
  const title = `${counted(row.pending, "message")} due from ${iso(row.fromMs)} to ${iso(row.toMs)}`;
  return s("a", { href, "aria-label": title, "data-key": row.toMs }, barShape("due-bar", row.pending, x, width, y, bottom, s("title", {}, title)));
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
