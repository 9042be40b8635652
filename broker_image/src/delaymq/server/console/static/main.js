// Routing between screens, and the frame around them: the broker's name and state, notices, and the form for credentials.

import { brokerNow, connection, get, hasToken } from "./api.js";
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
import { loadSession, may, session, signInForm, signOut } from "./sign-in.js";
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
// Roles that screens need, besides the permissions of an account.
const NEEDS = { overview: "read", delays: "read", accounts: "administer", audit: "administer" };
const IDENTITY_MS = 5_000;

const content = document.getElementById("content");
const notices = document.getElementById("notices");
const whoami = document.getElementById("whoami");
let current = null;
let lostAtMs = null;
let restartedAtMs = null;
// Error code for which credentials are wanted, and the form for them.
let wanted = null;
let form = null;

function routeOf(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [screen, ...rest] = path.split("/");
  return { screen: screen || (may("read") ? "overview" : "topics"), name: rest.length ? decoded(rest.join("/")) : null, parameters: new URLSearchParams(query) };
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
  if (wanted !== null) {
    shown.push(credentialsForm());
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

function credentialsForm() {
  form ??= signInForm(
    wanted,
    () => {
      wanted = null;
      tell();
      identify();
      show({ isMove: false });
    },
    want,
  );
  return form;
}

// Removes what earlier credentials showed.
function want(code) {
  if (code === wanted) return;
  wanted = code;
  form = null;
  identity?.leave();
  current?.leave();
  morph(whoami);
  morph(content, h("h1", {}, "Sign in"));
  tell();
}

let identity = null;

function identify() {
  identity?.leave();
  identity = new View(whoami, null);
  identity.poll(IDENTITY_MS, showIdentity, () => morph(whoami));
}

let broker = null;

async function showIdentity(signal) {
  // Requests for the rights also show that a session has ended, which those of an account without a role would not.
  if ((session() === null || !may("read")) && (await loadSession(signal))) restrict();
  const me = session();
  let state = null;
  if (may("read")) {
    const { bootId, ready, notReady } = await get("totals", {}, signal);
    // The long response is read only once per start of the broker.
    if (broker?.bootId !== bootId) broker = await get("broker", {}, signal);
    state = ready ? badge("ready", "good") : badge("not ready", "bad", notReady.join("; "));
  }
  const leave = async () => {
    await signOut().catch(() => {}); // it may have ended
    if (hasAccount) want("signed_out");
    else location.reload();
  };
  const hasAccount = me.account !== null;
  morph(
    whoami,
    may("read")
      ? h("span", { class: "whoami-name", title: `cluster ${broker.clusterName}, version ${broker.version}` }, broker.brokerName)
      : h("span", { class: "whoami-name" }, me.brokerName),
    state,
    hasAccount ? h("span", { class: "whoami-name", title: "signed-in account" }, me.account, me.role ? ` (${me.role})` : "") : null,
    hasAccount || hasToken() ? h("button", { type: "button", class: "plain", onclick: leave }, hasAccount ? "Sign out" : "Forget token") : null,
  );
}

// Hides the screens that the user may not see, and draws the others without controls that the role does not allow.
function restrict() {
  for (const each of document.querySelectorAll("#screens a")) each.hidden = !may(NEEDS[each.dataset.screen] ?? "");
  if (!may("administer")) show({ isMove: false });
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
connection.addEventListener("token", ({ detail }) => {
  // After a rejected token, its form has to say so.
  if (detail === "unauthorized") wanted = null;
  want(detail);
});
document.getElementById("skip").addEventListener("click", (event) => {
  // The hash is reserved for screens.
  event.preventDefault();
  content.focus();
});
window.addEventListener("hashchange", () => show());
identify();
show({ isMove: false });
