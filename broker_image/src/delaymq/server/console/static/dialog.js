// A dialog that asks for confirmation.

import { h } from "./dom.js";

/** Asks whether to proceed, below `title` and `content`; calls `act(values of the form's fields)` if so. */
export function confirmDialog(view, { title, action, act }, ...content) {
  const dialog = h("dialog", { "aria-labelledby": "confirm-title", onclose: () => dialog.remove() });
  const submit = (event) => {
    event.preventDefault();
    dialog.close();
    act(new FormData(event.currentTarget));
  };
  dialog.append(
    h(
      "form",
      { onsubmit: submit },
      h("h2", { id: "confirm-title" }, title),
      content,
      h(
        "div",
        { class: "actions" },
        h("button", { type: "submit", class: "primary" }, action),
        h("button", { type: "button", onclick: () => dialog.close() }, "Close"),
      ),
    ),
  );
  document.body.append(dialog);
  view.signal.addEventListener("abort", () => dialog.close());
  dialog.showModal();
}
