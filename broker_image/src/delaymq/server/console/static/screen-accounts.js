// Accounts: what each one uses, its quotas, and how often they delayed and rejected its requests.

import { get } from "./api.js";
import { h } from "./dom.js";
import { bytes, count, duration, rate } from "./format.js";
import { PAGE_ROWS, Pages } from "./paging.js";
import { badge, bar, empty, heading, loading, note, notable, place, searchField, table } from "./parts.js";

const POLL_MS = 3_000;
const COLUMNS = [
  { title: "Account" },
  { title: "Sends", numeric: true, hint: "accepted sends per second" },
  { title: "Sent", numeric: true, hint: "bytes of bodies per second" },
  { title: "Pulls", numeric: true, hint: "accepted pulls per second" },
  { title: "Pulled", numeric: true, hint: "bytes of messages per second" },
  { title: "Event loop", numeric: true, hint: "share of the broker's event loop" },
  { title: "Connections", numeric: true, wide: true },
  { title: "Held pulls", numeric: true, wide: true },
  { title: "Delays", numeric: true, hint: "requests after which a connection was not read for a time" },
  { title: "Rejected", numeric: true, hint: "requests rejected because of a quota" },
];
const QUOTA_COLUMNS = [
  { title: "Account" },
  { title: "Quota" },
  { title: "Usage", numeric: true },
  { title: "Of", numeric: true },
  { title: "Used share" },
  { title: "Delays", numeric: true },
  { title: "Delayed", numeric: true, hint: "added up over connections" },
  { title: "Rejected", numeric: true },
];
// The totals from which the usage of rates follows.
const TOTALS = {
  sendBytesPerSecond: "sendBytes",
  sendRequestsPerSecond: "sends",
  pullBytesPerSecond: "pullBytes",
  pullRequestsPerSecond: "pulls",
  requestsPerSecond: "requests",
  eventLoopPercent: "eventLoopSeconds",
};
const NEARLY = 0.9;

/** #/accounts */
export function accountsScreen(view, { parameters }) {
  let contains = parameters.get("contains") ?? "";
  let before = null;
  const pages = new Pages(() => refresh());
  const search = searchField("Search accounts", contains, (text) => {
    contains = text;
    history.replaceState(null, "", place(["accounts"], { contains }));
    pages.reset();
    refresh();
  });
  const head = heading("Accounts", search);
  view.render(head, loading());
  const refresh = view.poll(POLL_MS, async (signal) => {
    const answer = await get("accounts", { contains, after: pages.after, limit: PAGE_ROWS }, signal);
    const rates = ratesBetween(before, answer);
    before = answer;
    if (!answer.accounts.length) {
      view.render(head, nothing(answer, contains));
      return;
    }
    const rows = answer.accounts.map((each) => ({ key: each.account, cells: cells(each, rates) }));
    const quotas = answer.accounts.flatMap((each) => each.quotas.map((quota) => quotaRow(each, quota, rates)));
    view.render(
      head,
      table("accounts", COLUMNS, rows, { caption: "Usage of accounts" }),
      quotas.length
        ? table("quotas", QUOTA_COLUMNS, quotas, { caption: "Quotas of accounts" })
        : note("No quota limits these accounts. Add ", h("code", {}, "quotas"), " to a rule file."),
      pages.controls("accounts", rows.length, answer.next, answer.total),
    );
  });
}

/** Usage per second by account and quota; without an earlier response of the same start, nothing. */
function ratesBetween(before, answer) {
  const rates = new Map();
  const seconds = before ? (answer.asOfMs - before.asOfMs) / 1000 : 0;
  if (seconds <= 0 || before.bootId !== answer.bootId) return rates;
  const earlier = new Map(before.accounts.map((each) => [each.account, each]));
  for (const each of answer.accounts) {
    const then = earlier.get(each.account);
    if (!then) continue;
    for (const [quota, total] of Object.entries(TOTALS)) {
      rates.set(`${quota} ${each.account}`, Math.max(each[total] - then[total], 0) / seconds);
    }
  }
  return rates;
}

function cells(each, rates) {
  const perSecond = (quota) => rates.get(`${quota} ${each.account}`);
  const share = perSecond("eventLoopPercent");
  const sum = (name) => each.quotas.reduce((total, quota) => total + quota[name], 0);
  return [
    [h("span", { class: "name" }, each.account), each.admin ? [" ", badge("administrator")] : null],
    rate(perSecond("sendRequestsPerSecond")),
    bytes(perSecond("sendBytesPerSecond")),
    rate(perSecond("pullRequestsPerSecond")),
    bytes(perSecond("pullBytesPerSecond")),
    share === undefined ? "–" : `${rate(share * 100)} %`,
    count(each.connections),
    count(each.heldPulls),
    notable(sum("delays"), "warn-text"),
    notable(sum("rejected"), "bad-text"),
  ];
}

function quotaRow(account, each, rates) {
  const isRate = each.quota in TOTALS;
  let used = isRate ? rates.get(`${each.quota} ${account.account}`) : (each.used ?? 0);
  if (each.quota === "eventLoopPercent" && used !== undefined) used *= 100;
  const ratio = used === undefined || !each.limit ? null : used / each.limit;
  const shown = ratio === null ? "–" : `${Math.round(ratio * 100)} % of ${each.quota}`;
  return {
    key: `${each.quota} ${account.account}`,
    cells: [
      h("span", { class: "name" }, account.account),
      h("code", {}, each.quota),
      isRate ? rate(used) : count(used),
      each.limit === null ? badge("removed") : count(each.limit),
      ratio === null ? "–" : bar(ratio, shown, ratio >= NEARLY ? "warn" : ""),
      notable(each.delays, "warn-text"),
      duration(each.delayedSeconds * 1000),
      notable(each.rejected, "bad-text"),
    ],
  };
}

function nothing(answer, contains) {
  if (!answer.accessControl) {
    return empty("This broker has no accounts, because access control is off. Enable it:", "delaymq acl init -c broker.conf");
  }
  return empty(contains ? `No account name contains “${contains}”.` : "The rule files contain no accounts.");
}
