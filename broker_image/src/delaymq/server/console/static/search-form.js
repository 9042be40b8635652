// Forms by which screens search and filter.

import { h } from "./dom.js";
import { asInput } from "./format.js";

/** A form; `submitted` receives functions that return the text of a field, and the time of one in ms or null. */
export function searchForm(name, button, submitted, fields, ...hidden) {
  const submit = (event) => {
    event.preventDefault();
    const values = new FormData(event.currentTarget);
    const at = (of) => (values.get(of) ? new Date(values.get(of)).getTime() : null);
    submitted({ text: (of) => (values.get(of) ?? "").trim(), at });
  };
  return h("form", { class: "form", "data-key": name, role: "search", onsubmit: submit }, fields, h("button", { type: "submit", class: "primary" }, button), hidden);
}

/** A field of the form `form`, with its label. */
export function field(form, name, label, properties) {
  const id = `${form}-${name}`;
  return h("div", { class: "field" }, h("label", { for: id }, label), h("input", { id, name, autocomplete: "off", spellcheck: "false", ...properties }));
}

/** A field for a time, with `ms` or nothing in it. */
export function timeField(form, name, label, ms) {
  return field(form, name, label, { type: "datetime-local", step: 1, value: asInput(ms) });
}

/** The number of milliseconds that a parameter of an address states; null if it is missing or not a number. */
export function number(text) {
  return text && /^\d{1,15}$/.test(text) ? Number(text) : null;
}
