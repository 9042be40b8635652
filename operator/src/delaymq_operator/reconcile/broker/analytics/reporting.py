"""Status, condition and Events of analytics. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from delaymq_operator.api.analytics import AnalyticsGroupStatus, AnalyticsStatus
from delaymq_operator.api.analytics_names import analytics_application
from delaymq_operator.api.conditions import Condition, Reason
from delaymq_operator.reconcile.broker.model.analysis import GOING_ON, Analysis, Verdict

SUMS: Final = ("messages", "total_bytes", "live_bytes", "dead_bytes", "reclaimable_bytes", "pending", "lost")
MAX_LONG: Final = (1 << 63) - 1
"""Maximum number: the API server rejects a status with a larger one, and results are external data."""
_RUN_REASONS: Final = (Reason.DEADLINE_EXCEEDED, Reason.RUN_FAILED)
_VERDICTS: Final = (*_RUN_REASONS, Reason.RUN_SUCCEEDED, Reason.NO_RUN_YET)


def missing(namespace: str) -> str:
    """Return the message that the Spark operator is missing and how to install it."""
    return (
        "The cluster has no SparkApplication resource: install the Kubeflow Spark operator, for example with `helm "
        f"install spark-operator spark-operator/spark-operator --set 'spark.jobNamespaces={{{namespace}}}'`. Brokers "
        "need it for analytics only; runs that are due wait for it."
    )


def because(reason: Reason, sentence: str) -> str:
    """Return the message of a failed group."""
    return f"{reason}: {sentence}"


def failure_reason(message: str | None) -> Reason:
    """Return the reason in such a message."""
    return next((reason for reason in _RUN_REASONS if (message or "").startswith(f"{reason}:")), Reason.RUN_FAILED)


def entries_of_run(status: AnalyticsStatus, broker: str) -> list[AnalyticsGroupStatus]:
    """Return the groups whose most recent application belongs to the most recent run."""
    token = status.run
    if token is None:
        return []
    return [each for each in status.groups if each.application == analytics_application(broker, each.group, token)]


def summed(groups: Iterable[AnalyticsGroupStatus]) -> dict[str, object]:
    """Return the sums over all groups; None where no group has a figure."""
    found: dict[str, object] = {}
    entries = [each for each in groups if each.complete is not None or each.messages is not None]
    for name in SUMS:
        values = [value for each in entries if (value := getattr(each, name)) is not None]
        found[name] = min(sum(values), MAX_LONG) if values else None
    worst = [each.worst_lateness_ms for each in entries if each.worst_lateness_ms is not None]
    found["worst_lateness_ms"] = max(worst, default=None)
    found["complete"] = all(each.complete is not False for each in entries) if entries else None
    return found


def verdict_of(a: Analysis, broker: str, before: Condition | None) -> Verdict:
    """Return the condition AnalyticsReady."""
    status = a.known
    if a.obstacle is not None:
        return Verdict("False", a.obstacle.reason, a.obstacle.message)
    notes = "".join(f" {note}" for note in a.notes)
    if status.state in GOING_ON:
        message = f"{_goes_on(status, broker)}{notes}"
        if before is not None and before.reason in _VERDICTS:
            # The result of the last run holds until this one has ended.
            return Verdict(before.status, Reason(before.reason), message)
        if status.completed_at is not None:
            return Verdict("True", Reason.RUN_SUCCEEDED, message)
        return Verdict("Unknown", Reason.NO_RUN_YET, message)
    if status.state is None:
        return Verdict("Unknown", Reason.NO_RUN_YET, f"{_next(status)}{notes}")
    entries = entries_of_run(status, broker)
    failed = [each for each in entries if each.state == "Failed"]
    if failed or status.state == "Failed":
        said = " ".join(f"{each.name}: {_sentence(each.message)}" for each in failed) or "The last run failed."
        return Verdict("False", failure_reason(failed[0].message if failed else None), f"{said}{notes}")
    parts = [f"{_parts(each.skipped)} of {each.name} could not be read." for each in entries if each.skipped]
    told = " ".join(["The last run analysed every group.", *parts])
    return Verdict("True", Reason.RUN_SUCCEEDED, f"{told}{notes}")


def _parts(number: int) -> str:
    return "1 part" if number == 1 else f"{number} parts"


def _goes_on(status: AnalyticsStatus, broker: str) -> str:
    current = [each for each in entries_of_run(status, broker) if each.state in GOING_ON]
    if not current:
        return f"Run {status.run} is starting."
    waits = f": {current[0].message}" if current[0].message else ""
    return f"A run is in progress: {current[0].application} is {current[0].state}{waits}."


def _next(status: AnalyticsStatus) -> str:
    if status.next_schedule_time is not None:
        return f"The first run is due at {status.next_schedule_time}."
    return (
        "Nothing has been analysed yet: set spec.analytics.schedule, or set the annotation delaymq.io/analyze to a "
        "new value."
    )


def _sentence(message: str | None) -> str:
    """Return a message without its reason, with a full stop."""
    text = message or "it failed"
    for reason in _RUN_REASONS:
        text = text.removeprefix(f"{reason}: ")
    return text if text.endswith((".", "?", "…")) else f"{text}."
