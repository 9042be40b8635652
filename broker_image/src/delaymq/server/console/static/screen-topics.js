// Topics: all of them in pages, and one with its queues.

import { get } from "./api.js";
import { h } from "./dom.js";
import { bytes, count, counted, time } from "./format.js";
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
  { title: "Messages", numeric: true, hint: "kept in its queues now" },
  { title: "Stored", numeric: true, hint: "since the broker's start" },
  { title: "Waiting", numeric: true, hint: "delayed messages for this topic that are not due yet" },
  { title: "Delivered", numeric: true, hint: "delayed messages handed over since the broker's start", wide: true },
  { title: "Queues", numeric: true, wide: true, hint: "to read / to write" },
  { title: "Permission", wide: true },
  { title: "Last stored", wide: true },
];
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
  if (contains) return empty(`No topic has “${contains}” in its name.`);
  if (kind !== "normal" && kind !== "all") return empty("There is none of this kind yet.");
  return empty("No topic yet. Send a message and the broker makes one:", 'delaymq send Orders "hello later" --delay 5s');
}

/** #/topics/NAME */
export function topicScreen(view, { name }) {
  view.render(heading(name), loading());
  view.poll(POLL_MS, async (signal) => {
    const topic = await get(`topics/${encodeURIComponent(name)}`, {}, signal);
    view.render(
      heading(name, links(topic)),
      facts([
        ["Messages", count(topic.messages)],
        ["Stored since the start", count(topic.stored)],
        ["Delayed, waiting", topic.pending === null ? "not counted yet" : count(topic.pending)],
        ["Delayed, delivered since the start", count(topic.delivered)],
        ["Last stored", time(topic.lastStoredMs)],
        ["Permission", PERMISSIONS[topic.permission] ?? topic.permission],
        ["Bytes", typeof topic.bytes === "number" ? bytes(topic.bytes) : null],
      ]),
      section("Groups", {}, groups(topic)),
      section("Queues", { beside: h("span", { class: "quiet" }, counted(topic.queues.length, "queue")) }, queues(topic)),
    );
  });
}

function links(topic) {
  return [
    link(place(["messages"], { topic: topic.topic }), "Messages", { class: "button" }),
    topic.pending ? link(place(["delays"], { topic: topic.topic }), "Delays", { class: "button" }) : null,
  ];
}

function groups(topic) {
  if (!topic.groups.length) {
    return empty("No group has consumed from it. Take its messages with:", `delaymq receive ${topic.topic} --follow`);
  }
  return h("ul", { class: "inline" }, topic.groups.map((group) => h("li", { "data-key": group }, groupLink(group))));
}

function queues(topic) {
  const columns = [
    { title: "Queue", numeric: true },
    { title: "Messages", numeric: true },
    { title: "From offset", numeric: true },
    { title: "To offset", numeric: true, hint: "the next message gets this one" },
    { title: "Last stored" },
  ];
  const rows = topic.queues.map((queue) => ({
    key: queue.queueId,
    cells: [queue.queueId, count(queue.maxOffset - queue.minOffset), count(queue.minOffset), count(queue.maxOffset), time(queue.lastStoredMs)],
  }));
  return rows.length ? table("queues", columns, rows, { caption: `Queues of ${topic.topic}` }) : empty("It has no queue on this broker.");
}
