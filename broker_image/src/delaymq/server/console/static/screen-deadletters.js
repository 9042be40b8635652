// Dead letters: the groups that have any, and one group's dead letters, which can be resent.

import { get, post } from "./api.js";
import { confirmDialog } from "./dialog.js";
import { h } from "./dom.js";
import { count, counted, time } from "./format.js";
import { Pages, PAGE_ROWS } from "./paging.js";
import { badge, empty, heading, link, loading, note, place, section, table } from "./parts.js";
import { messageLink } from "./screen-messages.js";
import { mayChange } from "./sign-in.js";
import { problem } from "./view.js";

const PREFIX = "%DLQ%";
const POLL_MS = 4_000;
// Limit of the broker per request.
const MOST_AT_ONCE = 64;

/** #/deadletters */
export function deadLettersScreen(view) {
  const pages = new Pages(() => refresh());
  view.render(heading("Dead letters"), loading());
  const refresh = view.poll(POLL_MS, async (signal) => {
    const answer = await get("topics", { kind: "deadLetter", after: pages.after, limit: PAGE_ROWS }, signal);
    const columns = [{ title: "Group" }, { title: "Dead letters", numeric: true }, { title: "Last stored", wide: true }];
    const rows = answer.topics.map((each) => {
      const group = each.topic.slice(PREFIX.length);
      return {
        key: group,
        cells: [link(place(["deadletters", group]), group, { class: "name" }), count(each.messages), time(each.lastStoredMs)],
      };
    });
    view.render(
      heading("Dead letters"),
      rows.length
        ? table("deadletters", columns, rows, { caption: "Groups with dead letters" })
        : empty("There are no dead letters. A message becomes one when its group has used up all retries (16 by default)."),
      rows.length ? pages.controls("groups", rows.length, answer.next, answer.total) : null,
    );
  });
}

/** #/deadletters/GROUP */
export function deadLetterGroupScreen(view, { name: group }) {
  new DeadLetterGroup(view, group).start();
}

class DeadLetterGroup {
  #view;
  #group;
  #messages = null;
  #truncated = false;
  // End times of the visited pages, in ms; the last one belongs to the current page.
  #ends = [null];
  #selected = new Set();
  #results = new Map();
  #refresh = null;
  #isSending = false;
  #failure = null;

  constructor(view, group) {
    this.#view = view;
    this.#group = group;
  }

