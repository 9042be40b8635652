// Routing between screens, and the frame around them: the broker's name and state, notices, and the token form.

import { brokerNow, connection, get, hasToken, setToken } from "./api.js";
import { h, morph } from "./dom.js";
import { time } from "./format.js";
import { badge } from "./parts.js";
import { accountsScreen } from "./screen-accounts.js";
import { auditScreen } from "./screen-audit.js";
import { deadLetterGroupScreen, deadLettersScreen } from "./screen-deadletters.js";
import { delaysScreen } from "./screen-delays.js";
import { forecastScreen } from "./screen-forecast.js";
import { groupScreen, groupsScreen } from "./screen-groups.js";
import { messageScreen } from "./screen-message.js";
import { messagesScreen } from "./screen-messages.js";
import { overviewScreen } from "./screen-overview.js";
import { pendingScreen } from "./screen-pending.js";
import { topicScreen, topicsScreen } from "./screen-topics.js";
import { View } from "./view.js";

// Each screen as [list, details of one item]; selected by the first segment of the hash.
const SCREENS = {
  overview: [overviewScreen, overviewScreen],
  topics: [topicsScreen, topicScreen],
  groups: [groupsScreen, groupScreen],
  delays: [delaysScreen, (view, route) => (route.name === "forecast" ? forecastScreen : pendingScreen)(view, route)],
  messages: [messagesScreen, messageScreen],
  deadletters: [deadLettersScreen, deadLetterGroupScreen],
  accounts: [accountsScreen, accountsScreen],
  audit: [auditScreen, auditScreen],
};
const IDENTITY_MS = 5_000;

const content = document.getElementById("content");
const notices = document.getElementById("notices");
const whoami = document.getElementById("whoami");
let current = null;
let lostAtMs = null;
let restartedAtMs = null;
let isTokenWanted = false;

function routeOf(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [screen, ...rest] = path.split("/");
  return { screen: screen || "overview", name: rest.length ? decoded(rest.join("/")) : null, parameters: new URLSearchParams(query) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // an invalid percent sequence
  }
}

function show({ isMove = true } = {}) {
  current?.leave();
  const route = routeOf(location.hash);
  const screens = SCREENS[route.screen];
  for (const each of document.querySelectorAll("#screens a")) {
    if (each.dataset.screen === route.screen) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  morph(content);
  if (!screens) {
    morph(content, h("p", { class: "empty" }, "This page does not exist: choose one above."));
    return;
  }
  current = new View(content, route);
  document.title = `${route.name ?? route.screen[0].toUpperCase() + route.screen.slice(1)} · DelayMQ`;
  screens[route.name === null ? 0 : 1](current, route);
  if (isMove) {
    window.scrollTo(0, 0);
    content.focus({ preventScroll: true });
  }
}

function tell() {
  const shown = [];
  if (isTokenWanted) {
    shown.push(tokenForm());
  } else if (lostAtMs !== null) {
    const since = time(lostAtMs);
    shown.push(
      h("p", { class: "notice bad", "data-key": "lost" }, "The broker has not responded since ", since, ". The data shown may be out of date. The console retries every few seconds."),
    );
  } else if (restartedAtMs !== null) {
    shown.push(
      h(
        "div",
        { class: "notice good", "data-key": "back" },
        "The broker was restarted and has been responding since ", time(restartedAtMs), ". Counts since startup have been reset. ",
        h("button", { type: "button", class: "plain", onclick: seenRestart }, "Dismiss"),
      ),
    );
  }
  morph(notices, ...shown);
}

function seenRestart() {
  restartedAtMs = null;
  tell();
}

function tokenForm() {
  const kept = notices.querySelector("form");
  if (kept) return kept;
  const field = h("input", { type: "password", id: "token", autocomplete: "off", required: true, "aria-describedby": "token-why" });
  const why = hasToken() ? "The broker rejected this token." : "This broker requires its token (httpToken).";
  const submit = (event) => {
    event.preventDefault();
    setToken(field.value);
    isTokenWanted = false;
    tell();
    identify();
    show({ isMove: false });
  };
  const form = h(
    "form",
    { class: "notice ask", "data-key": "token", onsubmit: submit },
    h("label", { for: "token" }, "Token"),
    field,
    h("button", { type: "submit", class: "primary" }, "Use token"),
    h("span", { id: "token-why" }, why, " It is stored until this tab is closed."),
  );
  queueMicrotask(() => field.focus());
  return form;
}

let identity = null;

function identify() {
  identity?.leave();
  identity = new View(whoami, null);
  identity.poll(IDENTITY_MS, showIdentity, () => morph(whoami));
}

let broker = null;

async function showIdentity(signal) {
  const { bootId, ready, notReady } = await get("totals", {}, signal);
  // The long response is read only once per start of the broker.
  if (broker?.bootId !== bootId) broker = await get("broker", {}, signal);
  const state = ready ? badge("ready", "good") : badge("not ready", "bad", notReady.join("; "));
  const forget = () => {
    setToken(null);
    location.reload();
  };
  morph(
    whoami,
    h("span", { class: "whoami-name", title: `cluster ${broker.clusterName}, version ${broker.version}` }, broker.brokerName),
    state,
    hasToken() ? h("button", { type: "button", class: "plain", onclick: forget }, "Forget token") : null,
  );
}

connection.addEventListener("lost", () => {
  lostAtMs = Date.now();
  restartedAtMs = null;
  morph(whoami, badge("no response", "bad"));
  tell();
});
connection.addEventListener("answered", () => {
  lostAtMs = null;
  tell();
  identify();
});
connection.addEventListener("restarted", () => {
  restartedAtMs = brokerNow();
  tell();
});
connection.addEventListener("token", () => {
  isTokenWanted = true;
  tell();
});
document.getElementById("skip").addEventListener("click", (event) => {
  // The hash is reserved for screens.
  event.preventDefault();
  content.focus();
});
window.addEventListener("hashchange", () => show());
identify();
show({ isMove: false });
