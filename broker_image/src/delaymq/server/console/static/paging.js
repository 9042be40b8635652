// Paging through lists: the current page, and buttons for the next and the previous one.

import { h } from "./dom.js";
import { count } from "./format.js";

export const PAGE_ROWS = 100;

/** The visited pages; calls `changed` when another page is selected. */
export class Pages {
  #starts = [null];
  // Rows on the pages before the current one.
  #rows = [0];
  #changed;

  constructor(changed) {
    this.#changed = changed;
  }

  /** The name after which the current page starts; null for the first page. */
  get after() {
    return this.#starts.at(-1);
  }

  /** Returns to the first page, for a new search. */
  reset() {
    this.#starts = [null];
    this.#rows = [0];
  }

  /** The range of rows shown, with paging buttons; `total` may be unknown. */
  controls(what, rows, next, total) {
    const first = this.#rows.at(-1) + 1;
    const of = typeof total === "number" ? ` of ${count(total)}` : "";
    const shown = rows === 0 ? `No ${what}` : `${count(first)}–${count(first + rows - 1)}${of}`;
    const move = (change) => () => {
      change();
      this.#changed();
    };
    const isFirst = this.#starts.length === 1;
    const previous = () => {
      this.#starts.pop();
      this.#rows.pop();
    };
    const following = () => {
      this.#starts.push(next);
      this.#rows.push(first - 1 + rows);
    };
    return h(
      "div",
      { class: "pages", role: "group", "aria-label": `Pages of ${what}`, "data-key": "pages" },
      h("span", { class: "pages-shown" }, shown),
      h("button", { type: "button", disabled: isFirst, onclick: move(previous) }, "Previous"),
      h("button", { type: "button", disabled: !next, onclick: move(following) }, "Next"),
    );
  }
}
