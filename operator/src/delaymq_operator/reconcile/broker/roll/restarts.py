"""Execution of the decisions of strategy.py, after a fresh read of the state on which the decision depends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from delaymq_operator.api import names
from delaymq_operator.api.conditions import Reason
from delaymq_operator.manifests import component_labels
from delaymq_operator.reconcile.broker.apply.stateful_sets import made_from
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group, ObservedSet
from delaymq_operator.reconcile.broker.model.members import Member, is_in_sync
from delaymq_operator.reconcile.broker.model.pods import Pod
from delaymq_operator.reconcile.broker.roll.drains import request_drain
from delaymq_operator.reconcile.broker.roll.handovers import hand_over, may_stop, successor_of
from delaymq_operator.reconcile.broker.roll.strategy import (
    Action,
    Drain,
    HandOver,
    HelpOut,
    Restart,
    Stop,
    TryOut,
    Unit,
    Wait,
    is_rolling,
    next_restart,
)
from delaymq_operator.reconcile.broker.roll.trials import end_trial, must_be_tried, try_out
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest

ROUTE_PROPAGATION_S: Final = 10.0
"""Time after a NameServer becomes ready within which all brokers have registered: they try every 2 s, and its name
may resolve to the previous address for 5 s.
"""
_ELECTION_MS: Final = 60_000
"""Time for the members of a group to agree on a master; afterwards, outdated pods are restarted nevertheless."""
_FAILING_LOOK_S = 5.0
"""Requeue interval while a pod fails; watch events of the pod trigger a reconciliation, and this is a safeguard."""


async def restart_outdated_pods(p: BrokerPass) -> None:
    """Perform one step of a rollout, if any is pending."""
    units = units_of(p)
    action = next_restart(units, p.ctx.settings)
    await _end_other_drains(p, action)
    if not (isinstance(action, (TryOut, Restart)) and action.unit.group is None):
        await end_trial(p)
    p.rolling = is_rolling(action, units)
    match action:
        case Stop(unit):
            message = f"No other pod is restarted until pod {unit.pod_name} runs."
            p.progressing(Reason.WAITING_FOR_POD, message, again_s=_FAILING_LOOK_S)
        case Wait(unit):
            again_s = _FAILING_LOOK_S if unit.hold else None
            late = p.late_pods.get(unit.pod_name)
            message = f"{_waiting_for(unit)} {late.warning}".rstrip() if late is not None else _waiting_for(unit)
            p.progressing(_reason_to_wait(p, unit), message, again_s=again_s)
        case Drain(unit, mode):
            await _drain(p, unit, mode)
        case HelpOut(unit, helpers):
            await _restore_helpers(p, unit, helpers)
        case HandOver(unit):
            await hand_over(p, unit.group, unit.successor, f"before its pod {unit.pod_name} is restarted")
        case TryOut(unit):
            p.rolling = await try_out(p, unit.pod_name) and p.rolling
        case Restart(unit):
            await _restart(p, unit, units)


def units_of(p: BrokerPass) -> list[Unit]:
    """Return the units: NameServers by ordinal, then groups."""
    units = []
    if p.own_name_servers:
        pods = {pod.name: pod for pod in p.name_server_pods}
        for ordinal in range(p.broker.spec.name_servers.replicas):
            name = names.namesrv_pod(p.broker.name, ordinal)
            units.append(
                Unit(
                    pod_name=name,
                    stateful_set=names.namesrv_objects(p.broker.name),
                    pod=pods.get(name),
                    revision=_revision(p.name_servers),
                    untried=must_be_tried(p),
                    settling=_is_settling(p, pods.get(name)),
                    inputs=p.name_servers.inputs,
                )
            )
    for group in p.groups:
        if not group.surplus or group.made:
            units += [_unit(p, group, member) for member in group.members]
    return units


def _unit(p: BrokerPass, group: Group, member: Member) -> Unit:
    silent = (p.memory.unreachable_since_ms.get(group.index), p.memory.undrained_since_ms.get(group.index))
    since_ms = min((at_ms for at_ms in silent if at_ms is not None), default=None)
    is_member, master = bool(member.known_members), group.master
    leads = master is member
    acts = not is_member or leads
    return Unit(
        pod_name=member.name,
        stateful_set=names.group_object(p.broker.name, group.index),
        pod=member.pod,
        revision=_revision(group.set),
        inputs=group.set.inputs,
        group=group.index,
        ordinal=member.ordinal,
        surplus=group.surplus or (member.surplus and member.ordinal > 0) or member.ordinal >= max(1, group.size),
        hold=group.hold,
        info=group.info if acts else None,
        unreachable_s=(p.now_ms - since_ms) / 1000 if since_ms is not None and acts else 0.0,
        member=is_member,
        leads=leads,
        in_sync=not is_member or is_in_sync(master, member.name),
        joining=is_member and _is_joining(group, member),
        responds=member.state is not None,
        masterless=is_member and group.masterless and _may_elect(p, group),
        successor=successor_of(group) if leads else "",
    )


def _is_joining(group: Group, member: Member) -> bool:
    """Return whether this member and the group's broker were created with other addresses of each other, or none."""
    acting = group.master or next((each for each in group.members if each.pod is group.pod), None)
    if acting is None or acting is member:
        return False
    both = set(acting.known_members.split(";")) & set(member.known_members.split(";"))
    return not {acting.name, member.name} <= {entry.partition("=")[0] for entry in both}


