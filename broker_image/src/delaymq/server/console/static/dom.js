// Creation of elements from plain values. Text becomes only text nodes and attributes; nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = ["onclick", "oninput", "onchange", "onsubmit", "onkeydown", "onclose"];
const PROPERTIES = ["value", "checked", "indeterminate", "disabled"];

/** An element; properties named on… are handlers; attributes that are null, undefined or false are omitted. */
export function h(tag, properties, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** An SVG element. */
export function s(tag, properties, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (HANDLERS.includes(name)) {
      element[name] = value;
    } else if (PROPERTIES.includes(name)) {
      element[name] = value ?? "";
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, String(value));
    }
  }
  element.append(...asNodes(children));
  return element;
}

function asNodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false && child !== "")
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

/**
 * Updates the children of `parent` to match `children`, and reuses existing nodes, so that focus, selection and scroll
 * position survive an update. Children with data-key are matched by it. A node that is already in the page is not changed,
 * so input elements must be created once and passed again as direct `children`.
 */
export function morph(parent, ...children) {
  const wanted = asNodes(children);
  const own = new Set(wanted);
  const keys = new Set(wanted.map(keyOf));
  const keyed = new Map();
  for (const child of [...parent.childNodes]) {
    const key = keyOf(child);
    if (key === null || own.has(child)) continue;
    // A node that moves loses focus, so those that are not wanted make room for the others first.
    if (keys.has(key)) keyed.set(key, child);
    else child.remove();
  }
  let at = parent.firstChild;
  for (const node of wanted) {
    if (node === at) {
      at = at.nextSibling;
      continue;
    }
    const key = keyOf(node);
    const old = node.parentNode === parent ? null : key === null ? at : keyed.get(key);
    if (old && !own.has(old) && alike(old, node)) {
      if (old === at) at = at.nextSibling;
      else parent.insertBefore(old, at);
      update(old, node);
    } else {
      parent.insertBefore(node, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null;
}

function alike(old, node) {
  return old.nodeType === node.nodeType && old.nodeName === node.nodeName && keyOf(old) === keyOf(node);
}

function update(old, node) {
  if (node.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== node.data) old.data = node.data;
    return;
  }
  for (const { name, value } of [...node.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    // A <details> that the user opened stays open.
    if (!node.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const name of HANDLERS) {
    if (old[name] !== node[name]) old[name] = node[name];
  }
  if (node.nodeName === "INPUT" || node.nodeName === "BUTTON") {
    for (const name of PROPERTIES) {
      if (name !== "value" && old[name] !== node[name]) old[name] = node[name];
    }
  }
  morph(old, ...node.childNodes);
}
