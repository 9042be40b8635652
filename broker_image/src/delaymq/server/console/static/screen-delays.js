// Delayed messages that wait: by due time as a live picture, by level with how late the level was, and by topic.

import { brokerNow, get } from "./api.js";
import { h, s } from "./dom.js";
import { count, counted, delayName, duration, time, until } from "./format.js";
import { DueChart, fittingWindow, WINDOWS } from "./due-chart.js";
import { badge, bar, choice, empty, heading, link, loading, note, place, section, table, tile, topicLink } from "./parts.js";

const POLL_MS = 1_000;
const TOPICS_POLL_MS = 4_000;
const NEXT_MESSAGES = 8;
const TOPICS_SHOWN = 10;
// The lateness graphic: a hundredth of a second … three hours are each told apart on a scale of powers of ten.
const DECADES = 7;
const SCALE_WIDTH = 120;
const LATE_WARN_MS = 1_000;

/** #/delays?level=N&topic=NAME */
export function delaysScreen(view, { parameters }) {
  const filter = { level: parameters.get("level"), topic: parameters.get("topic") };
  const chart = new DueChart();
  let chosen = WINDOWS.find(({ name }) => name === parameters.get("window")) ?? null;
  let topics = null;
  let latest = null;
  const choose = (name) => {
    chosen = WINDOWS.find((each) => each.name === name);
    history.replaceState(null, "", place(["delays"], { ...filter, window: name }));
    refresh();
  };
  const draw = () => {
    if (latest === null) return;
    const { delay, due, next, ofTopic } = latest;
    chart.show({ rows: due.rows, total: due.total, nowMs: brokerNow(), windowMs: chosen.windowMs, steps: chosen.steps });
    view.render(
      heading("Delays", choice("How far ahead", WINDOWS.map(({ name }) => [name, name]), chosen.name, choose)),
      held(delay.held),
      filters(filter, chosen.name),
      tiles(delay, due, filter),
      chart.element,
      due.complete === false ? note("The broker is still reading the topics of messages that waited at its start: this page is incomplete.") : null,
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
      topics = await get("delay/pending", { by: "topic", level: filter.level, limit: TOPICS_SHOWN }, signal);
      draw();
    });
  }
}

function held(hold) {
  if (!hold) return null;
  const since = hold.sinceMs ? [" since ", time(hold.sinceMs)] : null;
  const text = {
    paused: ["Deliveries are paused", since, ". They go on after ", h("code", {}, "delaymq delay resume"), "."],
    spread: ["What was overdue goes out evenly until ", time(hold.untilMs), "."],
    drop: ["What was overdue is dropped, not delivered", since, "."],
  }[hold.mode] ?? [`Deliveries are held: ${hold.mode}.`];
  return h("p", { class: "hold", role: "note", "data-key": "held" }, text);
}

function filters(filter, windowName) {
  if (filter.level === null && filter.topic === null) return null;
  const what = [filter.level === null ? null : `level ${filter.level}`, filter.topic === null ? null : `topic ${filter.topic}`];
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
  const pending = delay.levels.reduce((all, level) => all + level.pending, 0);
  return h(
    "div",
    { class: "tiles", "data-key": "tiles" },
    tile("Waiting", count(due.total), due.total === pending ? "in all levels" : `of ${count(pending)} in all levels`),
    tile("Next due", nextMs === null ? "–" : until(nextMs - brokerNow()), nextMs === null ? "nothing waits" : ["at ", time(nextMs)]),
    filter.topic === null ? lateTiles(chosenLevels(delay, filter), filter) : null,
  );
}

function lateTiles(chosen, filter) {
  const used = chosen.filter((level) => level.lateness.maxMs > 0 || level.offset > 0);
  const worst = used.reduce((found, level) => (found && found.lateness.p99Ms >= level.lateness.p99Ms ? found : level), null);
  const where = worst === null ? "nothing handed over since the start" : filter.level === null ? `highest of all levels: level ${worst.level}` : `of level ${worst.level}`;
  return [
    tile("Late, 99th percentile", worst ? duration(worst.lateness.p99Ms) : "–", where),
    tile("Late, longest", worst ? duration(Math.max(...used.map((level) => level.lateness.maxMs))) : "–", "since the start, downtime included"),
  ];
}

function chosenLevels(delay, filter) {
  return delay.levels.filter((level) => filter.level === null || String(level.level) === filter.level);
}

