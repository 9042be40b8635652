"""Problems of a pass as sentences, and Events for changed conditions."""

from __future__ import annotations

from delaymq_operator.api.conditions import ConditionType, Reason
from delaymq_operator.reconcile.broker.apply.ensure import NotOursError
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass
from delaymq_operator.reconcile.broker.report.conditions import news
from delaymq_operator.reconcile.errors import KubeError

_MAX_EVENT_CHARS = 1_000
_CONFLICT_LOOK_S = 30.0
"""Requeue interval after a name conflict, which only a user can resolve."""


async def report_failures(p: BrokerPass) -> None:
    """Report pods that are not running, and brokers that do not respond although their pods are ready."""
    pods = [*p.name_server_pods, *(pod for group in p.desired_groups for pod in group.pods)]
    for pod in pods:
        if pod.problem is not None:
            p.problem(
                Reason.POD_FAILING,
                f"{pod.problem}. See `kubectl describe pod {pod.name}` and `kubectl logs {pod.name}`.",
            )
    for late in p.late_pods.values():
        if late.cannot_be_made:
            p.problem(Reason.POD_FAILING, _sentences(f"{late.what}.", late.warning))
        elif not late.has_problem and p.now_ms - late.since_ms >= p.ctx.settings.progress_deadline_s * 1000:
            p.problem(Reason.PROGRESS_DEADLINE_EXCEEDED, _sentences(f"{late.what}.", late.warning))
    for group in p.groups:
        if group.unreachable is not None and group.ready:
            p.problem(
                Reason.BROKER_UNREACHABLE,
                f"{group.name} is ready but does not respond to the operator: {group.unreachable}. Check the network "
                "policies between them.",
            )


def _sentences(*parts: str) -> str:
    """Join sentences, each with a full stop; empty ones are omitted."""
    return " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in parts if part)


def report_conflict(p: BrokerPass, conflict: NotOursError) -> None:
    """Report objects of other owners, which are not taken over; leftovers of an earlier Broker are waited for."""
    if conflict.leftover:
        p.progressing(Reason.CREATING, f"{conflict}.")
        p.not_in_force.append(p.progress[-1])
    else:
        p.not_applied(Reason.NAME_CONFLICT, f"{conflict}.")
        p.requeue(_CONFLICT_LOOK_S)


def report_refused(p: BrokerPass, error: KubeError) -> None:
    """Report that the API server rejects an object."""
    advice = (
        "Grant the operator this permission, or raise the quota"
        if error.forbidden
        else "Correct the field of the spec that the message names"
    )
    p.not_applied(
        Reason.APPLY_FAILED, f"The API server rejects an object derived from the spec: {error.message}. {advice}."
    )


async def emit_events(p: BrokerPass) -> None:
    """Emit an Event for each changed condition that users should be notified of."""
    before = p.broker.status.conditions
    for condition in news(before, p.status.conditions):
        is_good = condition.type == ConditionType.READY and condition.status == "True"
        if condition.type == ConditionType.READY and not is_good:
            # Progressing and Degraded give the reason, and have Events of their own.
            continue
        is_bad = condition.type == ConditionType.DEGRADED
        reason = condition.reason if is_bad else condition.type
        await p.event("Warning" if is_bad else "Normal", reason, condition.message[:_MAX_EVENT_CHARS])
