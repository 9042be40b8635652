"""Readiness: the condition Ready, and kstatus' Reconciling and Stalled."""

from __future__ import annotations

from typing import Final, NamedTuple

from delaymq_operator.api.conditions import Condition, ConditionStatus, ConditionType, Reason, find_condition
from delaymq_operator.api.resource import ms_of_timestamp
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Note
from delaymq_operator.reconcile.broker.report.replicas import in_sync_verdict
from delaymq_operator.reconcile.broker.roll.restarts import units_of

SPEC_REASONS: Final = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.INVALID_CONFIG,
        Reason.DELAY_LEVEL_CONFIG_MISSING,
        Reason.DELAY_LEVEL_CONFIG_INVALID,
        Reason.SECRET_MISSING,
        Reason.CERTIFICATE_INVALID,
        Reason.NAME_SERVER_NOT_ALLOWED,
    }
)
"""Reasons each of which prevents the spec from taking effect."""
_NEVER_READY: Final = frozenset({Reason.CREATING, Reason.INVALID_SPEC})
_STALLS_AT_ONCE: Final = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.INVALID_CONFIG,
        Reason.DELAY_LEVEL_CONFIG_INVALID,
        Reason.NAME_SERVER_NOT_ALLOWED,
        Reason.APPLY_FAILED,
        Reason.NAME_CONFLICT,
        Reason.NODE_PORT_TAKEN,
        Reason.PROGRESS_DEADLINE_EXCEEDED,
        Reason.VOLUME_CANNOT_GROW,
    }
)
"""These do not resolve with time."""
_STALLS_IN_TIME: Final = frozenset(
    {
        Reason.DELAY_LEVEL_CONFIG_MISSING,
        Reason.SECRET_MISSING,
        Reason.CERTIFICATE_INVALID,
        Reason.ADDRESS_PENDING,
        Reason.POD_FAILING,
        Reason.VOLUME_BEING_DELETED,
        Reason.VOLUME_NOT_BOUND,
    }
)
"""Something missing may still appear, such as a Secret that is applied at the same time: wait, but not forever."""
_MAX_NAMED: Final = 5


class Readiness(NamedTuple):
    """Status, reason and message of Ready."""

    status: ConditionStatus
    reason: Reason
    message: str


def readiness_of(p: BrokerPass) -> Readiness:
    """Return True if all pods run the spec and serve, Unknown if they serve but not all run it."""
    desired = p.desired_groups
    ready = sum(1 for group in desired if group.ready)
    counted = f"{ready} of {len(desired)} broker groups {'is' if ready == 1 else 'are'} ready"
    goes_on = f"The running pods are unchanged: {counted}." if desired else ""
    if p.problems and p.problems[0].reason in SPEC_REASONS:
        return Readiness("False", Reason.INVALID_SPEC, f"{p.problems[0].message} {goes_on}".rstrip())
    if ready < len(desired):
        missing = ", ".join(group.name for group in desired if not group.ready)
        was_ready = find_condition(p.broker.status.conditions, ConditionType.READY)
        never = not p.broker.status.ready_groups and (was_ready is None or was_ready.reason in _NEVER_READY)
        reason = Reason.CREATING if never else Reason.GROUPS_NOT_READY
        return Readiness(
            "False", reason, f"{counted}; not ready: {missing}. See the conditions Progressing and Degraded."
        )
    if p.own_name_servers:
        servers = sum(1 for pod in p.name_server_pods if pod.ready)
        if servers < p.broker.spec.name_servers.replicas:
            what = f"{servers} of {p.broker.spec.name_servers.replicas} NameServers are ready"
            message = f"{what}; clients that are connected to the brokers are not affected."
            return Readiness("False", Reason.NAME_SERVERS_NOT_READY, message)
    if p.not_in_force:
        return Readiness("False", p.not_in_force[0].reason, f"{p.not_in_force[0].message} {goes_on}")
    return _in_force(p, counted)


def _in_force(p: BrokerPass, counted: str) -> Readiness:
    """Return the readiness if all pods serve."""
    if p.broker.spec.paused:
        what = f"{counted}; their settings are not checked while spec.paused is true"
        return Readiness("Unknown", Reason.PAUSED_BY_SPEC, f"{what}.")
    if p.tls_step:
        return Readiness("Unknown", Reason.ROLLING, f"{counted}, but spec.tls is not in effect yet: {p.tls_step}")
    old = [unit.pod_name for unit in units_of(p) if not unit.surplus and not unit.rolled_out]
    if old:
        named = ", ".join(old[:_MAX_NAMED]) + (" and others" if len(old) > _MAX_NAMED else "")
        what = f"{counted}, but the spec is not in effect in {len(old)} pod{('s' if len(old) > 1 else '')}"
        return Readiness("Unknown", Reason.ROLLING, f"{what}: {named}. See the condition Progressing.")
    in_sync = in_sync_verdict(p)
    if in_sync is not None and in_sync[0] == "False":
        return Readiness("Unknown", in_sync[1], f"{counted}, but not all replicas are in sync: {in_sync[2]}")
    silent = [group.name for group in p.desired_groups if group.info is None or group.unreachable is not None]
    if silent and not _was_in_force(p):
        what = f"{counted}, but the settings of {', '.join(silent[:_MAX_NAMED])} could not be checked"
        return Readiness("Unknown", Reason.BROKER_UNREACHABLE, f"{what}: no response yet.")
    return Readiness("True", Reason.ALL_GROUPS_READY, f"{counted}.")


def _was_in_force(p: BrokerPass) -> bool:
    """Return whether this spec was in effect before: then a broker that is briefly unresponsive changes nothing."""
    before = find_condition(p.broker.status.conditions, ConditionType.READY)
    return before is not None and before.status == "True" and before.observed_generation == p.broker.generation


def stalled_of(p: BrokerPass, degraded: Condition | None) -> Note | None:
    """Return the obstacle that prevents the spec from taking effect without user action; `degraded` contains its
    start.
    """
    for problem in p.problems:
        if problem.reason in _STALLS_AT_ONCE:
            return problem
    waited_for = next((problem for problem in p.problems if problem.reason in _STALLS_IN_TIME), None)
    since_ms = ms_of_timestamp(degraded.last_transition_time) if degraded is not None else None
    if waited_for is None or since_ms is None:
        return None
    left_s = p.ctx.settings.progress_deadline_s - (p.now_ms - since_ms) / 1000
    if left_s > 0:
        p.requeue(left_s)
        return None
    return waited_for


def reconciling_of(p: BrokerPass, ready: Readiness, stalled: Note | None) -> Note | None:
    """Return the current step; None if the spec is in effect, if no step is possible, and while paused."""
    if stalled is not None or p.broker.spec.paused:
        return None
    if p.progress:
        return p.progress[0]
    return None if ready.status == "True" else Note(ready.reason, ready.message)
