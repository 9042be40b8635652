// Formatting of numbers, sizes and times.

import { h } from "./dom.js";

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en-US", { notation: "compact" });
const tenths = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
const weekday = new Intl.DateTimeFormat("en-US", { weekday: "short" });
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const SECOND_MS = 1000;
const MINUTE_MS = 60 * SECOND_MS;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;

/** 1234567 → 1,234,567; a dash for unknown values. */
export function count(value) {
  return typeof value === "number" ? whole.format(value) : "–";
}

/** 1200000 → 1.2M. */
export function rounded(value) {
  return compact.format(value);
}

/** "1 message", "1,234 messages". */
export function counted(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** A rate: one decimal below 100 per second, integers above. */
export function rate(perSecond) {
  if (typeof perSecond !== "number") return "–";
  return perSecond < 100 ? tenths.format(perSecond) : whole.format(perSecond);
}

export function bytes(value) {
  if (typeof value !== "number") return "–";
  let unit = 0;
  let left = value;
  while (left >= 1024 && unit < BYTE_UNITS.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? whole.format(left) : tenths.format(left)} ${BYTE_UNITS[unit]}`;
}

export function percent(ratio) {
  return typeof ratio === "number" ? `${tenths.format(ratio * 100)} %` : "–";
}

/** A duration in its two largest units: 850 ms, 4.2 s, 3 min 20 s, 2 d 4 h. */
export function duration(ms) {
  if (typeof ms !== "number") return "–";
  const length = Math.abs(ms);
  if (length < SECOND_MS) return `${Math.round(length)} ms`;
  if (length < 10 * SECOND_MS) return `${tenths.format(length / SECOND_MS)} s`;
  const seconds = Math.round(length / SECOND_MS);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return pair(Math.floor(seconds / 60), "min", seconds % 60, "s");
  const minutes = Math.round(length / MINUTE_MS);
  if (minutes < 1440) return pair(Math.floor(minutes / 60), "h", minutes % 60, "min");
  const hours = Math.round(length / HOUR_MS);
  return pair(Math.floor(hours / 24), "d", hours % 24, "h");
}

/** A countdown, in whole seconds: "in 12 s", "now", "3 s overdue". */
export function until(ms) {
  const seconds = Math.round(ms / SECOND_MS);
  if (seconds > 0) return `in ${duration(seconds * SECOND_MS)}`;
  return seconds > -2 ? "now" : `${duration(-seconds * SECOND_MS)} overdue`;
}

/** A level's delay as in messageDelayLevel: 5s, 10m, 2h, 7d. */
export function delayName(ms) {
  if (typeof ms !== "number") return "–";
  for (const [size, unit] of [[DAY_MS, "d"], [HOUR_MS, "h"], [MINUTE_MS, "m"], [SECOND_MS, "s"]]) {
    if (ms >= size && ms % size === 0) return `${ms / size}${unit}`;
  }
  return `${ms}ms`;
}

/** The schedule of a repeating message: "0 9 * * 1-5 Europe/Berlin", "every 15m"; empty for other messages. */
export function scheduleText(repeats) {
  if (!repeats) return "";
  return repeats.cron === null ? `every ${delayName(repeats.everyMs)}` : `${repeats.cron} ${repeats.zone}`;
}

/** Local time as ISO 8601 with its offset: 2026-11-21T12:31:24.042+01:00. */
export function iso(ms) {
  const at = new Date(ms);
  const offset = -at.getTimezoneOffset();
  const sign = offset < 0 ? "-" : "+";
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`;
  const zone = `${sign}${two(Math.floor(Math.abs(offset) / 60))}:${two(Math.abs(offset) % 60)}`;
  return `${day(at)}T${clock}${zone}`;
}

/** Local date and time: 2026-11-21 12:31:24. */
export function dateTime(ms) {
  return iso(ms).slice(0, 19).replace("T", " ");
}

/** Local weekday and time: Sat 12:31. */
export function weekdayTime(ms) {
  const at = new Date(ms);
  return `${weekday.format(at)} ${two(at.getHours())}:${two(at.getMinutes())}`;
}

/** A time in the browser's time zone; the title is the exact time with its offset. */
export function time(ms, { milliseconds = false } = {}) {
  if (typeof ms !== "number") return "–";
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return "–";
  let text = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  if (milliseconds) text += `.${String(at.getMilliseconds()).padStart(3, "0")}`;
  if (day(at) !== day(new Date())) text = `${day(at)} ${text}`;
  return h("time", { datetime: at.toISOString(), title: iso(ms) }, text);
}

/** The value of an <input type="datetime-local">. */
export function asInput(ms) {
  return ms === null ? "" : iso(ms).slice(0, 19);
}

/** The local date of a Date: 2026-11-21. */
export function day(at) {
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

function pair(large, largeUnit, small, smallUnit) {
  return small === 0 ? `${large} ${largeUnit}` : `${large} ${largeUnit} ${small} ${smallUnit}`;
}

function two(value) {
  return String(value).padStart(2, "0");
}
