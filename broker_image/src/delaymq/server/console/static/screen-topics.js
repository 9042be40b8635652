// Topics: the paged list, and one topic with its queues.

import { get } from "./api.js";
import { h } from "./dom.js";
import { bytes, count, counted, duration, time } from "./format.js";
import { Pages, PAGE_ROWS } from "./paging.js";
import { badge, choice, empty, facts, groupLink, heading, link, loading, place, searchField, section, table, topicLink } from "./parts.js";

const POLL_MS = 3_000;
const KINDS = [
  ["normal", "Normal"],
  ["retry", "Retries"],
  ["deadLetter", "Dead letters"],
  ["system", "System"],
  ["all", "All"],
];
const COLUMNS = [
  { title: "Topic" },
  { title: "Messages", numeric: true, hint: "currently in the topic's queues" },
  { title: "Stored", numeric: true, hint: "since the broker started" },
  { title: "Pending", numeric: true, hint: "undelivered delayed messages of this topic" },
  { title: "Delivered", numeric: true, hint: "delayed messages delivered since the broker started", wide: true },
  { title: "Queues", numeric: true, wide: true, hint: "read / write" },
  { title: "Permission", wide: true },
  { title: "Last stored", wide: true },
];
const WHEN_GONE = { recreate: null, deadLetter: "due messages become dead letters", drop: "due messages are dropped" };
const PERMISSIONS = { rw: "read, write", r: "read only", w: "write only", "": "none" };

/** #/topics */
export function topicsScreen(view, { parameters }) {
  let contains = parameters.get("contains") ?? "";
  let kind = parameters.get("kind") ?? "normal";
  const pages = new Pages(() => refresh());
  const changed = () => {
    history.replaceState(null, "", place(["topics"], { contains, kind: kind === "normal" ? null : kind }));
    pages.reset();
    refresh();
  };
  const search = searchField("Search topics", contains, (text) => {
    contains = text;
    changed();
  });
  const head = heading("Topics", search);
  const kinds = () =>
    choice("Kind of topic", KINDS, kind, (chosen) => {
      kind = chosen;
      changed();
    });
  view.render(head, kinds(), loading());
  const refresh = view.poll(POLL_MS, async (signal) => {
    const answer = await get("topics", { kind, contains, after: pages.after, limit: PAGE_ROWS }, signal);
    const rows = answer.topics.map((each) => ({ key: each.topic, cells: cells(each) }));
    const body = rows.length ? table("topics", COLUMNS, rows, { caption: "Topics" }) : nothing(contains, kind);
    view.render(head, kinds(), body, pages.controls("topics", rows.length, answer.next, answer.total));
  });
}

function cells(each) {
  return [
    [topicLink(each.topic), each.kind === "normal" ? null : [" ", badge(kindName(each.kind))]],
    count(each.messages),
    count(each.stored),
    each.pending === null ? "–" : count(each.pending),
    count(each.delivered),
    `${each.readQueues} / ${each.writeQueues}`,
    each.permission === "rw" ? "rw" : badge(PERMISSIONS[each.permission] ?? each.permission, "warn"),
    time(each.lastStoredMs),
  ];
}

function kindName(kind) {
  return { retry: "retries", deadLetter: "dead letters", system: "system" }[kind] ?? kind;
}

function nothing(contains, kind) {
  if (contains) return empty(`No topic name contains “${contains}”.`);
  if (kind !== "normal" && kind !== "all") return empty("There are no topics of this kind.");
  return empty("There are no topics. Send a message, and the broker creates one:", 'delaymq send Orders "hello later" --delay 5s');
}

/** #/topics/NAME */
export function topicScreen(view, { name }) {
  view.render(heading(name), loading());
  view.poll(POLL_MS, async (signal) => {
    const [topic, delay] = await Promise.all([get(`topics/${encodeURIComponent(name)}`, {}, signal), get("delay", {}, signal)]);
    const pauses = delay.pauses.filter((each) => each.topic === name);
    view.render(
      heading(name, links(topic)),
      pauses.length ? paused(pauses, name) : null,
      facts([
        ["Messages", count(topic.messages)],
        ["Stored since startup", count(topic.stored)],
        ["Delayed, pending", pending(topic.pending, topic.delaySettings.maxPendingMessages, count)],
        ["Delayed, pending bytes", pending(topic.pendingBytes, topic.delaySettings.maxPendingBytes, bytes)],
        ...promises(topic.delaySettings),
        ["Overdue now", topic.delayTreatment ? treatmentText(topic.delayTreatment) : null],
        ["Delayed, delivered since startup", count(topic.delivered)],
        ["Last stored", time(topic.lastStoredMs)],
        ["Permission", PERMISSIONS[topic.permission] ?? topic.permission],
        ["Bytes", typeof topic.bytes === "number" ? bytes(topic.bytes) : null],
      ]),
      section("Groups", {}, groups(topic)),
      section("Queues", { beside: h("span", { class: "quiet" }, counted(topic.queues.length, "queue")) }, queues(topic)),
    );
  });
}

