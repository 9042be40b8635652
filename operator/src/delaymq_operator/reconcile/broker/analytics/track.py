"""Progress of a run: groups are analysed sequentially, each by its own application."""

from __future__ import annotations

from typing import Final

from msgspec import structs

from delaymq_operator.api.analytics import AnalyticsGroupStatus, AnalyticsSpec
from delaymq_operator.api.analytics_names import analytics_application, driver_pod
from delaymq_operator.api.conditions import Reason
from delaymq_operator.api.resource import timestamp_of_ms
from delaymq_operator.reconcile.broker.analytics import reporting
from delaymq_operator.reconcile.broker.analytics.application_state import (
    SILENT,
    SILENT_MS,
    ApplicationState,
    application_state,
)
from delaymq_operator.reconcile.broker.analytics.cleanup import remove_application
from delaymq_operator.reconcile.broker.analytics.finish import (
    failed,
    is_overdue,
    report_failure,
    started_ms,
    succeeded,
)
from delaymq_operator.reconcile.broker.analytics.start import begin
from delaymq_operator.reconcile.broker.model.analysis import GOING_ON
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.broker.model.pods import Pod

_LOOK_S: Final = 5.0
"""Requeue interval while a driver runs; its pod reports its end, and this is a safeguard."""
_EVENT_CHARS: Final = 900


async def continue_run(p: BrokerPass, spec: AnalyticsSpec) -> None:
    """Advance the run by one step. A decision is written to the status before the next step acts on it."""
    status = p.analytics.known
    written = p.broker.status.analytics
    if status.state not in GOING_ON:
        return
    if written is None or written.run != status.run:
        p.requeue(p.ctx.settings.progress_interval_s)
        return
    groups = p.desired_groups
    for group in groups:
        entry = _entry(p, group)
        if _is_of_run(p, entry) and entry.state not in GOING_ON:
            continue
        entry = await _step(p, spec, group, entry)
        p.analytics.put(entry)
        if entry.state in GOING_ON:
            p.analytics.change(state=entry.state, application=entry.application)
            return
        if p.memory.analytics.missing or group is groups[-1]:
            # Without the Spark operator, each of the other groups would in turn wait equally long.
            break
        p.requeue(p.ctx.settings.progress_interval_s)
        return
    await _finish(p)


async def _step(p: BrokerPass, spec: AnalyticsSpec, group: Group, entry: AnalyticsGroupStatus) -> AnalyticsGroupStatus:
    settings = p.ctx.settings
    if not _is_of_run(p, entry):
        p.requeue(settings.progress_interval_s)
        name = analytics_application(p.broker.name, group.index, p.analytics.known.run or "")
        return structs.replace(
            entry,
            application=name,
            state="Starting",
            started_at=timestamp_of_ms(p.now_ms),
            completed_at=None,
            message=None,
        )
    rest_s = (started_ms(entry, p.now_ms) - p.now_ms) / 1000 + spec.deadline_seconds
    if rest_s > 0:
        p.requeue(rest_s)
    if entry.state == "Starting":
        p.requeue(_LOOK_S)
        entry = await begin(p, spec, group, entry)
        if entry.state == "Submitted":
            p.requeue(settings.progress_interval_s)
        return entry
    return await _follow(p, spec, entry)


async def _follow(p: BrokerPass, spec: AnalyticsSpec, entry: AnalyticsGroupStatus) -> AnalyticsGroupStatus:
    name = entry.application or ""
    application = await p.ctx.kube.get("SparkApplication", p.namespace, name)
    overdue = is_overdue(p, spec, entry)
    deadline = f"it took longer than spec.analytics.deadlineSeconds ({spec.deadline_seconds} s)"
    if application is None or application["metadata"].get("deletionTimestamp"):
        if p.may_change:
            await remove_application(p, name)
        if overdue:
            return failed(p, entry, Reason.DEADLINE_EXCEEDED, f"{deadline} and was stopped")
        return failed(p, entry, Reason.RUN_FAILED, f"SparkApplication {name} was deleted while it ran")
    body = p.cached("Pod", driver_pod(name))
    driver = Pod.of(body, p.now_ms) if body is not None else None
    found = application_state(application, driver, p.now_ms, started_ms(entry, p.now_ms))
    if found.state == "Completed":
        return await succeeded(p, entry)
    if found.state == "Failed":
        return await report_failure(p, entry, found.message or "it failed")
    if overdue:
        await remove_application(p, name, application["metadata"]["uid"])
        last = f"; its last state: {found.message}" if found.message else ""
        return failed(p, entry, Reason.DEADLINE_EXCEEDED, f"{deadline} and was stopped{last}")
    _requeue(p, entry, found, body)
    return structs.replace(entry, state=found.state, message=found.message)


def _requeue(p: BrokerPass, entry: AnalyticsGroupStatus, found: ApplicationState, driver: object) -> None:
    progress_s = p.ctx.settings.progress_interval_s
    if found.silent:
        p.analytics.hinder(Reason.SPARK_OPERATOR_SILENT, f"SparkApplication {entry.application}: {SILENT}")
    works = found.state == "Running" and not _has_ended(driver)
    is_new = p.now_ms - started_ms(entry, p.now_ms) < SILENT_MS
    p.requeue(progress_s if is_new and not works else max(progress_s, _LOOK_S))
    if _has_ended(driver):
        p.requeue(progress_s)


def _has_ended(driver: object) -> bool:
    status = (driver.get("status") or {}) if isinstance(driver, dict) else {}
    return status.get("phase") in ("Succeeded", "Failed")


def _entry(p: BrokerPass, group: Group) -> AnalyticsGroupStatus:
    return p.analytics.entry(group.index) or AnalyticsGroupStatus(group=group.index, name=group.name)


def _is_of_run(p: BrokerPass, entry: AnalyticsGroupStatus) -> bool:
    token = p.analytics.known.run or ""
    return entry.application == analytics_application(p.broker.name, entry.group, token)


async def drop_removed_groups(p: BrokerPass) -> None:
    """Stop analysing groups that are to be removed, and delete them from the status."""
    desired = {group.index for group in p.desired_groups}
    for entry in p.analytics.known.groups:
        if entry.group in desired:
            continue
        if entry.state in GOING_ON and entry.application is not None:
            if not p.may_change:
                continue
            await remove_application(p, entry.application)
        kept = tuple(each for each in p.analytics.known.groups if each.group != entry.group)
        p.analytics.change(groups=kept, **reporting.summed(kept))


async def _finish(p: BrokerPass) -> None:
    """Finish a run whose groups have all ended: record the sums and emit an Event."""
    entries = reporting.entries_of_run(p.analytics.known, p.broker.name)
    bad = [entry for entry in entries if entry.state == "Failed"]
    good = bool(entries) and not bad
    last = entries[-1].application if entries else p.analytics.known.application
    completed_at = timestamp_of_ms(p.now_ms) if any(entry.state == "Succeeded" for entry in entries) else None
    p.analytics.change(
        state="Succeeded" if good else "Failed",
        application=last,
        completed_at=completed_at or p.analytics.known.completed_at,
        **reporting.summed(p.analytics.known.groups),
    )
    p.ctx.count_analytics("succeeded" if good else "failed")
    if good:
        await p.event("Normal", "AnalyticsSucceeded", f"analytics run {p.analytics.known.run} analysed every group")
        return
    reason = reporting.failure_reason(bad[0].message if bad else None)
    said = " ".join(f"{entry.name}: {entry.message}." for entry in bad)[:_EVENT_CHARS]
    await p.event("Warning", reason, f"analytics run {p.analytics.known.run} failed: {said}")