  start() {
    this.#view.render(heading(this.#group), loading());
    this.#refresh = this.#view.poll(POLL_MS, async (signal) => {
      const toMs = this.#ends.at(-1) ?? Date.now() + 86_400_000;
      const answer = await get("messages", { topic: PREFIX + this.#group, fromMs: 0, toMs }, signal);
      this.#messages = [...answer.messages].sort((one, other) => other.storedMs - one.storedMs || other.physicalOffset - one.physicalOffset);
      this.#truncated = answer.truncated;
      const present = new Set(this.#messages.map((each) => each.offsetMessageId));
      for (const id of this.#selected) if (!present.has(id)) this.#selected.delete(id);
      this.#draw();
    });
  }

  #draw() {
    this.#view.render(
      heading(this.#group, link(place(["groups", this.#group]), "Group", { class: "button" })),
      this.#failure ? problem(this.#failure) : null,
      this.#outcome(),
      this.#messages.length ? [this.#actions(), this.#table(), this.#pages()] : empty(`Group ${this.#group} has no dead letters on this broker.`),
    );
  }

  #outcome() {
    if (!this.#results.size) return null;
    const results = [...this.#results.values()];
    const failed = results.filter((each) => each.problem !== null);
    return section(
      "Resent now",
      { class: "outcome", role: "status" },
      h("p", {}, `${count(results.length - failed.length)} of ${counted(results.length, "message")} sent to the group's retry topic, from which they are delivered to the group once more.`),
      failed.length ? h("ul", {}, failed.map(({ id, problem: told }) => h("li", { class: "bad-text" }, h("span", { class: "id" }, id), `: ${told}`))) : null,
    );
  }

  #actions() {
    if (!mayChange()) return note("Your role does not allow you to resend messages.");
    const chosen = this.#selected.size;
    return h(
      "div",
      { class: "actions", "data-key": "actions" },
      h("button", { type: "button", class: "primary", disabled: chosen === 0 || this.#isSending, onclick: () => this.#confirm() }, chosen ? `Resend ${count(chosen)} …` : "Resend …"),
      h("span", { class: "quiet" }, chosen ? `${count(chosen)} selected` : "Select the messages to resend to the group."),
    );
  }

  #table() {
    const all = this.#messages.length === this.#selected.size;
    const toggleAll = (event) => {
      this.#selected = new Set(event.currentTarget.checked ? this.#messages.map((each) => each.offsetMessageId) : []);
      this.#draw();
    };
    const box = h("input", { type: "checkbox", "aria-label": "select all", checked: all, indeterminate: this.#selected.size > 0 && !all, onchange: toggleAll });
    const columns = [{ title: box }, { title: "Message" }, { title: "From topic", wide: true }, { title: "Dead-lettered" }, { title: "Keys" }, { title: "Retries", numeric: true, wide: true }, { title: "Resent" }];
    const rows = this.#messages.map((each) => ({ key: each.offsetMessageId, kind: this.#selected.has(each.offsetMessageId) ? "chosen" : null, cells: this.#cells(each) }));
    return table("dead letters", columns, rows, { caption: `Dead letters of ${this.#group}` });
  }

  #cells(each) {
    const id = each.offsetMessageId;
    const toggle = (event) => {
      if (event.currentTarget.checked) this.#selected.add(id);
      else this.#selected.delete(id);
      this.#draw();
    };
    const label = `select ${each.keys.length ? each.keys.join(" ") : each.messageId}`;
    return [
      h("input", { type: "checkbox", "aria-label": label, checked: this.#selected.has(id), onchange: toggle }),
      messageLink(each),
      each.properties.RETRY_TOPIC ?? each.properties.DLQ_ORIGIN_TOPIC ?? "–",
      time(each.storedMs),
      each.keys.join(" "),
      count(each.reconsumeTimes),
      this.#resent(each),
    ];
  }

  #resent(each) {
    const result = this.#results.get(each.offsetMessageId);
    if (result?.problem) return badge("failed", "bad", result.problem);
    if (typeof each.resentMs === "number") return [badge("resent", "good"), " ", time(each.resentMs)];
    return result ? badge("resent", "good") : "no";
  }

  #pages() {
    const isFirst = this.#ends.length === 1;
    if (isFirst && !this.#truncated) return null;
    const older = () => {
      const [newest, oldest] = [this.#messages[0].storedMs, this.#messages.at(-1).storedMs];
      // The end is inclusive; paging must also advance if all messages have the same time.
      this.#ends.push(newest === oldest ? oldest - 1 : oldest);
      this.#refresh();
    };
    const newer = () => {
      this.#ends.pop();
      this.#refresh();
    };
    return h(
      "div",
      { class: "pages", role: "group", "aria-label": "Pages of dead letters", "data-key": "pages" },
      h("button", { type: "button", disabled: isFirst, onclick: newer }, "Newer"),
      h("button", { type: "button", disabled: !this.#truncated, onclick: older }, "Older"),
    );
  }

  #confirm() {
    const chosen = this.#messages.filter((each) => this.#selected.has(each.offsetMessageId)).slice(0, MOST_AT_ONCE);
    const again = chosen.filter((each) => typeof each.resentMs === "number");
    confirmDialog(
      this.#view,
      {
        title: `Resend ${counted(chosen.length, "message")} to ${this.#group}?`,
        action: again.length ? "Resend again" : "Resend",
        act: () => this.#resend(chosen, again.length > 0),
      },
      h("p", {}, "Only this group receives them again. The dead letters are kept."),
      again.length ? h("p", { class: "warn-text" }, `${counted(again.length, "message")} of these ${again.length === 1 ? "was" : "were"} resent before, and may be processed twice.`) : null,
    );
  }

  async #resend(chosen, again) {
    this.#isSending = true;
    this.#failure = null;
    this.#results = new Map();
    this.#draw();
    try {
      const messages = chosen.map(({ offsetMessageId }) => ({ offsetMessageId }));
      // Not aborted when the screen is left.
      const answer = await post(`deadletters/${encodeURIComponent(this.#group)}/resend`, again ? { messages, again } : { messages });
      for (const { offsetMessageId: id } of answer.resent) this.#results.set(id, { id, problem: null });
      for (const { offsetMessageId: id, message } of answer.failed) this.#results.set(id, { id, problem: message });
      this.#selected.clear();
    } catch (error) {
      this.#failure = error;
    }
    this.#isSending = false;
    if (this.#view.signal.aborted) return;
    this.#draw();
    this.#refresh();
  }
}