function pending(value, limit, shown) {
  if (value === null) return "not counted yet";
  return typeof limit === "number" ? `${shown(value)} of at most ${shown(limit)}` : shown(value);
}

/** The delay settings that the topic has. */
function promises(settings) {
  const { maxDelaySeconds, maxPerSecond, spreadOverMs, overdue, whenTopicIsGone, latenessObjective } = settings;
  return [
    ["Longest delay", typeof maxDelaySeconds === "number" ? duration(maxDelaySeconds * 1_000) : null],
    ["Highest rate", typeof maxPerSecond === "number" ? `${count(maxPerSecond)} per second` : null],
    ["Due together, delivered over", typeof spreadOverMs === "number" ? duration(spreadOverMs) : null],
    ["Overdue after a downtime", overdue ? overdueText(overdue) : null],
    ["If the topic is deleted", WHEN_GONE[whenTopicIsGone] ?? whenTopicIsGone ?? null],
    ["Lateness objective", latenessObjective ? `${latenessObjective.percent} % within ${duration(latenessObjective.withinMs)}` : null],
  ];
}

function paused(pauses, name) {
  const ofTopic = pauses.find((each) => each.group === null);
  const what = ofTopic ? ["Deliveries of delayed messages have been paused since ", time(ofTopic.sinceMs)] : `${counted(pauses.length, "group")} of delayed messages ${pauses.length === 1 ? "is" : "are"} paused`;
  return h("p", { class: "hold", role: "note", "data-key": "paused" }, what, ". ", link(place(["delays"], { topic: name }), "Delays"));
}

function overdueText({ treatment, overMs, afterMs }) {
  const texts = {
    spread: `delivered over ${duration(overMs ?? 0)}`,
    shift: "each as late as the first one",
    drop: "dropped",
    pause: "the topic is paused",
  };
  const after = typeof afterMs === "number" ? ` (downtimes from ${duration(afterMs)} on)` : "";
  return `${texts[treatment] ?? "delivered immediately"}${after}`;
}

/** The treatment after a downtime that is in progress. */
function treatmentText({ treatment, upToMs, untilMs }) {
  const texts = {
    spread: "delivered evenly until ",
    shift: `delivered ${duration(untilMs - upToMs)} after their due times until `,
    drop: "being dropped",
    pause: "the topic is being paused",
  };
  return [texts[treatment] ?? treatment, untilMs === null ? null : time(untilMs)];
}

function links(topic) {
  return [
    link(place(["messages"], { topic: topic.topic }), "Messages", { class: "button" }),
    topic.pending ? link(place(["delays"], { topic: topic.topic }), "Delays", { class: "button" }) : null,
  ];
}

function groups(topic) {
  if (!topic.groups.length) {
    return empty("No group has consumed from this topic. Consume its messages with:", `delaymq receive ${topic.topic} --follow`);
  }
  return h("ul", { class: "inline" }, topic.groups.map((group) => h("li", { "data-key": group }, groupLink(group))));
}

function queues(topic) {
  const columns = [
    { title: "Queue", numeric: true },
    { title: "Messages", numeric: true },
    { title: "From offset", numeric: true },
    { title: "To offset", numeric: true, hint: "offset of the next message" },
    { title: "Last stored" },
  ];
  const rows = topic.queues.map((queue) => ({
    key: queue.queueId,
    cells: [queue.queueId, count(queue.maxOffset - queue.minOffset), count(queue.minOffset), count(queue.maxOffset), time(queue.lastStoredMs)],
  }));
  return rows.length ? table("queues", columns, rows, { caption: `Queues of ${topic.topic}` }) : empty("The topic has no queues on this broker.");
}