/** How late messages were is known by level only: of a topic there are the levels in which its messages wait. */
function levels(delay, ofTopic, filter) {
  const waiting = new Map((ofTopic?.rows ?? delay.levels).map((row) => [row.level, row]));
  const shown = chosenLevels(delay, filter).filter(({ level }) => waiting.has(level));
  if (!shown.length) return empty("Nothing waits.");
  const highest = Math.max(1, ...shown.map(({ level }) => waiting.get(level).pending));
  const columns = [
    { title: "Level", numeric: true },
    { title: "Delay", numeric: true },
    { title: "Waiting", numeric: true },
    { title: "", wide: true },
    { title: "Next due" },
  ];
  if (!ofTopic)
    columns.push(
      { title: "p50", numeric: true, wide: true, hint: "half of its messages were at most this late" },
      { title: "p99", numeric: true, hint: "99 of 100 of its messages were at most this late" },
      { title: "max", numeric: true, wide: true, hint: "the latest one since the start" },
      { title: "Lateness", wide: true, hint: "from p50 to p99, a stroke at max; 1 ms to 3 h in powers of ten" },
    );
  const rows = shown.map((level) => {
    const { pending, nextDueMs } = waiting.get(level.level);
    return {
      key: level.level,
      kind: level.maxOffset === 0 ? "idle" : null,
      cells: [
        link(place(["delays"], { level: level.level }), level.level, { "aria-label": `only level ${level.level}` }),
        level.inTable ? delayName(level.delayMs) : badge("not in the table", "warn", "its messages keep their due time"),
        count(pending),
        pending ? bar(pending / highest, `${counted(pending, "message")} waiting in level ${level.level}`) : null,
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
  // Without a message handed over since the start there is nothing to tell.
  if (maxMs === 0 && p99Ms === 0 && offset === 0) return ["–", "–", "–", null];
  const figure = (ms) => h("span", { class: ms >= LATE_WARN_MS ? "warn-text" : null }, duration(ms));
  return [figure(p50Ms), figure(p99Ms), figure(maxMs), scale(level, p50Ms, p99Ms, maxMs)];
}

function scale(level, p50Ms, p99Ms, maxMs) {
  const x = (ms) => Math.min(1, Math.log10(1 + ms) / DECADES) * (SCALE_WIDTH - 2);
  const label = `level ${level}: half at most ${duration(p50Ms)} late, 99 % at most ${duration(p99Ms)}, all at most ${duration(maxMs)}`;
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
  if (!messages.length) return empty("Nothing waits. Send something for later:", `delaymq send ${filter.topic ?? "Orders"} "hello later" --delay 30s`);
  const columns = [{ title: "Due" }, { title: "At", wide: true }, { title: "Topic" }, { title: "Level", numeric: true, wide: true }, { title: "Keys", wide: true }, { title: "Message" }];
  const rows = messages.map((each) => ({
    key: each.offsetMessageId,
    cells: [
      dueIn(each.dueMs),
      time(each.dueMs),
      topicLink(each.topic),
      each.delayLevel,
      each.keys.join(" "),
      link(place(["messages", each.offsetMessageId]), each.messageId, { class: "id" }),
    ],
  }));
  return [
    table("next", columns, rows, { caption: "Messages that are due next" }),
    next.truncated ? note(`${count(messages.length)} of ${count(total)} waiting messages.`) : null,
  ];
}

function byTopic({ rows: found, truncated }) {
  if (!found.length) return empty("Nothing waits.");
  const sorted = [...found].sort((one, other) => other.pending - one.pending).slice(0, TOPICS_SHOWN);
  const highest = sorted[0].pending;
  const columns = [{ title: "Topic" }, { title: "Waiting", numeric: true }, { title: "", wide: true }, { title: "Next due" }, { title: "" }];
  const rows = sorted.map((each) => ({
    key: each.topic,
    cells: [
      topicLink(each.topic),
      count(each.pending),
      bar(each.pending / highest, `${counted(each.pending, "message")} waiting for ${each.topic}`),
      dueIn(each.nextDueMs),
      link(place(["delays"], { topic: each.topic }), "Only this", { "aria-label": `only ${each.topic}` }),
    ],
  }));
  return [
    table("by topic", columns, rows, { caption: "Delayed messages by topic" }),
    truncated ? note(`The ${count(rows.length)} topics with the most waiting messages.`) : null,
  ];
}
