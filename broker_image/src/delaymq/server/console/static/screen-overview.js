// Overview: state of the broker, and throughput.

import { brokerNow, get } from "./api.js";
import { h } from "./dom.js";
import { bytes, count, counted, duration, percent, rate, time, until } from "./format.js";
import { groupState } from "./group-state.js";
import { badge, bar, empty, groupLink, heading, link, loading, section, sparkline, table, tile } from "./parts.js";

const TOTALS_POLL_MS = 2_000;
const CLUSTER_POLL_MS = 5_000;
const GROUPS_POLL_MS = 10_000;
// Enough for the groups with the largest lag; the list of groups has all.
const GROUPS_ASKED = 200;
const GROUPS_SHOWN = 5;
// Two minutes of rates, one every TOTALS_POLL_MS.
const KEPT_RATES = 60;
const DISK_WARN = 0.8;
const DISK_BAD = 0.9;
const OVERDUE_MS = 2_000;
const LOOP_LAG_MS = 100;

// Kept when the screen is left, so that the lines are complete on return.
const rates = { bootId: null, last: null, stored: [], delivered: [], pulled: [] };

/** #/ */
export function overviewScreen(view) {
  const seen = { totals: null, cluster: null, groups: null, about: null, replication: null };
  const draw = () => {
    if (seen.totals === null) return;
    view.render(
      heading("Overview", h("span", { class: "quiet" }, "uptime ", duration(seen.totals.asOfMs - seen.totals.startedAtMs))),
      attention(seen),
      tiles(seen.totals),
      h(
        "div",
        { class: "columns", "data-key": "columns" },
        section("Brokers", {}, seen.cluster === null ? loading() : brokers(seen.cluster)),
        section("NameServers", {}, seen.cluster === null ? loading() : nameServers(seen.cluster)),
      ),
      seen.replication === null ? null : groupState(seen.replication),
      section("Groups with lag", { beside: link("#/groups", "All groups") }, seen.groups === null ? loading() : behind(seen.groups)),
    );
  };
  const keep = (name, path, parameters) => async (signal) => {
    seen[name] = await get(path, parameters, signal);
    if (name === "totals") remember(seen.totals);
    draw();
  };
  const keepReplication = async (signal) => {
    // The long response, which states whether there is a group, is read only once per start of the broker.
    if (seen.about === null || (seen.totals !== null && seen.totals.bootId !== seen.about.bootId)) {
      seen.about = await get("broker", {}, signal);
      seen.replication = null;
    }
    if (seen.about.replication === null) return;
    seen.replication = await get("replication", {}, signal);
    draw();
  };
  view.render(heading("Overview"), loading());
  view.poll(TOTALS_POLL_MS, keep("totals", "totals", {}));
  view.poll(CLUSTER_POLL_MS, keep("cluster", "cluster", {}));
  view.poll(CLUSTER_POLL_MS, keepReplication);
  view.poll(GROUPS_POLL_MS, keep("groups", "groups", { limit: GROUPS_ASKED }));
}

function remember(totals) {
  if (rates.bootId !== totals.bootId) Object.assign(rates, { bootId: totals.bootId, last: null, stored: [], delivered: [], pulled: [] });
  const { last } = rates;
  rates.last = totals;
  if (last === null || totals.asOfMs <= last.asOfMs) return;
  const seconds = (totals.asOfMs - last.asOfMs) / 1000;
  for (const name of ["stored", "delivered", "pulled"]) {
    rates[name].push((totals[name] - last[name]) / seconds);
    if (rates[name].length > KEPT_RATES) rates[name].shift();
  }
}

function attention({ totals, cluster, groups }) {
  const found = [];
  for (const sentence of totals.notReady) found.push(["bad", `Not ready: ${sentence}.`]);
  for (const each of cluster?.nameServers ?? []) {
    if (!each.registered) found.push(["bad", `NameServer ${each.address}: ${each.problem ?? "not registered"}.`]);
  }
  if (totals.nextDueMs !== null && totals.nextDueMs < brokerNow() - OVERDUE_MS) {
    found.push(["bad", ["Delayed messages are overdue: deliveries have stopped. See ", link("#/delays", "Delays"), " or the log for the reason."]]);
  }
  const used = totals.disk.usedRatio;
  if (used >= DISK_WARN) found.push([used >= DISK_BAD ? "bad" : "warn", `The disk is ${percent(used)} full: above 85 %, segments are deleted before their retention time; above 90 %, sends are rejected.`]);
  if (totals.eventLoopLagMs > LOOP_LAG_MS) found.push(["warn", `The event loop lags by ${duration(totals.eventLoopLagMs)}: the CPU is the bottleneck.`]);
  const alone = (groups?.groups ?? []).filter((each) => each.lag > 0 && each.members === 0);
  if (alone.length) found.push(["warn", [`${counted(alone.length, "group")} with unconsumed messages ${alone.length === 1 ? "has" : "have"} no member connected. `, link("#/groups", "Show groups")]]);
  const dead = (groups?.groups ?? []).reduce((all, each) => all + each.deadLetters, 0);
  if (dead) found.push(["warn", [counted(dead, "dead letter"), ". ", link("#/deadletters", "Show dead letters")]]);
  if (!found.length) return h("p", { class: "state good", "data-key": "attention" }, "No problems found.");
  return h("ul", { class: "attention", "aria-label": "Needs attention", "data-key": "attention list" }, found.map(([kind, text]) => h("li", { class: kind }, text)));
}

