// Pending messages in the order of their due times, with filters and pages.

import { brokerNow, get } from "./api.js";
import { h } from "./dom.js";
import { scheduleText, time, until } from "./format.js";
import { Pages, PAGE_ROWS } from "./paging.js";
import { empty, heading, link, loading, note, place, table, topicLink } from "./parts.js";
import { messageLink } from "./screen-messages.js";
import { field, number, searchForm, timeField } from "./search-form.js";

const POLL_MS = 4_000;
// The broker reads some thousand messages per request in search of a tag; so many requests are made for one page.
const MOST_REQUESTS = 10;

/** #/delays/list?topic=NAME&key=KEY&tag=TAG&group=GROUP&held=true&from=MS&until=MS&level=N&kind=timed */
export function pendingScreen(view, { parameters }) {
  const wanted = Object.fromEntries(["topic", "key", "tag", "group", "held", "from", "until", "level", "kind"].map((name) => [name, parameters.get(name)]));
  const head = heading("Pending messages", link(place(["delays"], { topic: wanted.topic, level: wanted.level, kind: wanted.kind }), "Chart"));
  const form = filterForm(wanted);
  if ((wanted.key || wanted.group) && !wanted.topic) {
    view.render(head, form, empty(`To search for a ${wanted.key ? "key" : "group"}, enter the topic, too.`));
    return;
  }
  const pages = new Pages(() => refresh());
  view.render(head, form, loading());
  const refresh = view.poll(POLL_MS, async (signal) => {
    const answer = await page(wanted, pages.after, signal);
    view.render(
      head,
      form,
      limits(wanted),
      answer.messages.length ? pendingTable(answer.messages) : empty(answer.next ? "No message matches among those examined so far." : "No pending message matches."),
      answer.complete ? null : note("The broker is still loading messages from before its start: this page is incomplete."),
      pages.controls("messages", answer.messages.length, answer.next, answer.total),
    );
  });
}

async function page({ topic, key, tag, group, held, from, until: end, level, kind }, after, signal) {
  const filters = { topic, key, tag, group, held, fromMs: from, untilMs: end, level, kind };
  let answer = { next: after };
  for (let requests = 0; requests < MOST_REQUESTS; requests += 1) {
    answer = await get("delay/pending/messages", { ...filters, after: answer.next, limit: PAGE_ROWS }, signal);
    if (answer.messages.length || !answer.next) break;
  }
  return answer;
}

function filterForm(wanted) {
  const submitted = ({ text, at }) => {
    const held = text("held") ? "true" : null;
    const named = { topic: text("topic"), key: text("key"), tag: text("tag"), group: text("group") };
    location.hash = place(["delays", "list"], { ...wanted, ...named, held, from: at("from"), until: at("until") });
  };
  return searchForm("filter", "Filter", submitted, [
    field("filter", "topic", "Topic", { value: wanted.topic }),
    field("filter", "key", "Key", { value: wanted.key, placeholder: "DELAY_KEY, key or unique id" }),
    field("filter", "tag", "Tag", { value: wanted.tag }),
    field("filter", "group", "Group", { value: wanted.group, placeholder: "DELAY_GROUP" }),
    timeField("filter", "from", "Due from", number(wanted.from)),
    timeField("filter", "until", "until", number(wanted.until)),
    h("label", { class: "check" }, h("input", { type: "checkbox", name: "held", value: "true", checked: wanted.held === "true" }), " Held by a pause"),
  ]);
}

function limits({ level, kind, ...rest }) {
  if (!level && !kind) return null;
  const what = level ? `level ${level}` : kind === "timed" ? "timed messages" : "messages with a level";
  return h("p", { class: "note", "data-key": "limits" }, `Only ${what}. `, link(place(["delays", "list"], rest), "Show all"));
}

function pendingTable(messages) {
  const columns = [
    { title: "Due" },
    { title: "At", wide: true },
    { title: "Topic" },
    { title: "Delay key" },
    { title: "Group", wide: true },
    { title: "Keys", wide: true },
    { title: "Tag", wide: true },
    { title: "Repeats", wide: true },
    { title: "Level", numeric: true, wide: true },
    { title: "Message" },
  ];
  const rows = messages.map((each) => ({
    key: each.offsetMessageId,
    cells: [
      h("span", { class: "nowrap" }, until(each.dueMs - brokerNow())),
      time(each.dueMs),
      topicLink(each.topic),
      each.properties.DELAY_KEY ?? "",
      each.group === null ? "" : link(place(["delays", "list"], { topic: each.topic, group: each.group }), each.group),
      each.keys.join(" "),
      each.tags ?? "",
      scheduleText(each.repeats),
      each.delayLevel || "timed",
      messageLink(each),
    ],
  }));
  return table("pending", columns, rows, { caption: "Pending messages" });
}
