"""End of a group's run: with a result, by the deadline, or because a requirement is missing."""

from __future__ import annotations

from msgspec import structs

from delaymq_operator.api.analytics import AnalyticsGroupStatus, AnalyticsSpec
from delaymq_operator.api.analytics_names import driver_pod
from delaymq_operator.api.conditions import Reason
from delaymq_operator.api.resource import ms_of_timestamp, timestamp_of_ms
from delaymq_operator.reconcile.broker.analytics.application_state import one_line
from delaymq_operator.reconcile.broker.analytics.reporting import because
from delaymq_operator.reconcile.broker.analytics.results import ResultError, has_report, result_of, with_figures
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass


def started_ms(entry: AnalyticsGroupStatus, now_ms: int) -> int:
    """Return the time when its application was created, or when its turn started."""
    at_ms = ms_of_timestamp(entry.started_at)
    return now_ms if at_ms is None else at_ms


def is_overdue(p: BrokerPass, spec: AnalyticsSpec, entry: AnalyticsGroupStatus) -> bool:
    """Return whether its deadline has passed. It does not pass while nothing may be changed."""
    return p.may_change and p.now_ms - started_ms(entry, p.now_ms) >= spec.deadline_seconds * 1000


def failed(p: BrokerPass, entry: AnalyticsGroupStatus, reason: Reason, sentence: str) -> AnalyticsGroupStatus:
    """Record a failure without a result; the figures of the last result are kept."""
    return structs.replace(
        entry, state="Failed", completed_at=timestamp_of_ms(p.now_ms), message=because(reason, one_line(sentence))
    )


async def succeeded(p: BrokerPass, entry: AnalyticsGroupStatus) -> AnalyticsGroupStatus:
    """Record a completed driver: a success if there is a result."""
    name = entry.application or ""
    config_map = await p.ctx.kube.get("AnalyticsResult", p.namespace, name)
    try:
        result = result_of(config_map, name)
    except ResultError as error:
        return failed(p, entry, Reason.RUN_FAILED, str(error))
    ended = structs.replace(entry, state="Succeeded", completed_at=timestamp_of_ms(p.now_ms), message=None)
    if result.report_omitted:
        ended = structs.replace(ended, message=one_line(result.report_omitted))
    return with_figures(ended, result, name if has_report(config_map) else None)


async def report_failure(p: BrokerPass, entry: AnalyticsGroupStatus, message: str) -> AnalyticsGroupStatus:
    """Record a failed driver; the explanation in its result, if any, takes precedence over the Spark operator's."""
    name = entry.application or ""
    config_map = await p.ctx.kube.get("AnalyticsResult", p.namespace, name)
    try:
        result_of(config_map, name)
    except ResultError as error:
        if config_map is not None and config_map.get("data"):
            return failed(p, entry, Reason.RUN_FAILED, str(error))
    advice = f"see `kubectl logs {driver_pod(name)}` and `kubectl describe sparkapplication {name}`"
    return failed(p, entry, Reason.RUN_FAILED, f"{message}; {advice}")
