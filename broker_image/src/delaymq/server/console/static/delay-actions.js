// Changes of one pending message: cancel, move, deliver now, restart the delay; each after a confirmation.

import { post } from "./api.js";
import { confirmDialog } from "./dialog.js";
import { h } from "./dom.js";
import { asInput, counted, time } from "./format.js";
import { section } from "./parts.js";
import { mayChange } from "./sign-in.js";
import { problem } from "./view.js";

const ACTIONS = {
  cancel: { name: "Cancel", title: "Cancel this message?", text: "It will not be delivered. This cannot be undone.", done: "cancelled" },
  move: { name: "Move", title: "Move this message to another time?", text: "It will be delivered at the time that you enter.", done: "moved" },
  fire: { name: "Deliver now", title: "Deliver this message now?", text: "Its consumers receive it immediately. This cannot be undone.", done: "made due now" },
  touch: { name: "Restart delay", title: "Restart the delay of this message?", text: "Its original delay begins again from now.", done: "touched" },
};

/** Texts for repeating messages. */
const OF_A_SCHEDULE = {
  cancel: "It will not be delivered again: its schedule ends. This cannot be undone.",
  move: "Its next run takes place at the time that you enter, and its schedule continues from then.",
  fire: "Its next run takes place now, and its schedule continues from then. This cannot be undone.",
  touch: "Its next run becomes the first one of its schedule from now.",
};

/** Buttons that change a message, and the outcome of the last change. `changed` is called after each change. */
export class DelayActions {
  #view;
  #changed;
  #outcome = null;
  #isBusy = false;

  constructor(view, changed) {
    this.#view = view;
    this.#changed = changed;
  }

  /** The section for a message; null if it cannot be changed and was not. */
  section(message) {
    const target = targetOf(message);
    const isChangeable = message.state === "pending" && target !== null && mayChange();
    if (!isChangeable && this.#outcome === null) return null;
    const buttons = Object.keys(ACTIONS).map((action) =>
      h("button", { type: "button", disabled: this.#isBusy, onclick: () => this.#confirm(action, message, target) }, `${ACTIONS[action].name} …`),
    );
    return section("Change", {}, isChangeable ? h("div", { class: "actions" }, buttons) : null, this.#outcome);
  }

  #confirm(action, message, target) {
    const { name, title } = ACTIONS[action];
    const text = message.repeats ? OF_A_SCHEDULE[action] : ACTIONS[action].text;
    const field =
      action === "move"
        ? h("div", { class: "field" }, h("label", { for: "move-to" }, "New due time"), h("input", { id: "move-to", name: "to", type: "datetime-local", step: 1, required: true, value: asInput(message.dueMs) }))
        : null;
    const act = (values) => this.#change(action, target, values.get("to"));
    confirmDialog(this.#view, { title, action: name, act }, h("p", { class: "id" }, message.messageId), h("p", {}, text), field);
  }

  async #change(action, target, to) {
    this.#isBusy = true;
    this.#outcome = null;
    this.#changed();
    try {
      // Not aborted when the screen is left.
      const answer = await post("delay/changes", { action, ...target, ...(to ? { deliverAtMs: new Date(to).getTime() } : {}) });
      this.#outcome = outcome(action, answer);
    } catch (error) {
      this.#outcome = problem(error);
    }
    this.#isBusy = false;
    if (!this.#view.signal.aborted) this.#changed();
  }
}

/** The members of a request that name a message; null if it has no name. A key names exactly one message. */
function targetOf({ topic, messageId, properties }) {
  if (properties.DELAY_KEY && properties.TIMER_OUT_MS) return { topic, key: properties.DELAY_KEY };
  return properties.UNIQ_KEY ? { topic, id: messageId } : null;
}

function outcome(action, { changed, dueMs }) {
  const what = changed ? `${counted(changed, "message")} ${ACTIONS[action].done}` : "The message had been cancelled before";
  return h("div", { class: "outcome", role: "status" }, h("p", {}, what, dueMs === null ? "." : [", due at ", time(dueMs), "."]));
}
