// Pending delayed messages: by due time as a live chart, by level with the level's lateness, timed ones, and by topic.

import { brokerNow, get } from "./api.js";
import { h, s } from "./dom.js";
import { count, counted, delayName, duration, time, until } from "./format.js";
import { GroupChanges } from "./delay-groups.js";
import { DueChart, fittingWindow, WINDOWS } from "./due-chart.js";
import { badge, bar, choice, empty, heading, link, loading, note, nothingPending, place, section, table, tile, topicLink } from "./parts.js";

const POLL_MS = 1_000;
const TOPICS_POLL_MS = 4_000;
const NEXT_MESSAGES = 8;
const TOPICS_SHOWN = 10;
const GROUPS_SHOWN = 100;
// The lateness chart: a logarithmic scale from milliseconds to three hours.
const DECADES = 7;
const SCALE_WIDTH = 120;
const LATE_WARN_MS = 1_000;
// In place of a level's number.
const TIMED = "timed";

/** #/delays?level=N&kind=timed&topic=NAME */
export function delaysScreen(view, { parameters }) {
  const filter = { level: parameters.get("level"), kind: parameters.get("kind"), topic: parameters.get("topic") };
  const chart = new DueChart();
  let chosen = WINDOWS.find(({ name }) => name === parameters.get("window")) ?? null;
  let topics = null;
  let groups = null;
  let latest = null;
  let refreshGroups = null;
  const placeOf = (from, end) => place(["delays", "list"], { ...filter, from, until: end });
  const choose = (name) => {
    chosen = WINDOWS.find((each) => each.name === name);
    history.replaceState(null, "", place(["delays"], { ...filter, window: name }));
    refresh();
  };
  const changes = new GroupChanges(view, () => {
    draw();
    refresh();
    refreshGroups?.();
  });
  const draw = () => {
    if (latest === null) return;
    const { delay, due, next, ofTopic } = latest;
    chart.show({ rows: due.rows, total: due.total, nowMs: brokerNow(), windowMs: chosen.windowMs, steps: chosen.steps, placeOf });
    view.render(
      heading("Delays", choice("Time window", WINDOWS.map(({ name }) => [name, name]), chosen.name, choose), forecastLink(filter)),
      held(delay.held),
      changes.outcome,
      changes.pauses(delay, filter.topic),
      filters(filter, chosen.name),
      tiles(delay, due, filter),
      chart.figure,
      due.complete === false ? note("The broker is still loading messages from before its start: this page is incomplete.") : null,
      h(
        "div",
        { class: "two", "data-key": "two" },
        section("By level", {}, levels(delay, ofTopic, filter)),
        h(
          "div",
          {},
          section("Next", {}, nextMessages(next, filter)),
          filter.topic === null ? section("By topic", {}, topics === null ? loading() : byTopic(topics)) : null,
        ),
      ),
      groups === null ? null : changes.groups(filter.topic, groups, due.total, isPaused(delay, filter.topic)),
    );
  };
  view.render(heading("Delays"), loading());
  const refresh = view.poll(POLL_MS, async (signal) => {
    if (chosen === null) {
      const all = await get("delay/pending", { by: "due", ...filter }, signal);
      chosen = fittingWindow(all.rows, all.total, brokerNow());
    }
    const [delay, due, next, ofTopic] = await Promise.all([
      get("delay", {}, signal),
      get("delay/pending", { by: "due", bucketMs: chosen.bucketMs, ...filter }, signal),
      get("delay/pending/messages", { ...filter, limit: NEXT_MESSAGES }, signal),
      filter.topic === null ? null : get("delay/pending", { by: "level", ...filter }, signal),
    ]);
    latest = { delay, due, next, ofTopic };
    draw();
  });
  if (filter.topic === null) {
    view.poll(TOPICS_POLL_MS, async (signal) => {
      topics = await get("delay/pending", { by: "topic", level: filter.level, kind: filter.kind, limit: TOPICS_SHOWN }, signal);
      draw();
    });
  }
  if (filter.topic !== null && filter.level === null && filter.kind === null) {
    refreshGroups = view.poll(TOPICS_POLL_MS, async (signal) => {
      groups = await get("delay/pending", { by: "group", topic: filter.topic, limit: GROUPS_SHOWN }, signal);
      draw();
    });
  }
}

/** The forecast cannot be limited to a level. */
function forecastLink({ level, kind, topic }) {
  return level === null ? link(place(["delays", "forecast"], { topic, kind }), "Forecast", { class: "button" }) : null;
}

function isPaused(delay, topic) {
  return (delay.pauses ?? []).some((each) => each.topic === topic && each.group === null);
}

