"""Removal of surplus groups, highest first, each once it contains no undelivered or unconsumed messages."""

from __future__ import annotations

from collections.abc import Sequence

from delaymq.api_types.broker import About, Remaining

from delaymq_operator.api import names
from delaymq_operator.api.broker import parse_broker
from delaymq_operator.api.conditions import Reason
from delaymq_operator.api.errors import SpecError
from delaymq_operator.reconcile.broker.apply.ensure import check_ours
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.broker.roll.drains import (
    ROUTES_S,
    DrainStep,
    held_s,
    is_known,
    next_drain_step,
    request_drain,
)
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.ports import Endpoint

_SHOWN = 3


def _override(p: BrokerPass) -> str:
    """Return the advice for the override; it includes the size, so that it does not apply to the next scale-in."""
    return (
        "To remove the group although it may contain messages, annotate the Broker with "
        f'{names.FORCE_SCALE_IN_ANNOTATION}="{p.broker.spec.size}".'
    )


async def remove_surplus_groups(p: BrokerPass) -> None:
    """Redirect writes from all surplus groups, then remove the highest one if permitted.

    Restarts of groups that stay come first: meanwhile surplus groups may be the only ones that accept writes.
    """
    surplus = sorted((group for group in p.groups if group.surplus), key=lambda group: -group.index)
    if not surplus:
        return
    if p.rolling and not p.broker.force_scale_in:
        await _keep_writable(p, surplus)
        p.progressing(Reason.SCALING_IN, "Surplus groups are removed after the remaining groups have been restarted.")
        return
    if p.broker.force_scale_in is False and not any(group.writable for group in p.desired_groups):
        p.progressing(Reason.SCALING_IN, "Surplus groups are removed once one of the remaining groups accepts writes.")
        return
    top = surplus[0]
    for group in surplus:
        await _move_writes_away(p, group, is_top=group is top)
    if not top.made:
        await _remove_services(p, top)
    elif top.set.live is not None and top.set.live["metadata"].get("deletionTimestamp"):
        p.progressing(Reason.SCALING_IN, f"{top.name} is being removed.")
    elif await _is_removable(p, top):
        await _remove(p, top)


async def _keep_writable(p: BrokerPass, surplus: Sequence[Group]) -> None:
    """Let a drained group accept late writes: two groups that reject leave a send no alternative."""
    if not any(group.writable for group in p.desired_groups):
        return
    for group in surplus:
        if group.info is not None and not group.info.decommissioned and group.info.drain.mode != "none":
            await request_drain(p, group, "withdraw")


async def _move_writes_away(p: BrokerPass, group: Group, *, is_top: bool) -> None:
    """Redirect writes of a group; reads and deliveries continue. Each pass renews the lease: without an operator,
    the group returns to normal.

    Only one group rejects sends at a time: RocketMQ's clients try three brokers, two of which may be the same.
    """
    if group.info is None or group.info.decommissioned:
        return
    step = _drain_step(p, group.info) if is_top else "withdraw"
    await request_drain(p, group, "refuse" if step == "done" else step)


def _drain_step(p: BrokerPass, info: About) -> DrainStep:
    other_known = any(group.info is not None and is_known(group.info) for group in p.desired_groups)
    return next_drain_step(info, p.ctx.settings, other_known=other_known)


async def _is_removable(p: BrokerPass, group: Group) -> bool:
    """Return whether no message would be lost, or the user permitted the loss."""
    if p.broker.force_scale_in:
        return True
    if group.info is None or group.endpoint is None:
        why = group.unreachable or (group.pod.problem if group.pod is not None else None) or "its pod is not running"
        advice = f"See `kubectl describe pod {names.group_pod(p.broker.name, group.index)}`."
        _blocked(p, f"{group.name} cannot report its remaining messages: {why}. {advice} {_override(p)}")
        return False
    if not group.info.decommissioned and _drain_step(p, group.info) != "done":
        if group.unreachable is not None:
            _blocked(p, f"{group.name} has not redirected its writes: {group.unreachable}. {_override(p)}")
        else:
            p.progressing(Reason.SCALING_IN, f"Writes are being redirected from {group.name} before it is removed.")
        return False
    try:
        left = await p.ctx.admin.remaining(group.endpoint)
    except (BrokerUnreachable, BrokerRefused) as error:
        _blocked(p, f"{group.name} did not report its remaining messages: {error}. {_override(p)}")
        return False
    if left.pending_delays == 0 and left.unconsumed_messages == 0:
        # Nothing responds at the address of a removed group. Until routes expire, the broker rejects sends, so that
        # clients with an old route use another group.
        if group.info.decommissioned or held_s(group.info) >= ROUTES_S:
            return True
        p.progressing(
            Reason.SCALING_IN, f"{group.name} is empty and will be removed once clients no longer have routes to it."
        )
        return False
    what = f"{group.name} is read-only and still contains {describe_remaining(left)}"
    _blocked(p, f"{what}. It will be removed once they are delivered and consumed. {_override(p)}")
    return False


