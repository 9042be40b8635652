// Sign-in: the form for an account or the token, and the rights of whoever uses the page.

import { get, hasToken, post, remove, setToken } from "./api.js";
import { h } from "./dom.js";

const ROLES = ["", "read", "operate", "administer"];
const REASONS = {
  session_ended: "Your session has ended: sign in again.",
  signed_out: "You have signed out.",
};

let me = null;
let forms = 0;

/** The last response of `session`; null before the first one. */
export function session() {
  return me;
}

/** Loads the rights of the page's user; returns whether they differ from the last ones. */
export async function loadSession(signal) {
  const before = me;
  me = await get("session", {}, signal);
  return before?.account !== me.account || before?.role !== me.role;
}

/** Whether the user has a role, as far as is known; the broker decides. */
export function may(role) {
  return me === null || ROLES.indexOf(me.role) >= ROLES.indexOf(role);
}

/** Whether the user may change messages: by a role, or possibly by the permissions of an account without one. */
export function mayChange() {
  return may("operate") || me.role === "";
}

export async function signOut() {
  setToken(null);
  if (me?.account) await remove("session");
  me = null;
}

/**
 * The form for credentials, after the error `code`. Calls `done()` when there are some, and `again(code)` to show another
 * form: "unauthorized" is that for the token.
 */
export function signInForm(code, done, again) {
  me = null;
  return code === "unauthorized" ? tokenForm(done, again) : accountForm(code, done, again);
}

function tokenForm(done, again) {
  const field = h("input", { type: "password", id: "token", autocomplete: "off", required: true, "aria-describedby": "why" });
  const why = hasToken() ? "The broker rejected this token." : "This broker requires its token (httpToken).";
  const submit = (event) => {
    event.preventDefault();
    setToken(field.value);
    done();
  };
  const account = () => {
    setToken(null);
    again("sign_in_needed");
  };
  return form(
    [submit, field],
    h("label", { for: "token" }, "Token"),
    field,
    h("button", { type: "submit", class: "primary" }, "Use token"),
    h("button", { type: "button", class: "plain", onclick: account }, "Use an account instead"),
    h("span", { id: "why" }, why, " It is stored until this tab is closed."),
  );
}

function accountForm(code, done, again) {
  const key = h("input", { id: "access-key", autocomplete: "username", spellcheck: "false", required: true, "aria-describedby": "why" });
  const secret = h("input", { type: "password", id: "secret-key", autocomplete: "current-password", required: true, "aria-describedby": "why" });
  const why = h("span", { id: "why", role: "alert" }, REASONS[code] ?? "Sign in with an account of this broker.");
  const submit = async (event) => {
    event.preventDefault();
    setToken(null);
    try {
      await post("session", { accessKey: key.value, secretKey: secret.value });
    } catch (error) {
      why.textContent = error.message;
      secret.value = "";
      secret.focus();
      return;
    }
    done();
  };
  return form(
    [submit, key],
    h("label", { for: "access-key" }, "Access key"),
    key,
    h("label", { for: "secret-key" }, "Secret key"),
    secret,
    h("button", { type: "submit", class: "primary" }, "Sign in"),
    h("button", { type: "button", class: "plain", onclick: () => again("unauthorized") }, "Use the token instead"),
    why,
  );
}

function form([onsubmit, first], ...children) {
  queueMicrotask(() => first.focus());
  forms += 1;
  // A new form is not matched with an earlier one, whose fields it does not know.
  return h("form", { class: "notice ask", "data-key": `form-${forms}`, onsubmit }, children);
}
