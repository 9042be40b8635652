"""Removal of brokers from groups with replicas, one group at a time.

A broker that is to be removed leaves the set in sync by its own statement, so that neither a confirmation nor a
failover depends on it any more. Its volume is kept, unless spec.storage.deleteClaim is true.
"""

from __future__ import annotations

from delaymq_operator.api import names
from delaymq_operator.api.conditions import Reason
from delaymq_operator.api.names import MEMBERS_ANNOTATION
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.broker.model.members import Member, is_in_sync
from delaymq_operator.reconcile.broker.roll.handovers import hand_over, proof_of, successor_of
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable


async def remove_surplus_members(p: BrokerPass) -> None:
    """Perform one step of a removal. Restarts come first, since they end with a replica in sync."""
    for group in p.desired_groups:
        await _drop_claims(p, group)
    shrinking = next((group for group in p.desired_groups if _surplus(group)), None)
    if shrinking is None:
        return
    if p.rolling:
        p.progressing(Reason.REMOVING_REPLICAS, f"Replicas of {shrinking.name} are removed after the restarts.")
        return
    await _shrink(p, shrinking)


def _surplus(group: Group) -> list[Member]:
    """Return the brokers that are to be removed and still count as members, the highest first."""
    found = [member for member in group.members if member.surplus and 0 < member.ordinal < group.size]
    return sorted(found, key=lambda member: -member.ordinal)


async def _shrink(p: BrokerPass, group: Group) -> None:
    master, surplus = group.master, _surplus(group)
    named = ", ".join(member.name for member in surplus)
    if master is None or master.state is None or master.endpoint is None:
        p.progressing(Reason.REMOVING_REPLICAS, f"{named} will be removed once {group.name} has a master.")
        return
    if master in surplus:
        target = successor_of(group, kept=True)
        if target:
            await hand_over(p, group.index, target, f"before {master.name} is removed")
        else:
            what = f"{master.name} is the master and will be removed once a remaining broker is in sync"
            p.progressing(Reason.REMOVING_REPLICAS, f"{group.name}: {what}.")
        return
    kept = [member for member in group.members if not member.surplus]
    if len(kept) > 1 and not successor_of(group, kept=True):
        p.progressing(Reason.REMOVING_REPLICAS, f"{named} will be removed once a remaining replica is in sync.")
        return
    for member in surplus:
        if is_in_sync(master, member.name) and not await _detach(p, group, master, member):
            return
    await _record(p, group, surplus, len(kept))


async def _detach(p: BrokerPass, group: Group, master: Member, member: Member) -> bool:
    """Return whether the master no longer counts a member. Otherwise, it removes a silent one after 2 s."""
    p.progressing(Reason.REMOVING_REPLICAS, f"{member.name} leaves {group.name}.")
    if member.endpoint is None or member.state is None or master.endpoint is None or master.state is None:
        return False
    try:
        await p.ctx.admin.detach(member.endpoint, master.endpoint, member.name, master.state.epoch)
    except (BrokerUnreachable, BrokerRefused) as error:
        p.progressing(Reason.REMOVING_REPLICAS, f"{member.name} has not left {group.name}: {error}.")
        return False
    return True


async def _record(p: BrokerPass, group: Group, surplus: list[Member], size: int) -> None:
    """Record the smaller group at its volumes; the next pass stops the other pods and restarts the remaining ones."""
    state = group.master.state if group.master is not None else None
    for member in group.members:
        if member.claim is not None:
            wanted = None if member in surplus else str(size)
            patch = {"metadata": {"annotations": {MEMBERS_ANNOTATION: wanted}}}
            name = member.claim["metadata"]["name"]
            member.claim = await p.ctx.kube.patch("PersistentVolumeClaim", p.namespace, name, patch)
    named = ", ".join(member.name for member in surplus)
    proof = f" ({proof_of(state)})" if state is not None else ""
    await p.event("Normal", "RemovingReplicas", f"{group.name}: {named} left the group and is removed{proof}")
    p.progressing(Reason.REMOVING_REPLICAS, f"{named} is being removed from {group.name}.")


async def _drop_claims(p: BrokerPass, group: Group) -> None:
    """Delete the volumes of removed brokers, if the spec requests it."""
    if not p.broker.spec.storage.delete_claim or not group.replicated:
        return
    for ordinal in range(max(1, group.size), names.MAX_REPLICAS):
        claim = p.cached("PersistentVolumeClaim", names.group_claim(p.broker.name, group.index, ordinal))
        if claim is None or claim["metadata"].get("deletionTimestamp"):
            continue
        if p.cached("Pod", names.group_pod(p.broker.name, group.index, ordinal)) is not None:
            continue
        if MEMBERS_ANNOTATION in (claim["metadata"].get("annotations") or {}):
            continue
        metadata = claim["metadata"]
        await p.ctx.kube.delete("PersistentVolumeClaim", p.namespace, metadata["name"], uid=metadata["uid"])