def describe_remaining(left: Remaining) -> str:
    """Return a description of the remaining messages."""
    parts = []
    if left.pending_delays:
        parts.append(f"{left.pending_delays} delayed message{'s' if left.pending_delays > 1 else ''} not yet delivered")
    if left.unconsumed_messages:
        largest = [f"{each.messages} of topic {each.topic} by group {each.group}" for each in left.unconsumed[:_SHOWN]]
        more = ", …" if len(left.unconsumed) > _SHOWN else ""
        noun = "messages" if left.unconsumed_messages > 1 else "message"
        parts.append(f"{left.unconsumed_messages} {noun} not yet consumed ({', '.join(largest)}{more})")
    return " and ".join(parts)


def _blocked(p: BrokerPass, message: str) -> None:
    p.scale_in_blocked.append(message)
    p.progressing(Reason.SCALING_IN, message, again_s=p.ctx.settings.poll_interval_s)


async def _remove(p: BrokerPass, group: Group) -> None:
    """Remove the group from the routes and delete its StatefulSet; spec.storage determines whether its volume is
    kept.
    """
    p.progressing(Reason.SCALING_IN, f"{group.name} is being removed.")
    if group.set.live is not None:
        check_ours(p, group.set.live)
    if not _volume_is_free(p, group) or not await _still_surplus(p, group):
        return
    if group.endpoint is not None:
        try:
            # A master that stops hands over, and its replicas must not register the group again.
            for endpoint in [each for each in _replicas(group) if each != group.endpoint]:
                await p.ctx.admin.decommission(endpoint)
            await p.ctx.admin.decommission(group.endpoint)
        except (BrokerUnreachable, BrokerRefused) as error:
            if not p.broker.force_scale_in:
                _blocked(p, f"{group.name} could not be removed from the routes: {error}. {_override(p)}")
                return
    if group.set.live is not None:
        metadata = group.set.live["metadata"]
        await p.ctx.kube.delete("StatefulSet", p.namespace, metadata["name"], uid=metadata["uid"])
        what = f"{group.name} is removed; its volume is {'deleted' if p.broker.spec.storage.delete_claim else 'kept'}"
        if p.broker.force_scale_in:
            what += f"; remove the annotation {names.FORCE_SCALE_IN_ANNOTATION} before adding groups again"
        await p.event("Normal", "RemovingGroup", what)


def _replicas(group: Group) -> list[Endpoint]:
    return [member.endpoint for member in group.members if member.endpoint is not None]


def _volume_is_free(p: BrokerPass, group: Group) -> bool:
    """Return whether the volume is kept when the StatefulSet is deleted, if it shall be: its controller releases the
    claim first.
    """
    if p.broker.spec.storage.delete_claim or group.set.live is None:
        return True
    owners = [owner for claim in group.claims for owner in claim["metadata"].get("ownerReferences") or []]
    return group.set.settled and group.set.live["metadata"]["uid"] not in {owner.get("uid") for owner in owners}


async def _still_surplus(p: BrokerPass, group: Group) -> bool:
    """Return whether the group is still surplus, by a fresh read, since removal is irreversible."""
    body = await p.ctx.kube.get("Broker", p.namespace, p.broker.name)
    if body is None:
        return False
    try:
        fresh = parse_broker(body)
    except SpecError:
        return False
    if fresh.deleting or fresh.spec.paused or fresh.spec.size > group.index:
        return False
    same_will = (fresh.force_scale_in, fresh.spec.storage) == (p.broker.force_scale_in, p.broker.spec.storage)
    return fresh.uid == p.broker.uid and same_will


async def _remove_services(p: BrokerPass, group: Group) -> None:
    """Delete the Services after the pod stopped, since it used the address until then."""
    p.progressing(Reason.SCALING_IN, f"{group.name} is being removed.")
    if group.pods:
        return
    for service in (group.service, group.external):
        if service is not None and not service["metadata"].get("deletionTimestamp"):
            metadata = service["metadata"]
            await p.ctx.kube.delete("Service", p.namespace, metadata["name"], uid=metadata["uid"])
