"""Retention of applications of former runs. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable

from delaymq_operator.api.analytics import AnalyticsSpec, AnalyticsStatus
from delaymq_operator.reconcile.broker.analytics.application_state import COMPLETED, FAILED
from delaymq_operator.reconcile.ports import Manifest


def to_remove(applications: Iterable[Manifest], status: AnalyticsStatus, spec: AnalyticsSpec) -> list[Manifest]:
    """Return applications beyond the limits, while no run is in progress; unfinished ones belong to no run then.

    A report that the status refers to is kept as long as any are, whatever the results of the other groups in its
    run.
    """
    runs: dict[str, list[Manifest]] = defaultdict(list)
    removed = []
    for application in applications:
        if _ended(application):
            runs[token_of(application)].append(application)
        else:
            removed.append(application)
    left = {True: spec.successful_runs_history_limit, False: spec.failed_runs_history_limit}
    reports: Container[str | None] = (
        {group.report for group in status.groups} if spec.successful_runs_history_limit else ()
    )
    for token in sorted(runs, key=lambda token: _newest(runs[token]), reverse=True):
        succeeded = _succeeded(runs[token], token, status)
        left[succeeded] -= 1
        if left[succeeded] < 0:
            removed += [each for each in runs[token] if each["metadata"]["name"] not in reports]
    return removed


def token_of(application: Manifest) -> str:
    """Return the run's token, the suffix of the name."""
    name: str = application["metadata"]["name"]
    return name.rpartition("-")[2]


def _newest(applications: list[Manifest]) -> str:
    return max(str(each["metadata"].get("creationTimestamp") or "") for each in applications)


def _succeeded(applications: list[Manifest], token: str, status: AnalyticsStatus) -> bool:
    """Return whether a run succeeded; for the most recent run the status decides, since an application can complete
    without a result.
    """
    if token == status.run:
        return status.state == "Succeeded"
    return all(_state(each) == COMPLETED for each in applications)


def _ended(application: Manifest) -> bool:
    return _state(application) == COMPLETED or _state(application) in FAILED


def _state(application: Manifest) -> str:
    told = (application.get("status") or {}).get("applicationState") or {}
    return str(told.get("state") or "")
