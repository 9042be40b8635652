"""Interpretation of a SparkApplication's state. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from delaymq_operator.reconcile.broker.model.pods import Pod
from delaymq_operator.reconcile.ports import Manifest

SILENT_MS: Final = 60_000
"""Time after which an application without a state counts as ignored by the Spark operator, which needs a few
seconds.
"""
NO_EXECUTOR_MS: Final = 60_000
MAX_MESSAGE_CHARS: Final = 600
"""Maximum length of a message, since the Spark operator's errors can contain whole stack traces."""

COMPLETED: Final = "COMPLETED"
FAILED: Final = frozenset({"FAILED", "SUBMISSION_FAILED"})
"""States that are final failures, since nothing is retried (restartPolicy Never)."""
_BEFORE_RUNNING: Final = frozenset({"", "NEW", "SUBMITTED", "PENDING_RERUN", "INVALIDATING"})
_RUNNING: Final = frozenset({"RUNNING", "SUCCEEDING", "FAILING"})

# The Spark operator passes on the entire output of spark-submit. These find the line with the cause and, in a message
# of the Kubernetes client, the API server's response:
_CAUSE: Final = re.compile(
    r'^(?:Exception in thread "[^"\n]*"|Caused by:) +(?P<cause>.*?)(?: Received status: Status\(.*)?$', re.MULTILINE
)
_ANSWERED: Final = re.compile(r"\. Message: +(?P<answer>.+)")
MAX_ERROR_CHARS: Final = 100_000
"""Maximum number of characters of an error that are searched; an application can contain a million."""

SILENT: Final = (
    "the Spark operator has not processed it: check that the Spark operator runs and watches this namespace "
    "(spark.jobNamespaces of its chart)"
)


@dataclass(frozen=True)
class ApplicationState:
    """Observed state of an application."""

    state: Literal["Submitted", "Running", "Completed", "Failed"]
    message: str | None = None
    """What it is waiting for, or why it failed."""
    silent: bool = False
    """Whether the Spark operator ignores it."""


def application_state(application: Manifest, driver: Pod | None, now_ms: int, created_ms: int) -> ApplicationState:
    """Return the state of an application; `driver` is its driver pod."""
    status = application.get("status") or {}
    told = status.get("applicationState") or {}
    state, error = str(told.get("state") or ""), _cause(told.get("errorMessage"))
    if state == COMPLETED:
        return ApplicationState("Completed")
    if state in FAILED:
        return ApplicationState("Failed", error or f"the Spark operator reports {state}")
    if state == "" and now_ms - created_ms >= SILENT_MS:
        return ApplicationState("Submitted", SILENT, silent=True)
    if state in _BEFORE_RUNNING:
        return ApplicationState("Submitted", driver.problem if driver is not None else None)
    if state in _RUNNING:
        return ApplicationState("Running", _of_pods(status, driver, now_ms - created_ms))
    return ApplicationState(
        "Running", f"the Spark operator reports {one_line(state)}" + (f": {error}" if error else "")
    )


def _of_pods(status: dict[str, Any], driver: Pod | None, age_ms: int) -> str | None:
    if driver is not None and driver.problem is not None:
        return driver.problem
    executors = status.get("executorState") or {}
    waiting = sorted(name for name, state in executors.items() if state == "PENDING")
    if waiting and len(waiting) == len(executors) and age_ms >= NO_EXECUTOR_MS:
        return f"no executor is running yet: see `kubectl describe pod {waiting[0]}`"
    return None


def _cause(error: object) -> str:
    """Return why an application failed, according to the Spark operator."""
    text = str(error or "")[:MAX_ERROR_CHARS]
    found = _CAUSE.search(text)
    if found is None:
        return one_line(text)
    answered = _ANSWERED.search(found["cause"])
    return one_line(answered["answer"] if answered else found["cause"])


def one_line(text: object) -> str:
    """Return a foreign text as one line of limited length."""
    joined = " ".join(str(text or "").split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in joined[: MAX_MESSAGE_CHARS + 1])
    return shown if len(shown) <= MAX_MESSAGE_CHARS else shown[: MAX_MESSAGE_CHARS - 1] + "…"
