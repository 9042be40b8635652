"""Replacement of lost volumes of replicas, if the spec requests it.

A volume is replaced only while the register names a master that responds and does not count the broker of the volume:
every confirmed message then exists in the brokers that it counts.
"""

from __future__ import annotations

from typing import Final

from delaymq_operator.api import names
from delaymq_operator.api.conditions import Reason
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.broker.model.members import Member
from delaymq_operator.reconcile.broker.observe.lost_volumes import check_volume
from delaymq_operator.reconcile.broker.roll.handovers import proof_of
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.ports import Manifest

_STUCK_MS: Final = 60_000
"""Time after which a pod that is not scheduled and has no claim is replaced: the StatefulSet creates both again."""


async def replace_lost_volumes(p: BrokerPass) -> None:
    """Replace volumes that have been lost for the time that the spec states."""
    after_s = p.broker.spec.replication.replace_lost_volumes_after_seconds
    if after_s is None:
        return
    for group in p.desired_groups:
        for member in group.members if group.replicated else ():
            if member.claim is None:
                await _replace_stuck_pod(p, member)
                continue
            found = p.memory.lost_volumes.get(member.claim["metadata"]["uid"])
            if found is None or not found.why:
                continue
            left_s = found.since_ms / 1000 + after_s - p.now_ms / 1000
            if left_s > 0:
                p.requeue(left_s)
            else:
                await _replace(p, group, member, member.claim)


async def _replace(p: BrokerPass, group: Group, member: Member, claim: Manifest) -> None:
    """Delete the claim, and then the pod, so that the next pod gets a new volume."""
    proof = await _proof(p, group, member)
    # Checked again, since the last check may be some seconds old.
    found = await check_volume(p, claim) if proof else None
    if found is None or not found.why:
        return
    metadata = claim["metadata"]
    name, version = metadata["name"], metadata["resourceVersion"]
    if not metadata.get("deletionTimestamp"):
        what = f"volume {name} of {group.name} is lost ({found.why}) and is replaced ({proof})"
        await p.event("Warning", "ReplacingVolume", what)
        await p.ctx.kube.delete("PersistentVolumeClaim", p.namespace, name, uid=metadata["uid"], version=version)
    if member.pod is not None and not member.pod.terminating:
        await p.ctx.kube.delete("Pod", p.namespace, member.name, uid=member.pod.uid)
    p.progressing(Reason.REPLACING_VOLUME, f"Volume {name} is being replaced.")


async def _proof(p: BrokerPass, group: Group, member: Member) -> str:
    """Return why the group has every confirmed message without a broker; empty: this is not certain.

    Only the master of the register's epoch changes the set in sync, so both are read again.
    """
    master = group.master
    if master is None or master is member or master.endpoint is None:
        return ""
    try:
        state = await p.ctx.admin.replication(master.endpoint)
    except (BrokerUnreachable, BrokerRefused):
        return ""
    if state is None or state.role != "Master" or not state.register.reachable:
        return ""
    lease = await p.ctx.kube.get("Lease", p.namespace, names.group_register(p.broker.name, group.index))
    record = (lease or {}).get("spec") or {}
    if (record.get("holderIdentity"), record.get("leaseTransitions")) != (master.name, state.epoch):
        return ""
    is_gone = all(not each.connected for each in state.members if each.name == member.name)
    return proof_of(state) if is_gone and member.name not in state.in_sync else ""


async def _replace_stuck_pod(p: BrokerPass, member: Member) -> None:
    """Replace a pod whose claim was deleted by an operator that ended before it deleted the pod."""
    pod = member.pod
    if pod is None or pod.terminating or pod.node is not None or pod.unready_since_ms is None:
        return
    if p.now_ms - pod.unready_since_ms >= _STUCK_MS:
        await p.ctx.kube.delete("Pod", p.namespace, member.name, uid=pod.uid)
