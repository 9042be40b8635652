"""Replacement of lost volumes of replicas, if the spec requests it.

A volume is replaced only while the register names a master that responds and does not count the broker of the volume:
every confirmed message then exists in the brokers that it counts.
"""

from __future__ import annotations

import msgspec

from delaymq_operator.api import names
from delaymq_operator.api.conditions import Reason
from delaymq_operator.api.names import PROMOTE_ANNOTATION, REGISTER_ANNOTATION
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.broker.model.members import Member
from delaymq_operator.reconcile.broker.observe.lost_volumes import check_volume
from delaymq_operator.reconcile.broker.roll.handovers import proof_of
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.ports import Manifest


class _Record(msgspec.Struct, frozen=True, rename="camel"):
    """The register (docs/formats/register.md)."""

    epoch: int
    master: str
    in_sync: tuple[str, ...]


class _DoubtError(Exception):
    """Why a volume is not replaced yet."""


async def replace_lost_volumes(p: BrokerPass) -> None:
    """Replace volumes that have been lost for the time that the spec states."""
    after_s = p.broker.spec.replication.replace_lost_volumes_after_seconds
    if after_s is None:
        return
    for group in p.desired_groups:
        for member in group.members:
            claim = member.claim
            found = p.memory.lost_volumes.get(claim["metadata"]["uid"]) if claim is not None else None
            if claim is None or found is None:
                continue
            name = claim["metadata"]["name"]
            if found.problem and not found.why:
                what = f"Whether volume {name} of {group.name} is lost is unknown: {found.problem}."
                p.problem(Reason.VOLUME_UNKNOWN, what)
            left_s = found.since_ms / 1000 + after_s - p.now_ms / 1000
            if found.why and left_s > 0:
                p.requeue(left_s)
            elif found.why:
                try:
                    await _replace(p, group, member, claim)
                except _DoubtError as doubt:
                    p.problem(Reason.VOLUME_LOST, f"Volume {name} is not replaced yet: {doubt}.")


async def _replace(p: BrokerPass, group: Group, member: Member, claim: Manifest) -> None:
    """Delete the claim, and then the pod, so that the next pod gets a new volume. _DoubtError if this may be wrong.

    The StatefulSet creates the claim of a pod that has none, so that nothing is left to do after the first deletion.
    """
    await _check_broker(p)
    proof = await _proof(p, group, member)
    # Checked again, since the last check may be some seconds old.
    found = await check_volume(p, member, claim)
    if found.problem or not found.why:
        raise _DoubtError(found.problem or "its node has returned")
    metadata = claim["metadata"]
    name, version = metadata["name"], metadata["resourceVersion"]
    if not metadata.get("deletionTimestamp"):
        what = f"volume {name} of {group.name} is lost ({found.why}) and is replaced ({proof})"
        await p.event("Warning", "ReplacingVolume", what)
        await p.ctx.kube.delete("PersistentVolumeClaim", p.namespace, name, uid=metadata["uid"], version=version)
    if member.pod is not None and not member.pod.terminating:
        await p.ctx.kube.delete("Pod", p.namespace, member.name, uid=member.pod.uid)
    p.progressing(Reason.REPLACING_VOLUME, f"Volume {name} is being replaced.")


async def _check_broker(p: BrokerPass) -> None:
    """Read the Broker again, since the cache may lag: it may have been paused."""
    metadata = ((await p.ctx.kube.get("Broker", p.namespace, p.broker.name)) or {}).get("metadata") or {}
    if (metadata.get("uid"), metadata.get("generation")) != (p.broker.uid, p.broker.generation):
        raise _DoubtError("the Broker has changed")
    if metadata.get("deletionTimestamp"):
        raise _DoubtError("the Broker is being deleted")


async def _proof(p: BrokerPass, group: Group, member: Member) -> str:
    """Return why the group has every confirmed message without a broker. _DoubtError if this is not certain.

    Only the master of the register's epoch changes the set in sync, so both are read again.
    """
    if p.broker.promote_annotation.partition("@")[0] in {each.name for each in group.members}:
        # What the promoted broker lacked may exist only here.
        raise _DoubtError(f"the annotation {PROMOTE_ANNOTATION} is set; remove it if the volume is not needed any more")
    master = group.master
    if master is None or master is member or master.endpoint is None:
        raise _DoubtError(f"{group.name} has no master")
    try:
        state = await p.ctx.admin.replication(master.endpoint)
    except (BrokerUnreachable, BrokerRefused) as error:
        raise _DoubtError(f"the master does not respond ({error})") from error
    # Pod addresses are reused, so another broker may respond.
    if state is None or (state.member, state.role) != (master.name, "Master"):
        raise _DoubtError(f"{master.name} does not respond as master any more")
    if not state.register.reachable:
        raise _DoubtError(f"{master.name} cannot reach its Lease")
    record = await _record(p, group)
    if record is None or (record.master, record.epoch) != (master.name, state.epoch):
        raise _DoubtError(f"the Lease does not state that {master.name} is the master of epoch {state.epoch}")
    if member.name in record.in_sync or member.name in state.in_sync:
        raise _DoubtError(f"{master.name} counts {member.name} as in sync")
    if any(each.connected for each in state.members if each.name == member.name):
        raise _DoubtError(f"{master.name} is connected to {member.name}: the broker still runs")
    return proof_of(state)


async def _record(p: BrokerPass, group: Group) -> _Record | None:
    lease = await p.ctx.kube.get("Lease", p.namespace, names.group_register(p.broker.name, group.index))
    text = (((lease or {}).get("metadata") or {}).get("annotations") or {}).get(REGISTER_ANNOTATION, "")
    try:
        return msgspec.json.decode(text, type=_Record)
    except msgspec.DecodeError:
        return None
