"""Replicas in the status: masters, members in sync, and the conditions ReplicasInSync and FailoverReady."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from delaymq_operator.api.broker_status import GroupStatus, ReplicaStatus
from delaymq_operator.api.conditions import ConditionStatus, Reason
from delaymq_operator.api.names import PROMOTE_ANNOTATION
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.broker.model.members import Member, is_in_sync, progress_of
from delaymq_operator.reconcile.broker.roll.handovers import loss_of, proof_of

MASTERLESS_MS: Final = 20_000
"""Time after which the lack of a master is a problem: an automatic failover takes less."""
Verdict = tuple[ConditionStatus, Reason, str]


def replica_statuses(group: Group, before: Sequence[ReplicaStatus]) -> tuple[ReplicaStatus, ...]:
    """Return the status of each broker of a group; empty without replicas.

    Without a master, nobody knows who is in sync: the last statement of a master is kept.
    """
    if not group.replicated:
        return ()
    if group.master is None:
        return tuple(before)
    return tuple(_status(group, member) for member in group.members if member.pod is not None)


def _status(group: Group, member: Member) -> ReplicaStatus:
    progress = progress_of(group.master, member.name)
    is_master = member is group.master
    return ReplicaStatus(
        name=member.name,
        node=member.pod.node if member.pod is not None else None,
        in_sync=is_in_sync(group.master, member.name),
        behind_bytes=0 if is_master else progress.behind_bytes if progress is not None else None,
        behind_ms=0 if is_master else progress.behind_ms if progress is not None else None,
    )


async def report_replicas(p: BrokerPass) -> None:
    """Report changed masters by Events, and members and groups that need an administrator."""
    before = {group.group: group for group in p.broker.status.groups}
    for group in p.desired_groups:
        if not group.replicated:
            continue
        await _report_master(p, group, before.get(group.index))
        for member in group.members:
            if member.state is not None and member.state.role == "Failed":
                what = f"{member.name} cannot follow its group: {member.state.problem or 'see its log'}"
                p.problem(Reason.REPLICA_FAILED, f"{what}. Delete its volume and its pod to let it copy all messages.")
        if _is_masterless(p, group):
            await _report_lack(p, group)


async def _report_master(p: BrokerPass, group: Group, before: GroupStatus | None) -> None:
    if group.master is None or group.master.state is None:
        return
    known = (before.master, before.epoch) if before is not None else (None, None)
    state = group.master.state
    if known[1] != state.epoch:
        what = f"{group.name}: {group.master.name} is the master ({proof_of(state)})"
        await p.event("Normal", "MasterChanged", what)


def _is_masterless(p: BrokerPass, group: Group) -> bool:
    since_ms = p.memory.masterless_since_ms.get(group.index)
    return since_ms is not None and p.now_ms - since_ms >= MASTERLESS_MS


async def _report_lack(p: BrokerPass, group: Group) -> None:
    """Report a group without a master, and what a promotion of each member would lose."""
    states = [(member, member.state) for member in group.members if member.state is not None]
    problems = {state.register.problem for _, state in states if state.register.problem}
    why = f" ({'; '.join(sorted(problems))})" if problems else ""
    todo = f"to continue with it, set the annotation {PROMOTE_ANNOTATION}="
    options = [f"{loss_of(p, group, member)}: {todo}{member.name}@{state.epoch}" for member, state in states]
    text = f"{group.name} has no master{why}. Its brokers continue when those that were in sync are running again."
    p.problem(Reason.NO_MASTER, text)
    for option in options:
        await p.event("Warning", "NoMaster", f"{group.name} has no master; {option}")


def in_sync_verdict(p: BrokerPass) -> Verdict | None:
    """Return the condition ReplicasInSync; None without replicas."""
    groups = [group for group in p.desired_groups if group.replicated]
    if not groups or (p.broker.spec.replicas_per_group == 1 and all(group.size == 1 for group in groups)):
        return None
    lacking = [text for group in groups for text in _lacking(p, group)]
    if lacking:
        return "False", Reason.NOT_IN_SYNC, f"{'; '.join(lacking)}."
    return "True", Reason.ALL_IN_SYNC, "All replicas of all groups are in sync."


def _lacking(p: BrokerPass, group: Group) -> list[str]:
    if group.master is None:
        return [f"{group.name} has no master"]
    wanted = range(p.broker.spec.replicas_per_group)
    missing = [member.name for member in group.members if member.ordinal in wanted]
    missing = [name for name in missing if not is_in_sync(group.master, name)]
    if len(group.members) < len(wanted):
        missing.append(f"{len(wanted) - len(group.members)} that do not exist yet")
    return [f"{group.name}: not in sync: {', '.join(missing)}"] if missing else []


def failover_verdict(p: BrokerPass) -> Verdict | None:
    """Return the condition FailoverReady: each group can lose its master; None without replicas."""
    groups = [group for group in p.desired_groups if group.replicated]
    if in_sync_verdict(p) is None:
        return None
    for group in groups:
        if group.master is None or group.master.state is None:
            return "False", Reason.NO_MASTER, f"{group.name} has no master."
        state = group.master.state
        if not state.register.reachable:
            why = f": {state.register.problem}" if state.register.problem else ""
            return "False", Reason.REGISTER_UNREACHABLE, f"The master of {group.name} cannot reach its Lease{why}."
        if not any(name != group.master.name for name in state.in_sync):
            return "False", Reason.NO_CANDIDATE, f"{group.name} has no replica in sync."
    if p.broker.spec.replication.failover == "Manual":
        what = "spec.replication.failover is Manual: a replica becomes master by the annotation only"
        return "False", Reason.MANUAL_FAILOVER, f"{what}, {PROMOTE_ANNOTATION}."
    return "True", Reason.EVERY_GROUP, "In each group, a replica in sync can become master without losing messages."