function held(hold) {
  if (!hold) return null;
  const since = hold.sinceMs ? [" since ", time(hold.sinceMs)] : null;
  const text = {
    paused: [hold.sinceMs ? "Deliveries have been paused" : "Deliveries are paused", since, ". Resume them with ", h("code", {}, "delaymq delay resume"), "."],
    spread: ["Overdue messages are spread evenly until ", time(hold.untilMs), "."],
    drop: ["Overdue messages have been dropped instead of delivered", since, "."],
  }[hold.mode] ?? [`Deliveries are restricted: ${hold.mode}.`];
  return h("p", { class: "hold", role: "note", "data-key": "held" }, text);
}

function filters(filter, windowName) {
  const { level, kind, topic } = filter;
  if (level === null && kind === null && topic === null) return null;
  const kinds = { level: "messages with a level", timed: "timed messages" };
  const what = [level === null ? null : nameOf(level), kind === null ? null : kinds[kind] ?? kind, topic === null ? null : `topic ${topic}`];
  return h(
    "p",
    { class: "note", "data-key": "filter" },
    `Only ${what.filter(Boolean).join(", ")}. `,
    link(place(["delays"], { window: windowName }), "Show all"),
  );
}

function tiles(delay, due, filter) {
  const dues = due.rows.map((row) => row.nextDueMs).filter((at) => at !== null);
  const nextMs = dues.length ? Math.min(...dues) : null;
  const pending = partsOf(delay).reduce((all, part) => all + part.pending, 0);
  return h(
    "div",
    { class: "tiles", "data-key": "tiles" },
    tile("Pending", count(due.total), due.total === pending ? "in total" : `of ${count(pending)} in total`),
    tile("Next due", nextMs === null ? "–" : until(nextMs - brokerNow()), nextMs === null ? "no pending messages" : ["at ", time(nextMs)]),
    filter.topic === null ? lateTiles(chosenParts(delay, filter), filter) : null,
  );
}

function lateTiles(chosen, filter) {
  const used = chosen.filter((level) => level.lateness.maxMs > 0 || level.offset > 0);
  const worst = used.reduce((found, level) => (found && found.lateness.p99Ms >= level.lateness.p99Ms ? found : level), null);
  const isOne = filter.level !== null || filter.kind === TIMED;
  const where = worst === null ? "no deliveries since startup" : `${isOne ? "of" : "maximum:"} ${nameOf(worst.level)}`;
  return [
    tile("Lateness, 99th percentile", worst ? duration(worst.lateness.p99Ms) : "–", where),
    tile("Lateness, maximum", worst ? duration(Math.max(...used.map((level) => level.lateness.maxMs))) : "–", "since startup, including downtime"),
  ];
}

/** The levels, and timed messages in the form of a level. Older brokers have none. */
function partsOf({ levels: all, timed }) {
  if (!timed) return all;
  const { pending, delivered, nextDueMs, lateness } = timed;
  return [...all, { level: TIMED, inTable: true, delayMs: null, offset: delivered, maxOffset: delivered + pending, pending, nextDueMs, lateness }];
}

function chosenParts(delay, { level: chosen, kind }) {
  return partsOf(delay).filter(({ level }) => (chosen === null || String(level) === chosen) && (kind === null || (level === TIMED) === (kind === TIMED)));
}

function nameOf(level) {
  return level === TIMED ? "timed messages" : `level ${level}`;
}

/** Lateness is measured only by level; for a topic, the levels of its pending messages are shown. */
function levels(delay, ofTopic, filter) {
  const waiting = new Map((ofTopic?.rows ?? partsOf(delay)).map((row) => [row.timed ? TIMED : row.level, row]));
  const shown = chosenParts(delay, filter).filter(({ level }) => waiting.has(level));
  if (!shown.length) return empty("There are no pending messages.");
  const highest = Math.max(1, ...shown.map(({ level }) => waiting.get(level).pending));
  const columns = [
    { title: "Level", numeric: true },
    { title: "Delay", numeric: true },
    { title: "Pending", numeric: true },
    { title: "", wide: true },
    { title: "Next due" },
  ];
  if (!ofTopic)
    columns.push(
      { title: "p50", numeric: true, wide: true, hint: "50 % of the messages were at most this late" },
      { title: "p99", numeric: true, hint: "99 % of the messages were at most this late" },
      { title: "max", numeric: true, wide: true, hint: "maximum since startup" },
      { title: "Lateness", wide: true, hint: "bar from p50 to p99, mark at max; logarithmic from 1 ms to 3 h" },
    );
  const rows = shown.map((level) => {
    const { pending, nextDueMs } = waiting.get(level.level);
    return {
      key: level.level,
      kind: level.maxOffset === 0 ? "idle" : null,
      cells: [
        link(place(["delays"], level.level === TIMED ? { kind: TIMED } : { level: level.level }), level.level, { "aria-label": `only ${nameOf(level.level)}` }),
        level.level === TIMED ? "–" : level.inTable ? delayName(level.delayMs) : badge("not in the table", "warn", "the messages keep their due time"),
        count(pending),
        pending ? bar(pending / highest, level.level === TIMED ? counted(pending, "pending timed message") : `${counted(pending, "message")} pending in level ${level.level}`) : null,
        dueIn(nextDueMs),
        ...(ofTopic ? [] : late(level)),
      ],
    };
  });
  return [
    table("levels", columns, rows, { caption: ofTopic ? `Delayed messages of ${filter.topic} by level` : "Delayed messages and lateness by level" }),
    ofTopic ? note("Lateness is measured by level, not by topic.") : null,
  ];
}

