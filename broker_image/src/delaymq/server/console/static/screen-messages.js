// Search by topic and key, by unique id, by offset message id, or by store time.

import { ApiError, get } from "./api.js";
import { h, morph } from "./dom.js";
import { bytes, count, counted, time } from "./format.js";
import { badge, empty, heading, link, loading, note, place, table, topicLink } from "./parts.js";
import { field, number, searchForm, timeField } from "./search-form.js";
import { problem } from "./view.js";

const ID = /^[0-9a-fA-F]{32}$/;
const SUGGESTED_TOPICS = 200;
const STATES = {
  pending: "warn",
  delivered: "good",
  consumed: "good",
  deadLettered: "bad",
  retried: "warn",
  dropped: "bad",
  cancelled: "bad",
  expired: "bad",
};
export const STATE_NAMES = { deadLettered: "dead letter" };

/** #/messages?topic=NAME&q=KEY_OR_ID&from=MS&to=MS */
export function messagesScreen(view, { parameters }) {
  const wanted = {
    topic: parameters.get("topic") ?? "",
    q: parameters.get("q") ?? "",
    from: number(parameters.get("from")),
    to: number(parameters.get("to")),
  };
  const head = heading("Messages");
  const form = formOf(view, wanted);
  const show = (...nodes) => view.render(head, form, ...nodes);
  if (!wanted.topic && !wanted.q) {
    show(empty("Enter a topic to see its newest messages, a topic and a key or unique id, or an offset message id. Each send returns both ids of the message:", "delaymq send Orders hello --key order-42"));
    return;
  }
  show(loading());
  search(wanted, view.signal).then(
    (answer) => show(found(answer, wanted)),
    (error) => {
      if (!view.signal.aborted) show(problem(error));
    },
  );
}

function formOf(view, wanted) {
  const topics = h("datalist", { id: "topics" });
  const submitted = ({ text, at }) => {
    const hash = place(["messages"], { topic: text("topic"), q: text("q"), from: at("from"), to: at("to") });
    if (hash === location.hash) window.dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = hash;
  };
  suggest(topics, view.signal);
  const fields = [
    field("search", "topic", "Topic", { value: wanted.topic, list: "topics" }),
    field("search", "q", "Key or id", { value: wanted.q, placeholder: "key, unique id or offset message id" }),
    timeField("search", "from", "Stored from", wanted.from),
    timeField("search", "to", "to", wanted.to),
  ];
  return searchForm("search", "Search", submitted, fields, topics);
}

async function suggest(list, signal) {
  // Only suggestions: the search itself reports errors.
  const answer = await get("topics", { limit: SUGGESTED_TOPICS }, signal).catch(() => ({ topics: [] }));
  morph(list, answer.topics.map((each) => h("option", { value: each.topic })));
}

async function search({ topic, q, from, to }, signal) {
  const times = { fromMs: from, toMs: to };
  if (!q) return get("messages", { topic, fromMs: from ?? 0, toMs: to ?? Date.now() + 86_400_000 }, signal);
  if (ID.test(q)) {
    const message = await byId(q, topic, signal);
    if (message !== null) return { messages: [message], truncated: false, pending: 0 };
  }
  if (!topic) {
    const sentence = ID.test(q)
      ? "No message has this offset message id. To search for a unique id or a key, enter the topic, too."
      : "To search for a key, enter the topic, too.";
    throw new ApiError(400, "topic_missing", sentence);
  }
  return get("messages", { topic, key: q, ...times }, signal);
}

async function byId(id, topic, signal) {
  try {
    return await get(`messages/${id}`, { topic }, signal);
  } catch (error) {
    // A unique id, or a key that looks like one: continue with the search by key.
    if (error instanceof ApiError && (error.status === 404 || error.status === 400)) return null;
    throw error;
  }
}

function found({ messages, truncated, pending }, wanted) {
  // A search by key already includes them.
  const waiting = pending && !wanted.q ? waitingNote(pending, wanted.topic) : null;
  if (!messages.length) {
    const none = wanted.q
      ? `No message of ${wanted.topic} has the key or id “${wanted.q}”${wanted.from !== null || wanted.to !== null ? " in this time range" : ""}. It may have been deleted with its segment.`
      : `No message of ${wanted.topic} was stored in this time range.`;
    return [empty(none), waiting];
  }
  return [
    waiting,
    messageTable(messages, `Messages${wanted.topic ? ` of ${wanted.topic}` : ""}`),
    note(counted(messages.length, "message"), truncated ? ". There are more: narrow the time range." : "."),
  ];
}

/** Delayed messages are not in the topic's queues until they are due. */
function waitingNote(pending, topic) {
  const text = `${counted(pending, "delayed message")} for ${topic} ${pending === 1 ? "is" : "are"} still pending. `;
  return note(text, link(place(["delays"], { topic }), "Show messages due next"));
}

/** A table of messages with links to their details. */
export function messageTable(messages, caption) {
  const columns = [
    { title: "Message" },
    { title: "State" },
    { title: "Stored" },
    { title: "Due", wide: true },
    { title: "Topic", wide: true },
    { title: "Tag", wide: true },
    { title: "Keys" },
    { title: "Bytes", numeric: true, wide: true },
    { title: "Retries", numeric: true, wide: true },
  ];
  const rows = messages.map((each) => ({
    key: each.offsetMessageId,
    cells: [
      messageLink(each),
      stateBadge(each.state),
      time(each.storedMs),
      time(each.dueMs),
      topicLink(each.topic),
      each.tags ?? "",
      each.keys.join(" "),
      h("span", { title: `${count(each.bytes)} bytes` }, bytes(each.bytes)),
      count(each.reconsumeTimes),
    ],
  }));
  return table("messages", columns, rows, { caption });
}

export function messageLink(message) {
  return link(place(["messages", message.offsetMessageId]), message.messageId || message.offsetMessageId, { class: "id" });
}

export function stateBadge(state) {
  return badge(STATE_NAMES[state] ?? state, STATES[state] ?? "quiet");
}
