// Building blocks of the screens.

import { h, s } from "./dom.js";
import { count } from "./format.js";

/** The title of a screen, with `beside` to its right. */
export function heading(title, ...beside) {
  return h("div", { class: "heading", "data-key": "heading" }, h("h1", { tabindex: -1 }, title), h("div", { class: "beside" }, beside));
}

/** A titled section of a screen. */
export function section(title, properties, ...children) {
  const { beside, ...own } = properties ?? {};
  return h(
    "section",
    { "data-key": title, "aria-label": title, ...own },
    h("div", { class: "section-title" }, h("h2", {}, title), beside ?? null),
    children,
  );
}

/** A placeholder for missing data; `command` creates some. */
export function empty(sentence, command) {
  return h("p", { class: "empty" }, sentence, command ? [" ", h("code", {}, command)] : null);
}

/** A placeholder for pending messages. */
export function nothingPending(topic) {
  return empty("There are no pending messages. Send a delayed message:", `delaymq send ${topic ?? "Orders"} "hello later" --delay 30s`);
}

export function note(...words) {
  return h("p", { class: "note" }, words);
}

export function loading() {
  return h("p", { class: "empty loading" }, "Loading …");
}

/** A named figure, with an optional `remark` below it. */
export function tile(name, figure, remark, extra) {
  return h(
    "div",
    { class: "tile", "data-key": name },
    h("div", { class: "tile-name" }, name),
    h("div", { class: "tile-figure" }, figure),
    remark ? h("div", { class: "tile-note" }, remark) : null,
    extra ?? null,
  );
}

/** A list of names and values. */
export function facts(rows) {
  return h(
    "dl",
    { class: "facts" },
    rows.filter(([, value]) => value !== null).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

/** A coloured label; `kind` is good, warn, bad or quiet. */
export function badge(text, kind = "quiet", title = null) {
  return h("span", { class: `badge ${kind}`, title }, text);
}

/**
 * A table. A column: {title, numeric, wide (hidden on narrow screens), hint}; a row: {key, cells, selected}.
 * It scrolls horizontally if the page is too narrow.
 */
export function table(name, columns, rows, { caption = name } = {}) {
  const head = columns.map((column) =>
    h("th", { scope: "col", class: columnClass(column), title: column.hint }, column.title),
  );
  const body = rows.map((row) =>
    h(
      "tr",
      { "data-key": `row ${row.key}`, class: row.kind },
      row.cells.map((cell, at) => h("td", { class: columnClass(columns[at]) }, cell)),
    ),
  );
  return h(
    "div",
    { class: "scroll", "data-key": `table ${name}`, role: "group", "aria-label": caption, tabindex: 0 },
    h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)),
  );
}

function columnClass(column) {
  return [column.numeric ? "numeric" : "", column.wide ? "wide" : ""].join(" ").trim() || null;
}

/** A ratio as a bar, described by the label. */
export function bar(ratio, label, kind = "") {
  const width = Math.max(0, Math.min(1, Number.isFinite(ratio) ? ratio : 0)) * 100;
  return s(
    "svg",
    { class: `bar ${kind}`, role: "img", "aria-label": label, viewBox: "0 0 100 6", preserveAspectRatio: "none" },
    s("title", {}, label),
    s("rect", { class: "bar-whole", width: 100, height: 6 }),
    s("rect", { class: "bar-part", width: width > 0 ? Math.max(width, 1) : 0, height: 6 }),
  );
}

/** The latest values as a line of `capacity` steps, with the newest at the right end. */
export function sparkline(values, label, capacity) {
  const highest = Math.max(1e-9, ...values);
  const first = capacity - values.length;
  const points = values.map((value, at) => `${first + at},${(23 - (value / highest) * 21).toFixed(2)}`);
  return s(
    "svg",
    { class: "spark", role: "img", "aria-label": label, viewBox: `0 0 ${capacity - 1} 24`, preserveAspectRatio: "none" },
    s("title", {}, label),
    s("line", { x1: 0, x2: capacity - 1, y1: 23.5, y2: 23.5, "vector-effect": "non-scaling-stroke" }),
    values.length > 1
      ? [
          s("polygon", { points: `${first},24 ${points.join(" ")} ${capacity - 1},24` }),
          s("polyline", { points: points.join(" "), "vector-effect": "non-scaling-stroke" }),
        ]
      : null,
  );
}

/** A group of buttons, one of which is selected. */
export function choice(name, options, chosen, choose) {
  return h(
    "div",
    { class: "choice", role: "group", "aria-label": name, "data-key": `choice ${name}` },
    options.map(([value, text]) =>
      h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => choose(value) }, text),
    ),
  );
}

/** A search field that reports its value when the user stops typing. */
export function searchField(label, initial, tell) {
  const pauseMs = 200;
  let timer = null;
  let told = initial;
  const say = () => {
    clearTimeout(timer);
    if (input.value.trim() === told) return;
    told = input.value.trim();
    tell(told);
  };
  const input = h("input", {
    type: "search",
    "aria-label": label,
    placeholder: label,
    value: initial,
    autocomplete: "off",
    spellcheck: "false",
    oninput: () => {
      clearTimeout(timer);
      timer = setTimeout(say, pauseMs);
    },
    onchange: say,
  });
  return h("div", { class: "search", "data-key": `search ${label}` }, input);
}

/** A link within the console. */
export function link(path, text, properties) {
  return h("a", { href: path, ...properties }, text);
}

/** The hash of a screen: escaped segments and parameters. */
export function place(segments, parameters = {}) {
  const query = new URLSearchParams(
    Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== ""),
  ).toString();
  return `#/${segments.map(encodeURIComponent).join("/")}${query ? `?${query}` : ""}`;
}

export function topicLink(topic) {
  return link(place(["topics", topic]), topic, { class: "name" });
}

export function groupLink(group) {
  return link(place(["groups", group]), group, { class: "name" });
}

/** A number that is highlighted unless it is 0. */
export function notable(value, kind) {
  return value > 0 ? h("strong", { class: kind }, count(value)) : count(value);
}
