"""The analytics step of a reconcile pass: starts runs that are due, advances them, and reports obstacles."""

from __future__ import annotations

import logging
from typing import Final

from delaymq_operator.api.analytics import AnalyticsSpec, AnalyticsStatus
from delaymq_operator.api.analytics_names import demanded_token, scheduled_token
from delaymq_operator.api.conditions import ConditionType, Reason, find_condition
from delaymq_operator.api.resource import ms_of_timestamp, timestamp_of_ms
from delaymq_operator.manifests.hashes import short_hash
from delaymq_operator.reconcile.broker.analytics import reporting
from delaymq_operator.reconcile.broker.analytics.cleanup import clean_up, remove_all
from delaymq_operator.reconcile.broker.analytics.schedule import ScheduleError, latest_time_ms, next_time_ms
from delaymq_operator.reconcile.broker.analytics.start import for_one_pod
from delaymq_operator.reconcile.broker.analytics.track import continue_run, drop_removed_groups
from delaymq_operator.reconcile.broker.apply.analytics_policy import keep_policy
from delaymq_operator.reconcile.broker.model.analysis import GOING_ON, Obstacle
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass
from delaymq_operator.reconcile.errors import KubeError

MAX_BACKOFF_S: Final = 60.0
"""Maximum interval between attempts while the API server rejects objects for analytics."""
_MAX_EXPONENT: Final = 6
_MAX_KEPT_TEXT_CHARS: Final = 256
"""Maximum length of the annotation's value in the status."""

_logger = logging.getLogger(__name__)


async def run_analytics(p: BrokerPass) -> None:
    """Advance the analytics by one step, or report the obstacle. It never raises errors of the objects that
    analytics need.
    """
    if p.spec_problem is not None and p.spec_problem.reason is Reason.INVALID_SPEC:
        # An unreadable spec does not reveal whether it contains analytics.
        return
    memory = p.memory.analytics
    wait_ms = memory.retry_ms - p.now_ms
    if wait_ms > 0:
        p.requeue(wait_ms / 1000)
        p.analytics.obstacle = memory.obstacle
    else:
        memory.obstacle = None
        try:
            await _advance(p)
            memory.failures = 0
        except KubeError as error:
            _try_later(p, error)
        except Exception as error:
            # Whatever the error, the brokers are still reconciled.
            _logger.exception("the analytics of %s failed, a bug in the operator; retrying later", p.key)
            _try_later(p, error)
    await _report_verdict(p)


async def _advance(p: BrokerPass) -> None:
    spec = p.broker.spec.analytics
    if spec is None:
        if p.analytics.status is not None and p.may_change:
            await remove_all(p)
            p.analytics.status = None
            p.memory.analytics.cleaned_up = None
            p.memory.analytics.missing = False
        return
    if p.analytics.status is None:
        p.analytics.status = AnalyticsStatus(since=timestamp_of_ms(p.now_ms))
        p.requeue(p.ctx.settings.progress_interval_s)
    _report_one_pod(p, spec)
    await keep_policy(p)
    try:
        await _follow_schedule(p, spec)
        invalid = None
    except ScheduleError as error:
        p.analytics.change(next_schedule_time=None)
        invalid = Obstacle(Reason.INVALID_SCHEDULE, f"{error}. Runs on demand are still possible.")
    _follow_annotation(p)
    await drop_removed_groups(p)
    await continue_run(p, spec)
    await clean_up(p, spec)
    p.analytics.obstacle = p.analytics.obstacle or invalid


