// Requests to the broker: only JSON below api/v1 of this page's address.

const TOKEN_KEY = "delaymq-token";
// Longer than any response should take, so that no screen waits indefinitely.
const TIMEOUT_MS = 15_000;

// Requests later than this after the user's last input do not prolong a session.
const INPUT_MS = 60_000;

/** State of the connection, as events: "answered", "lost", "restarted" and "token" (its `detail` is an error code). */
export const connection = new EventTarget();

let bootId = null;
let isLost = false;
let aheadMs = 0;
let inputAtMs = Date.now();

for (const kind of ["pointerdown", "keydown"]) {
  document.addEventListener(kind, () => { inputAtMs = Date.now(); }, { capture: true, passive: true });
}

/** Error response of the broker; `message` is a sentence. */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** No response. */
export class UnreachableError extends Error {}

/** The broker's current time, derived from its last response. */
export function brokerNow() {
  return Date.now() + aheadMs;
}

export function hasToken() {
  return sessionStorage.getItem(TOKEN_KEY) !== null;
}

/** Stores the token until the tab is closed; null removes it. */
export function setToken(token) {
  if (token === null) sessionStorage.removeItem(TOKEN_KEY);
  else sessionStorage.setItem(TOKEN_KEY, token);
}

/** GET; parameters that are null or empty are omitted. */
export function get(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  const text = query.toString();
  return ask(text ? `${path}?${text}` : path, { method: "GET" }, signal);
}

/** POST with a JSON body. */
export function post(path, body, signal = undefined) {
  const headers = { "Content-Type": "application/json" };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body) }, signal);
}

/** DELETE. */
export function remove(path) {
  return ask(path, { method: "DELETE" });
}

async function ask(path, options, signal) {
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  const token = sessionStorage.getItem(TOKEN_KEY);
  const headers = { Accept: "application/json", ...options.headers };
  if (Date.now() - inputAtMs > INPUT_MS) headers["DelayMQ-Idle"] = "1";
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  let answer;
  let body;
  try {
    answer = await fetch(`api/v1/${path}`, {
      ...options,
      headers,
      cache: "no-store",
      credentials: "same-origin",
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
    });
    body = await answer.json().catch((error) => {
      if (error instanceof SyntaxError) return null;
      throw error;
    });
  } catch (error) {
    // Leaving a screen is not a failure of the broker.
    if (signal?.aborted) throw error;
    lost();
    throw new UnreachableError("The broker does not respond.", { cause: error });
  }
  return judged(answer, body);
}

function judged(answer, body) {
  answered(body);
  if (answer.ok && body !== null) return body;
  const told = body?.error;
  if (answer.status === 401 && told?.code !== "sign_in_failed") connection.dispatchEvent(new CustomEvent("token", { detail: told?.code }));
  throw new ApiError(
    answer.status,
    told?.code ?? "unknown",
    told?.message ?? `The broker returned ${answer.status} without a reason.`,
  );
}

function answered(body) {
  if (typeof body?.asOfMs === "number") aheadMs = body.asOfMs - Date.now();
  if (isLost) {
    isLost = false;
    connection.dispatchEvent(new Event("answered"));
  }
  if (typeof body?.bootId === "string") {
    if (bootId !== null && bootId !== body.bootId) connection.dispatchEvent(new Event("restarted"));
    bootId = body.bootId;
  }
}

function lost() {
  if (isLost) return;
  isLost = true;
  connection.dispatchEvent(new Event("lost"));
}
