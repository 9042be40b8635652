// Audit log: changes and refused attempts, the newest first, with filters and pages.

import { get } from "./api.js";
import { h } from "./dom.js";
import { counted, time } from "./format.js";
import { Pages, PAGE_ROWS } from "./paging.js";
import { badge, choice, empty, heading, loading, note, place, table } from "./parts.js";
import { field, number, searchForm, timeField } from "./search-form.js";

const POLL_MS = 5_000;
// The broker reads some megabytes per request in search of lines; so many requests are made for one page.
const MOST_REQUESTS = 10;
const RESULTS = [
  ["", "All"],
  ["done", "Done"],
  ["unconfirmed", "Unconfirmed"],
  ["refused", "Refused"],
];
const KINDS = { done: "good", unconfirmed: "warn", refused: "bad" };
const COLUMNS = [
  { title: "Time" },
  { title: "Action" },
  { title: "Target" },
  { title: "Account", hint: "access key of the account" },
  { title: "Peer", wide: true, hint: "address of the client" },
  { title: "Result" },
];

/** #/audit?action=ACTION&target=TEXT&account=KEY&peer=ADDRESS&result=refused&from=MS&until=MS */
export function auditScreen(view, { parameters }) {
  const names = ["action", "target", "account", "peer", "result", "from", "until"];
  const wanted = Object.fromEntries(names.map((name) => [name, parameters.get(name) ?? ""]));
  const head = heading("Audit");
  const form = filterForm(wanted);
  const results = () =>
    choice("Result", RESULTS, wanted.result, (chosen) => {
      location.hash = place(["audit"], { ...wanted, result: chosen });
    });
  const pages = new Pages(() => refresh());
  view.render(head, form, results(), loading());
  const refresh = view.poll(POLL_MS, async (signal) => {
    const answer = await page(wanted, pages.after, signal);
    const rows = answer.lines.map((line, at) => ({ key: `${line.timeMs} ${at}`, cells: cells(line) }));
    view.render(
      head,
      form,
      results(),
      rows.length ? table("audit", COLUMNS, rows, { caption: "Changes and refused attempts" }) : nothing(answer),
      answer.unreadable ? note(`${counted(answer.unreadable, "line")} of the files cannot be read.`) : null,
      pages.controls("lines", rows.length, answer.next, null),
    );
  });
}

async function page({ from, until, ...filters }, before, signal) {
  let answer = { next: before };
  for (let requests = 0; requests < MOST_REQUESTS; requests += 1) {
    answer = await get("audit", { ...filters, fromMs: from, untilMs: until, before: answer.next, limit: PAGE_ROWS }, signal);
    if (answer.lines.length || !answer.next) break;
  }
  return answer;
}

function nothing(answer) {
  if (!answer.enabled) return empty("This broker writes no audit log. It is enabled with:", "auditLogEnable=true");
  return empty(answer.next ? "No line matches among those examined so far." : "The audit log has no such lines.");
}

function cells(line) {
  const target = Object.entries(line.target ?? {}).map(([kind, name]) => h("div", {}, h("span", { class: "quiet" }, `${kind} `), name));
  return [time(line.timeMs), h("span", { title: line.route ?? `request code ${line.code}` }, line.action), target, account(line), line.peer, result(line)];
}

function account({ account: name, verified }) {
  if (!name) return verified ? "(token)" : "";
  return verified ? name : [name, " ", badge("unverified", "warn", "The request did not prove that it is from this account.")];
}

function result(line) {
  const more = [
    line.remark,
    line.suppressed ? `${counted(line.suppressed, "more attempt")} not recorded` : null,
    line.dropped ? `${counted(line.dropped, "line")} before this one lost` : null,
  ].filter(Boolean);
  const text = line.result === "done" ? "done" : `${line.result} ${line.status}`;
  return [badge(text, KINDS[line.result] ?? "quiet"), more.map((each) => h("div", { class: "quiet" }, each))];
}

function filterForm(wanted) {
  const submitted = ({ text, at }) => {
    const named = { action: text("action"), target: text("target"), account: text("account"), peer: text("peer") };
    location.hash = place(["audit"], { ...named, result: wanted.result, from: at("from"), until: at("until") });
  };
  return searchForm("filter", "Filter", submitted, [
    field("filter", "action", "Action", { value: wanted.action, placeholder: "topic or topic.delete", maxlength: 255 }),
    field("filter", "target", "Target", { value: wanted.target, placeholder: "part of a name", maxlength: 255 }),
    field("filter", "account", "Account", { value: wanted.account, maxlength: 255 }),
    field("filter", "peer", "Peer", { value: wanted.peer, placeholder: "beginning of the address", maxlength: 255 }),
    timeField("filter", "from", "From", number(wanted.from)),
    timeField("filter", "until", "until", number(wanted.until)),
  ]);
}
