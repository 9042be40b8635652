// What a screen has while it is shown: a place to draw, a signal that ends with it, and bounded polling.

import { ApiError, UnreachableError } from "./api.js";
import { h, morph } from "./dom.js";

const RETRY_MS = 1_000;
const LONGEST_RETRY_MS = 5_000;
// A broker that needs long for an answer is asked less often: one tab takes at most a fifth of its time.
const PAUSE_PER_ANSWER = 4;

export class View {
  #root;
  #ending = new AbortController();

  constructor(root, route) {
    this.#root = root;
    this.route = route;
    this.signal = this.#ending.signal;
  }

  /** Shows these nodes in place of what was there; a screen that was left shows nothing any more. */
  render(...nodes) {
    if (!this.signal.aborted) morph(this.#root, ...nodes);
  }

  #tell(error) {
    // What is shown stays: the next answer may come, and takes the sentence away.
    for (const old of this.#root.querySelectorAll(":scope > .loading, :scope > .problem")) old.remove();
    this.#root.firstElementChild?.after(problem(error));
  }

  /** Takes back all that the screen asked for. */
  leave() {
    this.#ending.abort();
  }

  /**
   * Calls `work(signal)` now and again `intervalMs` after each end, but not while the tab is hidden. A broker that does
   * not answer is asked again, ever less often; what it refuses is given to `onProblem(error)`, by default shown.
   * The function that is returned asks at once, in place of what is under way.
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
          // The screen begins anew when a person has given the token.
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

/** What went wrong, as a sentence. */
export function problem(error) {
  const told = error instanceof ApiError || error instanceof UnreachableError;
  const text = told ? error.message : `The console has a defect: ${error.message}`;
  return h("p", { class: "problem", role: "alert" }, text);
}
