// Groups of delayed messages, and pauses: their tables, and changes of them, each after a confirmation.

import { post } from "./api.js";
import { confirmDialog } from "./dialog.js";
import { h } from "./dom.js";
import { asInput, count, counted, time } from "./format.js";
import { badge, empty, link, note, place, section, table, topicLink } from "./parts.js";
import { may, mayChange } from "./sign-in.js";
import { problem } from "./view.js";

const ACTIONS = {
  cancel: { name: "Cancel", text: "They will not be delivered. This cannot be undone.", done: "cancelled" },
  move: { name: "Move", text: "They will be delivered at the time that you enter.", done: "moved" },
  fire: { name: "Deliver now", text: "Their consumers receive them immediately. This cannot be undone.", done: "made due now" },
  pause: { name: "Pause", text: "None of them is delivered until the pause ends, nor are messages that are sent later.", done: "paused" },
  resume: { name: "Resume", text: "Those that are overdue are delivered immediately.", done: "resumed" },
};
const OF_GROUPS = ["cancel", "move", "fire"];
const HOUR_MS = 3_600_000;

/** Buttons and tables for groups and pauses, and the outcome of the last change. `changed` is called after each change. */
export class GroupChanges {
  #view;
  #changed;
  #outcome = null;
  #isBusy = false;

  constructor(view, changed) {
    this.#view = view;
    this.#changed = changed;
  }

  /** The pauses in a response of /api/v1/delay, of one topic or (with null) of all; null without any. */
  pauses(delay, topic) {
    const shown = (delay.pauses ?? []).filter((each) => topic === null || each.topic === null || each.topic === topic);
    if (!shown.length) return null;
    const columns = [{ title: "Paused" }, { title: "Group" }, { title: "Since" }, { title: "By", wide: true }, { title: "Pending", numeric: true }, { title: "" }];
    const rows = shown.map((each) => ({
      key: `${each.topic ?? ""} ${each.group ?? ""}`,
      cells: [
        each.topic === null ? "all deliveries" : topicLink(each.topic),
        each.group === null ? "" : link(place(["delays", "list"], { topic: each.topic, group: each.group }), each.group),
        time(each.sinceMs),
        each.by,
        count(each.pending),
        this.#button("resume", each),
      ],
    }));
    return section(
      "Pauses",
      { beside: link(place(["delays", "list"], { topic, held: "true" }), "Held messages") },
      table("pauses", columns, rows, { caption: "Pauses" }),
      delay.pausesTruncated ? note(`The oldest ${count(delay.pauses.length)} pauses.`) : null,
    );
  }

  /** The groups of a topic in a response of /api/v1/delay/pending; `pending` is the number of the topic's messages. */
  groups(topic, found, pending, isPaused) {
    const columns = [{ title: "Group" }, { title: "Pending", numeric: true }, { title: "" }, { title: "Change" }];
    const rows = found.rows.map(({ group, pending: messages, paused }) => ({
      key: group,
      cells: [
        link(place(["delays", "list"], { topic, group }), group),
        count(messages),
        paused ? badge("paused", "warn") : null,
        h("div", { class: "actions" }, [...OF_GROUPS, paused ? "resume" : "pause"].map((action) => this.#button(action, { topic, group, pending: messages }))),
      ],
    }));
    return section(
      "Groups",
      { beside: this.#button(isPaused ? "resume" : "pause", { topic, group: null, pending }) },
      rows.length ? table("groups", columns, rows, { caption: `Groups of ${topic}` }) : empty("No pending message of the topic has a group (DELAY_GROUP)."),
      found.truncated ? note(`The ${count(rows.length)} groups with the most pending messages.`) : null,
    );
  }

  /** The outcome of the last change; null without one. */
  get outcome() {
    return this.#outcome;
  }

  #button(action, target) {
    // All deliveries are not those of an account without a role.
    if (target.topic === null ? !may("operate") : !mayChange()) return null;
    const { name } = ACTIONS[action];
    const label = `${name} ${nameOf(target)}`;
    return h("button", { type: "button", disabled: this.#isBusy, "aria-label": label, "data-key": action, onclick: () => this.#confirm(action, target) }, `${name} …`);
  }

  #confirm(action, target) {
    const { name, text } = ACTIONS[action];
    const field =
      action === "move"
        ? h("div", { class: "field" }, h("label", { for: "move-to" }, "New due time"), h("input", { id: "move-to", name: "to", type: "datetime-local", step: 1, required: true, value: asInput(Date.now() + HOUR_MS) }))
        : null;
    const act = (values) => this.#change(action, target, values.get("to"));
    const about = `${counted(target.pending, "pending message")}. ${text}`;
    confirmDialog(this.#view, { title: `${name} ${nameOf(target)}?`, action: name, act }, h("p", {}, about), field);
  }

  async #change(action, { topic, group }, to) {
    this.#isBusy = true;
    this.#outcome = null;
    this.#changed();
    try {
      // Not aborted when the screen is left.
      if (topic === null) {
        await post("delay/resume", { overdue: "deliver" });
        this.#outcome = told("All deliveries are resumed.");
      } else {
        const more = to ? { deliverAtMs: new Date(to).getTime() } : {};
        const answer = await post("delay/changes", { action, topic, ...(group === null ? {} : { group }), ...more });
        const due = answer.dueMs === null ? "." : [", due at ", time(answer.dueMs), "."];
        this.#outcome = told(`${nameOf({ topic, group })}: ${counted(answer.changed, "message")} ${ACTIONS[action].done}`, due);
      }
    } catch (error) {
      this.#outcome = problem(error);
    }
    this.#isBusy = false;
    if (!this.#view.signal.aborted) this.#changed();
  }
}

function told(...words) {
  return h("div", { class: "outcome", role: "status", "data-key": "outcome" }, h("p", {}, words));
}

function nameOf({ topic, group }) {
  if (topic === null) return "all deliveries";
  return group === null ? `topic ${topic}` : `group ${group}`;
}