def _may_elect(p: BrokerPass, group: Group) -> bool:
    """Return whether the members may agree on a master soon, so that no pod is restarted for lack of one."""
    since_ms = p.memory.masterless_since_ms.get(group.index, p.now_ms)
    return p.now_ms - since_ms < _ELECTION_MS


def _is_settling(p: BrokerPass, pod: Pod | None) -> bool:
    since_ms = pod.ready_since_ms if pod is not None and pod.ready else None
    # The operator's clock may lag behind the API server's, or may have been set back.
    return since_ms is not None and abs(p.now_ms - since_ms) < ROUTE_PROPAGATION_S * 1000


def _revision(found: ObservedSet) -> str | None:
    return found.revision if found.settled else None


def _reason_to_wait(p: BrokerPass, unit: Unit) -> Reason:
    """Return the reason to wait; a group that never ran is being created."""
    if unit.joining:
        return Reason.ADDING_REPLICAS
    ran = {group.group for group in p.broker.status.groups if group.resumed is not None}
    never_ran = unit.group not in ran if unit.group is not None else not ran
    return Reason.CREATING if never_ran else Reason.WAITING_FOR_POD


def _waiting_for(unit: Unit) -> str:
    if unit.pod is None:
        return f"Pod {unit.pod_name} does not exist yet."
    if unit.pod.terminating:
        return f"Pod {unit.pod_name} is terminating."
    if not unit.ready:
        if unit.pod.ready and not unit.in_sync:
            return f"Pod {unit.pod_name} is not in sync yet."
        why = f": {'; '.join(unit.info.not_ready)}" if unit.info is not None and unit.info.not_ready else ""
        return f"Pod {unit.pod_name} is not ready yet{why}."
    if unit.settling:
        return f"NameServer {unit.pod_name} has just become ready: waiting for brokers to register with it."
    if unit.joining:
        return f"Pod {unit.pod_name} does not respond yet; it becomes a replica when the other brokers have restarted."
    if unit.masterless:
        return f"The group of pod {unit.pod_name} has no master."
    if unit.unreachable_s:
        return f"The broker in pod {unit.pod_name} does not respond, so its writes cannot be redirected."
    if unit.hold:
        return f"The restart of pod {unit.pod_name} is postponed: {unit.hold}."
    return f"The StatefulSet of pod {unit.pod_name} is being updated."


async def _end_other_drains(p: BrokerPass, action: Action) -> None:
    """Let remaining groups accept writes again, except the current one: a previous operator may have started another
    drain.
    """
    turn = action.unit.group if isinstance(action, (Drain, Restart)) else None
    # A broker that could not be drained is given new time for each restart.
    since_ms = p.memory.undrained_since_ms
    p.memory.undrained_since_ms = {group: at_ms for group, at_ms in since_ms.items() if group == turn}
    for group in p.desired_groups:
        if group.index != turn and group.info is not None and group.info.drain.mode != "none":
            await request_drain(p, group, "none")


