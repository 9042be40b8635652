// One message: its details, its body, and its history.

import { brokerNow, get } from "./api.js";
import { DelayActions } from "./delay-actions.js";
import { h } from "./dom.js";
import { bytes, count, duration, scheduleText, time, until } from "./format.js";
import { empty, facts, groupLink, heading, loading, section, table, topicLink } from "./parts.js";
import { stateBadge } from "./screen-messages.js";

const POLL_MS = 2_000;
const EVENTS = {
  stored: ["Stored", ""],
  pending: ["Pending", "warn"],
  due: ["Due", ""],
  delivered: ["Delivered", "good"],
  consumed: ["Consumed", "good"],
  retried: ["Sent back for a retry", "warn"],
  deadLettered: ["Became a dead letter", "bad"],
  resent: ["Resent", "good"],
  dropped: ["Dropped", "bad"],
  moved: ["Moved to another time", ""],
  fired: ["Delivered early on request", ""],
  cancelled: ["Cancelled", "bad"],
  expired: ["Dropped as too late", "bad"],
};

/** #/messages/ID?topic=NAME; the topic is required only for a unique id. */
export function messageScreen(view, { name, parameters }) {
  const topic = parameters.get("topic");
  let isRaw = false;
  let message = null;
  const actions = new DelayActions(view, () => {
    draw();
    refresh();
  });
  const draw = () => {
    view.render(
      heading("Message", stateBadge(message.state)),
      h("p", { class: "id subtitle", "data-key": "id" }, message.messageId),
      h(
        "div",
        { class: "columns", "data-key": "columns" },
        section("History", {}, life(message)),
        section("Details", {}, about(message)),
      ),
      actions.section(message),
      section("Body", { beside: formatChoice(message, isRaw, (raw) => { isRaw = raw; draw(); }) }, body(message, isRaw)),
      section("Properties", {}, properties(message)),
    );
  };
  view.render(heading("Message"), h("p", { class: "id subtitle", "data-key": "id" }, name), loading());
  const refresh = view.poll(POLL_MS, async (signal) => {
    message = await get(`messages/${encodeURIComponent(name)}`, { topic }, signal);
    draw();
  });
}

function about(message) {
  return facts([
    ["Topic", topicLink(message.topic)],
    ["Keys", message.keys.length ? message.keys.join(" ") : "none"],
    ["Tag", message.tags || "none"],
    ["Born", [time(message.bornMs, { milliseconds: true }), message.bornHost ? ` at ${message.bornHost}` : null]],
    ["Stored", time(message.storedMs, { milliseconds: true })],
    [message.repeats ? "Next run" : "Due", message.dueMs === null ? null : [time(message.dueMs, { milliseconds: true }), message.delayLevel ? ` (level ${message.delayLevel})` : null]],
    ...schedule(message),
    ["Queue", message.queueOffset === null ? `${message.queueId}, when it is due` : `${message.queueId}, offset ${count(message.queueOffset)}`],
    ["Physical offset", count(message.physicalOffset)],
    ["Offset message id", h("span", { class: "id" }, message.offsetMessageId)],
    ["Unique id", h("span", { class: "id" }, message.messageId)],
    ["Retries", count(message.reconsumeTimes)],
    ["Bytes", count(message.bytes)],
  ]);
}

/** Facts about the schedule of a repeating message. */
function schedule({ repeats }) {
  if (!repeats) return [];
  const { run, runs, lastRunMs, untilMs, missed } = repeats;
  const taken = run === null ? "unknown" : runs === null ? count(run) : `${count(run)} of ${count(runs)}`;
  return [
    ["Repeats", scheduleText(repeats)],
    ["Runs so far", [taken, lastRunMs === null ? null : [", the last at ", time(lastRunMs, { milliseconds: true })]]],
    ["Ends", untilMs === null ? (runs === null ? "when it is cancelled" : `after ${count(runs)} runs`) : time(untilMs)],
    ["Missed runs", missed === "all" ? "are delivered" : missed === "none" ? "are skipped" : "only the latest is delivered"],
  ];
}

function life(message) {
  const now = brokerNow();
  const events = message.life.map((event, at) => {
    const [title, kind] = EVENTS[event.event] ?? [event.event, ""];
    const isAhead = event.atMs !== null && event.atMs > now;
    const before = at > 0 ? message.life[at - 1].atMs : null;
    const since = event.atMs !== null && before !== null && event.atMs > before && !isAhead ? `, ${duration(event.atMs - before)} later` : null;
    return h(
      "li",
      { class: `${isAhead || event.event === "pending" ? "ahead" : "past"} ${kind}`, "data-event": event.event, "data-key": `${at} ${event.event} ${event.group ?? ""}` },
      h("div", { class: "life-title" }, h("strong", {}, title), event.group ? [" by ", groupLink(event.group)] : null, isAhead ? ` ${until(event.atMs - now)}` : null),
      h("div", { class: "life-when" }, event.atMs === null ? null : time(event.atMs, { milliseconds: true }), since),
      event.detail ? h("div", { class: "life-detail" }, event.detail) : null,
    );
  });
  return events.length ? h("ol", { class: "life" }, events) : empty("No events are recorded.");
}

function formatChoice({ body: { text } }, isRaw, choose) {
  if (text === null || pretty(text) === null) return null;
  return h("button", { type: "button", "aria-pressed": String(!isRaw), onclick: () => choose(!isRaw) }, "Format JSON");
}

function body({ body: { text, base64, bytes: size, truncated, notUnpacked } }, isRaw) {
  if (size === 0) return empty("The body is empty.");
  const shown = text === null ? base64 : isRaw ? text : pretty(text) ?? text;
  return [
    h("pre", { class: "body", tabindex: 0, "aria-label": "Body", "data-key": "body" }, shown),
    h("p", { class: "note" }, `${bytes(size)}${text === null ? ", binary: shown as base64" : ""}${truncated ? ", truncated" : ""}.`),
    notUnpacked && h("p", { class: "note" }, `The body is shown as stored: ${notUnpacked}.`),
  ];
}

function pretty(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null ? JSON.stringify(value, null, 2) : null;
  } catch {
    return null;
  }
}

function properties(message) {
  const rows = Object.entries(message.properties).map(([name, value]) => ({ key: name, cells: [h("code", {}, name), h("span", { class: "wrap" }, value)] }));
  return rows.length ? table("properties", [{ title: "Name" }, { title: "Value" }], rows, { caption: "Properties" }) : empty("The message has no properties.");
}
