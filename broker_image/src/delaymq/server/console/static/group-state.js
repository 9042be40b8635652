// State of the replicated group to which the broker belongs.

import { h } from "./dom.js";
import { bytes, count, duration } from "./format.js";
import { badge, facts, section, table } from "./parts.js";

const ROLES = { Master: "good", Replica: "good", Starting: "warn", Failed: "bad" };

/** The section of a group on the Overview; `state` is the response of /api/v1/replication. */
export function groupState(state) {
  const isMaster = state.role === "Master";
  return section(
    "Replication",
    { beside: badge(state.role.toLowerCase(), state.problem ? "bad" : ROLES[state.role], state.problem || null) },
    facts([
      ["This member", state.member],
      ["Master", state.master || badge("unknown", "bad")],
      ["Epoch", count(state.epoch)],
      ["Members in sync", isMaster ? `${state.inSync.length} of ${state.members.length}` : null],
      ["Responses to sends", state.mode === "SYNC_MASTER" ? "wait for replicas" : "do not wait for replicas"],
      ["Not confirmed", bytes(Math.max(0, state.end - state.confirmed))],
      ["Register", state.register.reachable ? badge("reachable", "good") : badge("not reachable", "bad", state.register.problem)],
      ["Note", state.note === null ? null : badge(state.note.kind, "warn")],
    ]),
    members(state, isMaster),
  );
}

function members(state, isMaster) {
  const columns = [{ title: "Member" }, { title: "State" }, { title: "Behind", numeric: true }, { title: "Address", wide: true }];
  const rows = state.members.map((each) => ({
    key: each.name,
    cells: [each.name, memberState(each, state, isMaster), behind(each), h("span", { class: "id" }, each.address)],
  }));
  return table("members", columns, rows, { caption: "Members" });
}

function memberState(each, state, isMaster) {
  if (each.name === state.master) return badge("master", "good");
  if (!each.connected) return badge("not connected", "bad");
  // Only the master has this information.
  if (!isMaster) return badge("connected", "quiet");
  return each.inSync ? badge("in sync", "good") : badge("catching up", "warn");
}

function behind(each) {
  if (each.behindBytes === null) return "–";
  return each.inSync ? bytes(each.behindBytes) : `${bytes(each.behindBytes)}, ${duration(each.behindMs)}`;
}