async def _follow_schedule(p: BrokerPass, spec: AnalyticsSpec) -> None:
    """Record the run that is due, and the time of the next one.

    Only a previously announced time is due: neither a new schedule nor the end of a suspension starts a run
    immediately. ScheduleError.
    """
    status = p.analytics.known
    if spec.schedule is None or spec.suspend:
        p.analytics.change(next_schedule_time=None)
        return
    minute_ms = p.now_ms - p.now_ms % 60_000
    last_ms = ms_of_timestamp(status.last_schedule_time)
    told_ms = ms_of_timestamp(status.next_schedule_time)
    # Rounded to the minute, so that it is computed once per minute; a clock that was set back repeats no run.
    next_ms = next_time_ms(spec.schedule, spec.time_zone, max(minute_ms, last_ms or 0))
    if told_ms is not None and told_ms <= p.now_ms:
        if not p.may_change:
            return
        latest_ms = latest_time_ms(spec.schedule, spec.time_zone, told_ms, p.now_ms)
        if latest_ms is not None and latest_ms > (last_ms or 0):
            await _note_due(p, latest_ms)
    p.analytics.change(next_schedule_time=timestamp_of_ms(next_ms))
    p.requeue(max(0.0, (next_ms - p.now_ms) / 1000))


async def _note_due(p: BrokerPass, due_ms: int) -> None:
    status, due = p.analytics.known, timestamp_of_ms(due_ms)
    p.analytics.change(last_schedule_time=due)
    if status.state in GOING_ON:
        what = f"the run due at {due} is skipped: run {status.run} is still in progress"
        await p.event("Warning", "AnalyticsSkipped", what)
    else:
        _note_run(p, scheduled_token(due_ms / 1000))


def _follow_annotation(p: BrokerPass) -> None:
    """Record a requested run once no other is in progress."""
    status, text = p.analytics.known, p.broker.analyze_annotation
    if status.state in GOING_ON or not p.may_change or not text or _kept_text(text) == status.analyzed:
        return
    p.analytics.change(analyzed=_kept_text(text))
    # The token includes the previous run, so that a repeated text starts a new run.
    _note_run(p, demanded_token(f"{text}\n{status.run or ''}"))


def _note_run(p: BrokerPass, token: str) -> None:
    """Record a run; it starts in the next pass, when the status contains it."""
    p.analytics.change(run=token, state="Starting")
    p.requeue(p.ctx.settings.progress_interval_s)


def _kept_text(text: str) -> str:
    if len(text) <= _MAX_KEPT_TEXT_CHARS:
        return text
    return f"{text[:_MAX_KEPT_TEXT_CHARS]}…{short_hash(text)}"


def _report_one_pod(p: BrokerPass, spec: AnalyticsSpec) -> None:
    claims = [group.claim["metadata"]["name"] for group in p.desired_groups if group.claim and for_one_pod(group)]
    if spec.read == "Volume" and claims:
        what = f"No other pod can mount {', '.join(claims)} (ReadWriteOncePod)"
        p.analytics.notes.append(f"{what}: the store is read through the broker's HTTP interface instead.")


def _try_later(p: BrokerPass, error: Exception) -> None:
    memory = p.memory.analytics
    memory.failures += 1
    after_s = min(MAX_BACKOFF_S, 2.0 ** min(memory.failures - 1, _MAX_EXPONENT))
    memory.retry_ms = p.now_ms + int(after_s * 1000)
    p.requeue(after_s)
    if isinstance(error, KubeError) and error.forbidden:
        said = (
            f"The operator lacks a permission for analytics: {error.message}. Grant it the permissions of the role "
            "in the chart."
        )
        memory.obstacle = Obstacle(Reason.RUN_FAILED, said)
        p.analytics.obstacle = memory.obstacle
    elif isinstance(error, KubeError):
        _logger.warning("the analytics of %s failed: %s; retrying in %.0f s", p.key, error, after_s)


async def _report_verdict(p: BrokerPass) -> None:
    if p.analytics.status is None:
        return
    if p.memory.analytics.missing:
        p.analytics.obstacle = Obstacle(Reason.SPARK_OPERATOR_MISSING, reporting.missing(p.namespace))
    before = find_condition(p.broker.status.conditions, ConditionType.ANALYTICS_READY)
    verdict = p.analytics.verdict = reporting.verdict_of(p.analytics, p.broker.name, before)
    is_news = before is None or before.reason != verdict.reason
    if p.analytics.obstacle is not None and is_news:
        await p.event("Warning", verdict.reason, verdict.message[:900])