async def _restore_helpers(p: BrokerPass, unit: Unit, helpers: Sequence[Unit]) -> None:
    helping = [group for group in p.groups if group.index in {helper.group for helper in helpers}]
    for group in helping:
        await request_drain(p, group, "none")
    named = ", ".join(group.name for group in helping)
    who = f"a group that will be removed ({named})" if helping else "another group"
    p.progressing(Reason.MOVING_WRITES, f"Pod {unit.pod_name} will be restarted once {who} accepts writes again.")


async def _drain(p: BrokerPass, unit: Unit, mode: str) -> None:
    group = p.group_of(lambda group: group.index == unit.group)
    if group is None or group.info is None:
        return
    if await request_drain(p, group, "refuse" if mode == "refuse" else "withdraw"):
        p.progressing(Reason.MOVING_WRITES, f"Writes are being redirected from {group.name} before its restart.")
        return
    most_s = p.ctx.settings.withdraw_max_s
    what = f"{group.name} has not redirected its writes: {group.unreachable}"
    p.progressing(Reason.MOVING_WRITES, f"{what}. After {most_s:g} s, its pod will be restarted anyway.")


async def _restart(p: BrokerPass, unit: Unit, units: list[Unit]) -> None:
    """Delete the pod if the decision is still valid. The uid ensures that no pod is deleted twice."""
    done = f"{sum(1 for one in units if one.ready and not one.outdated)} of {len(units)} pods are up to date"
    p.progressing(Reason.ROLLING, f"Pod {unit.pod_name} is being restarted; {done}.")
    pod = await _still_to_restart(p, unit, units)
    if pod is None:
        return
    try:
        await p.ctx.kube.delete("Pod", p.namespace, pod.name, uid=pod.uid)
    except KubeError as error:
        if error.conflict:
            return
        raise
    why = pod.problem or "it was created from an earlier version of the Broker's spec"
    await p.event("Normal", "Restarting", f"pod {pod.name} is being restarted: {why}")


async def _still_to_restart(p: BrokerPass, unit: Unit, units: list[Unit]) -> Pod | None:
    """Read the pod again; return None if something has changed, so that the next pass decides."""
    kube = p.ctx.kube
    body = await kube.get("Broker", p.namespace, p.broker.name)
    if (
        body is None
        or body["metadata"].get("generation") != p.broker.generation
        or body["metadata"]["uid"] != p.broker.uid
    ):
        return None
    live = await kube.get("StatefulSet", p.namespace, unit.stateful_set)
    current = ObservedSet(live=live)
    if live is None or not current.settled or not _same_inputs(p, unit, live):
        return None
    if unit.group is not None and await _would_lose_volume(p, unit):
        return None
    if unit.member and not await may_stop(p, unit.group, unit.pod_name):
        return None
    labels = {names.INSTANCE_LABEL: p.broker.name, names.MANAGED_BY_LABEL: names.MANAGED_BY_VALUE}
    pods = {
        body["metadata"]["name"]: Pod.of(body, p.now_ms) for body in await kube.list("Pod", p.namespace, labels=labels)
    }
    pod = pods.get(unit.pod_name)
    if pod is None or unit.pod is None or pod.uid != unit.pod.uid or pod.terminating:
        return None
    decommissioned = unit.info is not None and unit.info.decommissioned
    if pod.revision == current.revision and not decommissioned:
        return None
    if not pod.ready:
        return pod
    others = [other for other in units if other.pod_name != unit.pod_name and not other.surplus and not other.joining]
    return pod if all(other.pod_name in pods and pods[other.pod_name].ready for other in others) else None


async def _would_lose_volume(p: BrokerPass, unit: Unit) -> bool:
    """Return whether the volume is marked for deletion and kept only by its running pod."""
    claims = await p.ctx.kube.list("PersistentVolumeClaim", p.namespace, labels=component_labels(p.broker, "broker"))
    name = names.group_claim(p.broker.name, unit.group or 0, unit.ordinal)
    return any(claim["metadata"]["name"] == name and claim["metadata"].get("deletionTimestamp") for claim in claims)


def _same_inputs(p: BrokerPass, unit: Unit, live: Manifest) -> bool:
    """Return whether the StatefulSet is unchanged since this pass observed it."""
    group = p.group_of(lambda group: group.index == unit.group)
    known = group.set.live if group is not None else p.name_servers.live
    return made_from(live) == made_from(known)