function tiles(totals) {
  const { disk } = totals;
  const line = (name, words) => sparkline(rates[name], `${words} per second during the last two minutes`, KEPT_RATES);
  const now = (name) => (rates[name].length ? rate(rates[name].at(-1)) : "–");
  const next = totals.nextDueMs === null ? "no pending messages" : ["next due ", until(totals.nextDueMs - brokerNow()), ", ", time(totals.nextDueMs)];
  return [
    h(
      "div",
      { class: "tiles rates", "data-key": "rates" },
      tile("Stored / s", now("stored"), `${count(totals.stored)} since startup`, line("stored", "messages stored")),
      tile("Delivered / s", now("delivered"), `${count(totals.delivered)} delayed messages since startup`, line("delivered", "delayed messages delivered")),
      tile("Consumed / s", now("pulled"), `${count(totals.pulled)} since startup`, line("pulled", "messages returned to consumers")),
    ),
    h(
      "div",
      { class: "tiles", "data-key": "tiles" },
      tile("Pending", link("#/delays", count(totals.pending)), next),
      tile("Connections", count(totals.connections), `${counted(totals.heldPulls, "pull")} held, loop lag ${duration(totals.eventLoopLagMs)}`),
      tile("Disk", percent(disk.usedRatio), `${bytes(disk.freeBytes)} free; log ${bytes(disk.logBytes)}`, diskBar(disk)),
      tile("Memory", bytes(totals.residentBytes), `of the process; ${bytes(disk.pinnedBytes)} of the log pinned`),
    ),
  ];
}

function diskBar(disk) {
  const kind = disk.usedRatio >= DISK_BAD ? "bad" : disk.usedRatio >= DISK_WARN ? "warn" : "";
  return bar(disk.usedRatio, `disk usage ${percent(disk.usedRatio)}`, kind);
}

function brokers({ clusterName, brokers: found }) {
  const columns = [{ title: "Broker" }, { title: "Role" }, { title: "Address" }, { title: "Cluster", wide: true }];
  const rows = found.map((each) => ({
    key: `${each.brokerName} ${each.brokerId}`,
    cells: [each.brokerName, String(each.brokerId) === "0" ? "master" : `slave ${each.brokerId}`, h("span", { class: "id" }, each.address), each.cluster ?? clusterName],
  }));
  return table("brokers", columns, rows, { caption: "Brokers" });
}

function nameServers({ nameServers: found }) {
  if (!found.length) return empty("There are none, so clients cannot find this broker. Configure one with:", "--namesrv HOST:9876");
  const columns = [{ title: "Address" }, { title: "State" }];
  const rows = found.map((each) => ({
    key: each.address,
    cells: [h("span", { class: "id" }, each.address), each.registered ? badge("registered", "good") : [badge("not registered", "bad"), " ", each.problem ?? ""]],
  }));
  return table("nameservers", columns, rows, { caption: "NameServers" });
}

function behind({ groups }) {
  const found = groups.filter((each) => each.lag > 0).sort((one, other) => other.lag - one.lag).slice(0, GROUPS_SHOWN);
  if (!groups.length) return empty("There are no consumer groups. Start a consumer:", "delaymq receive Orders --group shop --follow");
  if (!found.length) return empty("There are none: every group has consumed all messages.");
  const highest = found[0].lag;
  const columns = [{ title: "Group" }, { title: "Lag", numeric: true }, { title: "", wide: true }, { title: "Members", numeric: true }];
  const rows = found.map((each) => ({
    key: each.group,
    cells: [groupLink(each.group), count(each.lag), bar(each.lag / highest, `${each.group} has a lag of ${counted(each.lag, "message")}`, "warn"), each.members ? count(each.members) : badge("none", "warn")],
  }));
  return table("behind", columns, rows, { caption: "Groups with lag" });
}
