// Forecast: how many pending messages will be due in each of the next hours and days, and by topic.

import { get } from "./api.js";
import { h } from "./dom.js";
import { count, counted, day, time, weekdayTime } from "./format.js";
import { ForecastChart } from "./forecast-chart.js";
import { bar, choice, heading, link, loading, note, nothingPending, place, section, table, tile, topicLink } from "./parts.js";

const POLL_MS = 10_000;
const TOPICS_SHOWN = 50;
const KINDS = [
  [null, "All"],
  ["timed", "Timed"],
  ["level", "With a level"],
];
// The ranges in `due`: name, text, and start and end from now on.
const RANGES = [
  ["1m", "Within 1 min", null, 60_000],
  ["10m", "1 to 10 min", 60_000, 600_000],
  ["1h", "10 to 60 min", 600_000, 3_600_000],
  ["1d", "1 to 24 h", 3_600_000, 86_400_000],
  ["more", "After 24 h", 86_400_000, null],
];

/** #/delays/forecast?topic=NAME&kind=timed */
export function forecastScreen(view, { parameters }) {
  const topic = parameters.get("topic");
  let kind = parameters.get("kind");
  const hours = new ForecastChart("24 hours", weekdayTime);
  const days = new ForecastChart("30 days", (ms) => day(new Date(ms)));
  const charts = h("div", { class: "columns", "data-key": "charts" }, hours.element, days.element);
  const placeOf = (from, end) => place(["delays", "list"], { topic, kind, from, until: end });
  const choose = (chosen) => {
    kind = chosen;
    history.replaceState(null, "", place(["delays", "forecast"], { topic, kind }));
    refresh();
  };
  const head = () => heading("Forecast", choice("Kind of messages", KINDS, kind, choose), link(place(["delays"], { topic, kind }), "Delays", { class: "button" }));
  view.render(head(), loading());
  const refresh = view.poll(POLL_MS, async (signal) => {
    const forecast = await get("delay/forecast", { topic, kind, limit: TOPICS_SHOWN }, signal);
    const { asOfMs: nowMs, pending, complete } = forecast;
    if (pending > 0) {
      hours.show({ rows: forecast.hours, nowMs, placeOf });
      days.show({ rows: forecast.days, nowMs, placeOf });
    }
    view.render(
      head(),
      topic === null ? null : h("p", { class: "note", "data-key": "filter" }, `Only topic ${topic}. `, link(place(["delays", "forecast"], { kind }), "Show all")),
      tiles(forecast, placeOf),
      complete ? null : note("The broker is still loading messages from before its start: this page is incomplete."),
      pending > 0 ? charts : nothingPending(topic),
      pending > 0 && topic === null ? section("By topic", {}, byTopic(forecast, kind)) : null,
    );
  });
}

function tiles({ asOfMs, pending, due }, placeOf) {
  const figure = (value, from, end) => (value > 0 ? link(placeOf(from, end), count(value)) : count(value));
  const at = (ms) => (ms === null ? null : asOfMs + ms);
  const each = RANGES.map(([name, text, from, end]) => {
    const remark = from === null ? "including overdue" : end === null ? `from ${weekdayTime(at(from))}` : `until ${weekdayTime(at(end))}`;
    return tile(text, figure(due[name], at(from), at(end)), remark);
  });
  return h("div", { class: "tiles", "data-key": "tiles" }, tile("Pending", figure(pending, null, null), ["as of ", time(asOfMs)]), each);
}

function byTopic({ topics, truncated }, kind) {
  const highest = Math.max(1, ...topics.map((each) => each.pending));
  const columns = [
    { title: "Topic" },
    { title: "Pending", numeric: true },
    { title: "", wide: true },
    ...RANGES.map(([, text]) => ({ title: text, numeric: true })),
    { title: "" },
  ];
  const rows = topics.map(({ topic, pending, due }) => ({
    key: topic,
    cells: [
      topicLink(topic),
      count(pending),
      bar(pending / highest, `${counted(pending, "message")} pending for ${topic}`),
      ...RANGES.map(([name]) => count(due[name])),
      h(
        "span",
        { class: "nowrap" },
        link(place(["delays", "forecast"], { topic, kind }), "Forecast", { "aria-label": `forecast of ${topic}` }),
        " · ",
        link(place(["delays"], { topic, kind }), "Delays", { "aria-label": `delays of ${topic}` }),
      ),
    ],
  }));
  return [
    table("by topic", columns, rows, { caption: "Messages by topic and time until they are due" }),
    truncated ? note(`The ${count(rows.length)} topics with the most pending messages.`) : null,
  ];
}
