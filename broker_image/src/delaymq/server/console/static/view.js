// Context of a visible screen: a place to render, a signal that aborts when it is left, and bounded polling.

import { ApiError, UnreachableError } from "./api.js";
import { h, morph } from "./dom.js";

const RETRY_MS = 1_000;
const LONGEST_RETRY_MS = 5_000;
// A slow broker is polled less often: one tab takes at most a fifth of its time.
const PAUSE_PER_ANSWER = 4;

export class View {
  #root;
  #ending = new AbortController();

  constructor(root, route) {
    this.#root = root;
    this.route = route;
    this.signal = this.#ending.signal;
  }

  /** Replaces the rendered nodes; does nothing after the screen was left. */
  render(...nodes) {
    if (!this.signal.aborted) morph(this.#root, ...nodes);
  }

  #tell(error) {
    // The rendered data stays; the next successful response removes the message.
    for (const old of this.#root.querySelectorAll(":scope > .loading, :scope > .problem")) old.remove();
    this.#root.firstElementChild?.after(problem(error));
  }

  /** Aborts all requests of the screen. */
  leave() {
    this.#ending.abort();
  }

  /**
   * Calls `work(signal)` now, and again `intervalMs` after each completion, except while the tab is hidden. Retries with
   * increasing delays if the broker does not respond. Passes its errors to `onProblem(error)`, which shows them by default.
   * Returns a function that cancels the current request and polls immediately.
   */
  poll(intervalMs, work, onProblem = (error) => this.#tell(error)) {
    let current = new AbortController();
    let timer = null;
    let failures = 0;
    const run = async () => {
      clearTimeout(timer);
      timer = null;
      current.abort();
      if (this.signal.aborted) return;
      current = new AbortController();
      const signal = AbortSignal.any([this.signal, current.signal]);
      let pauseMs = intervalMs;
      const began = performance.now();
      try {
        await work(signal);
        failures = 0;
        pauseMs = Math.max(intervalMs, PAUSE_PER_ANSWER * (performance.now() - began));
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof UnreachableError) {
          failures += 1;
          pauseMs = Math.min(RETRY_MS * failures, LONGEST_RETRY_MS);
        } else {
          if (!(error instanceof ApiError)) console.error(error);
          onProblem(error);
          // The screen restarts when the user has entered the token.
          if (error.status === 401) return;
        }
      }
      if (signal.aborted) return;
      if (!document.hidden) timer = setTimeout(run, pauseMs);
    };
    const resume = () => {
      if (!document.hidden && timer === null) run();
    };
    const pause = () => {
      if (document.hidden) {
        clearTimeout(timer);
        timer = null;
      } else {
        resume();
      }
    };
    document.addEventListener("visibilitychange", pause, { signal: this.signal });
    this.signal.addEventListener("abort", () => clearTimeout(timer));
    run();
    return run;
  }
}

/** An error as a sentence. */
export function problem(error) {
  const told = error instanceof ApiError || error instanceof UnreachableError;
  const text = told ? error.message : `Internal error of the console: ${error.message}`;
  return h("p", { class: "problem", role: "alert" }, text);
}