function dueIn(atMs) {
  if (atMs === null) return "–";
  const aheadMs = atMs - brokerNow();
  return h("span", { class: aheadMs < -LATE_WARN_MS ? "nowrap bad-text" : "nowrap" }, until(aheadMs));
}

function late({ level, offset, lateness: { p50Ms, p99Ms, maxMs } }) {
  // There is no lateness without a delivery since startup.
  if (maxMs === 0 && p99Ms === 0 && offset === 0) return ["–", "–", "–", null];
  const figure = (ms) => h("span", { class: ms >= LATE_WARN_MS ? "warn-text" : null }, duration(ms));
  return [figure(p50Ms), figure(p99Ms), figure(maxMs), scale(level, p50Ms, p99Ms, maxMs)];
}

function scale(level, p50Ms, p99Ms, maxMs) {
  const x = (ms) => Math.min(1, Math.log10(1 + ms) / DECADES) * (SCALE_WIDTH - 2);
  const label = `${nameOf(level)}: 50 % at most ${duration(p50Ms)} late, 99 % at most ${duration(p99Ms)}, all at most ${duration(maxMs)}`;
  return s(
    "svg",
    { class: "scale", role: "img", "aria-label": label, viewBox: `0 0 ${SCALE_WIDTH} 12` },
    s("title", {}, label),
    s("line", { class: "grid", x1: 0, x2: SCALE_WIDTH, y1: 6, y2: 6 }),
    s("rect", { class: "scale-part", x: x(p50Ms), y: 3.5, width: Math.max(3, x(p99Ms) - x(p50Ms)), height: 5, rx: 2 }),
    s("rect", { class: "scale-max", x: x(maxMs), y: 1, width: 2, height: 10 }),
  );
}

function nextMessages(next, filter) {
  const { messages, total } = next;
  if (!messages.length) return nothingPending(filter.topic);
  const columns = [{ title: "Due" }, { title: "At", wide: true }, { title: "Topic" }, { title: "Level", numeric: true, wide: true }, { title: "Keys", wide: true }, { title: "Message" }];
  const rows = messages.map((each) => ({
    key: each.offsetMessageId,
    cells: [
      dueIn(each.dueMs),
      time(each.dueMs),
      topicLink(each.topic),
      each.delayLevel || TIMED,
      each.keys.join(" "),
      link(place(["messages", each.offsetMessageId]), each.messageId, { class: "id" }),
    ],
  }));
  return [
    table("next", columns, rows, { caption: "Messages that are due next" }),
    next.truncated ? note(`${count(messages.length)} of ${count(total)} pending messages. `, link(place(["delays", "list"], filter), "Show all")) : null,
  ];
}

function byTopic({ rows: found, truncated }) {
  if (!found.length) return empty("There are no pending messages.");
  const sorted = [...found].sort((one, other) => other.pending - one.pending).slice(0, TOPICS_SHOWN);
  const highest = sorted[0].pending;
  const columns = [{ title: "Topic" }, { title: "Pending", numeric: true }, { title: "", wide: true }, { title: "Next due" }, { title: "" }];
  const rows = sorted.map((each) => ({
    key: each.topic,
    cells: [
      [topicLink(each.topic), each.paused ? [" ", badge("paused", "warn")] : null],
      count(each.pending),
      bar(each.pending / highest, `${counted(each.pending, "message")} pending for ${each.topic}`),
      dueIn(each.nextDueMs),
      link(place(["delays"], { topic: each.topic }), "Filter", { "aria-label": `only ${each.topic}` }),
    ],
  }));
  return [
    table("by topic", columns, rows, { caption: "Delayed messages by topic" }),
    truncated ? note(`The ${count(rows.length)} topics with the most pending messages.`) : null,
  ];
}
