// Consumer groups: the list with lags, and one group with its members and its progress in each queue.

import { get } from "./api.js";
import { h } from "./dom.js";
import { count, counted, time } from "./format.js";
import { Pages, PAGE_ROWS } from "./paging.js";
import { badge, bar, empty, facts, groupLink, heading, link, loading, notable, place, searchField, section, table, topicLink } from "./parts.js";

const POLL_MS = 3_000;
const SHOWN_TOPICS = 3;
const COLUMNS = [
  { title: "Group" },
  { title: "Lag", numeric: true, hint: "unconsumed messages in the group's topics" },
  { title: "Members", numeric: true, hint: "connected members" },
  { title: "Dead letters", numeric: true },
  { title: "Topics", wide: true },
  { title: "Model", wide: true },
];
const MODELS = { CLUSTERING: "clustering", BROADCASTING: "broadcasting" };
const TYPES = { CONSUME_PASSIVELY: "push", CONSUME_ACTIVELY: "pull" };

/** #/groups */
export function groupsScreen(view, { parameters }) {
  let contains = parameters.get("contains") ?? "";
  const pages = new Pages(() => refresh());
  const search = searchField("Search groups", contains, (text) => {
    contains = text;
    history.replaceState(null, "", place(["groups"], { contains }));
    pages.reset();
    refresh();
  });
  const head = heading("Groups", search);
  view.render(head, loading());
  const refresh = view.poll(POLL_MS, async (signal) => {
    const answer = await get("groups", { contains, after: pages.after, limit: PAGE_ROWS }, signal);
    const rows = answer.groups.map((each) => ({ key: each.group, cells: cells(each) }));
    const body = rows.length ? table("groups", COLUMNS, rows, { caption: "Consumer groups" }) : nothing(contains);
    view.render(head, body, pages.controls("groups", rows.length, answer.next, answer.total));
  });
}

function cells(each) {
  const more = each.topics.length - SHOWN_TOPICS;
  return [
    groupLink(each.group),
    notable(each.lag, each.members ? "warn-text" : "bad-text"),
    each.members ? count(each.members) : badge("none", each.lag ? "warn" : "quiet"),
    each.deadLetters ? link(place(["deadletters", each.group]), count(each.deadLetters), { class: "bad-text" }) : count(each.deadLetters),
    [each.topics.slice(0, SHOWN_TOPICS).map((topic) => [topicLink(topic), " "]), more > 0 ? `and ${count(more)} more` : null],
    [MODELS[each.model] ?? each.model ?? "–", each.consumeType ? `, ${TYPES[each.consumeType] ?? each.consumeType}` : null],
  ];
}

function nothing(contains) {
  if (contains) return empty(`No group name contains “${contains}”.`);
  return empty("There are no consumer groups. Start a consumer:", "delaymq receive Orders --group shop --follow");
}

/** #/groups/NAME */
export function groupScreen(view, { name }) {
  view.render(heading(name), loading());
  view.poll(POLL_MS, async (signal) => {
    const group = await get(`groups/${encodeURIComponent(name)}`, {}, signal);
    view.render(
      heading(
        name,
        group.deadLetters ? link(place(["deadletters", name]), counted(group.deadLetters, "dead letter"), { class: "button" }) : null,
      ),
      facts([
        ["Lag", notable(group.lag, "warn-text")],
        ["Members", count(group.members.length)],
        ["Dead letters", count(group.deadLetters)],
        ["Model", MODELS[group.model] ?? group.model ?? "unknown: no member is connected"],
        ["Consumption", TYPES[group.consumeType] ?? group.consumeType ?? null],
      ]),
      section("Members", {}, members(group)),
      section("Subscriptions", {}, subscriptions(group)),
      section("Progress", { beside: h("span", { class: "quiet" }, counted(group.progress.length, "queue")) }, progress(group)),
    );
  });
}

function members(group) {
  if (!group.members.length) {
    return empty(
      group.lag > 0
        ? `No member is connected, and the lag is ${counted(group.lag, "message")}. Start a consumer of this group.`
        : "No member is connected.",
    );
  }
  const columns = [{ title: "Client" }, { title: "Address" }, { title: "Language", wide: true }, { title: "Version", wide: true }];
  const rows = group.members.map((each) => ({
    key: each.clientId,
    cells: [h("span", { class: "id" }, each.clientId), each.address ?? badge("expected back", "warn", "was connected before the broker's restart"), each.language ?? "–", String(each.version ?? "–")],
  }));
  return table("members", columns, rows, { caption: `Members of ${group.group}` });
}

function subscriptions(group) {
  if (!group.subscriptions.length) return empty("Subscriptions are known only while a member is connected.");
  const columns = [{ title: "Topic" }, { title: "Expression" }, { title: "Type", wide: true }];
  const rows = group.subscriptions.map((each) => ({
    key: each.topic,
    cells: [topicLink(each.topic), h("code", {}, each.expression), each.type],
  }));
  return table("subscriptions", columns, rows, { caption: `Subscriptions of ${group.group}` });
}

function progress(group) {
  if (!group.progress.length) return empty("The group has not consumed any messages.");
  const columns = [
    { title: "Topic" },
    { title: "Queue", numeric: true },
    { title: "Lag", numeric: true },
    { title: "Consumed", hint: "position between the oldest and the newest message of the queue" },
    { title: "Offset", numeric: true },
    { title: "Newest", numeric: true, wide: true },
    { title: "Last consumed", wide: true, hint: "store time of the last consumed message" },
  ];
  const rows = group.progress.map((each) => {
    const whole = each.maxOffset - each.minOffset;
    const done = Math.max(0, (each.consumerOffset ?? 0) - each.minOffset);
    const label = `queue ${each.queueId} of ${each.topic}: ${count(done)} of ${counted(whole, "message")} consumed`;
    return {
      key: `${each.topic} ${each.queueId}`,
      cells: [
        topicLink(each.topic),
        each.queueId,
        notable(each.lag, "warn-text"),
        bar(whole > 0 ? done / whole : 1, label, each.lag > 0 ? "warn" : ""),
        each.consumerOffset === null ? "none" : count(each.consumerOffset),
        count(each.maxOffset),
        time(each.lastConsumedMs),
      ],
    };
  });
  return table("progress", columns, rows, { caption: `Progress of ${group.group}` });
}
