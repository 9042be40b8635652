"""Volumes of replicas that cannot be used again, because they were deleted, or exist only on nodes that do not.

A node that does not respond still exists, and may return with its volumes. Its Node object is removed by an
administrator, or by the cloud's controller, when its machine has been deleted.
"""

from __future__ import annotations

from typing import Any, Final

from delaymq_operator.api.conditions import Reason
from delaymq_operator.api.resource import timestamp_of_ms
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group
from delaymq_operator.reconcile.broker.model.claims import is_unbound
from delaymq_operator.reconcile.broker.model.members import Member, is_in_sync
from delaymq_operator.reconcile.broker.model.memory import LostVolume
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest

_LATE_MS: Final = 15_000
"""Time that a starting pod may take before its volume is checked."""
_CHECK_MS: Final = 15_000
_HOSTNAME: Final = "kubernetes.io/hostname"
_NODE_KEYS: Final = frozenset({"hostname", "node", "nodename"})
"""Names of the labels, after their prefix, that identify one node: kubernetes.io/hostname, and those of provisioners of
local volumes. A volume that is bound to a zone remains although the zone has no node at the moment.
"""
_MAX_NODES: Final = 8
"""Maximum number of nodes that are looked up for a volume; one with more is not considered local."""


async def find_lost_volumes(p: BrokerPass) -> None:
    """Find and report lost volumes of brokers that do not run."""
    known, kept = p.memory.lost_volumes, {}
    for group in p.desired_groups:
        for member in group.members:
            claim = member.claim
            if claim is None or not _may_be_lost(group, member, claim):
                continue
            found = known.get(claim["metadata"]["uid"])
            if found is None and not _is_late(p, member):
                continue
            if found is None or p.now_ms - found.checked_ms >= _CHECK_MS:
                found = await check_volume(p, member, claim)
            kept[claim["metadata"]["uid"]] = found
            if found.why:
                _report(p, group, member, claim["metadata"]["name"], found)
    p.memory.lost_volumes = kept


def _may_be_lost(group: Group, member: Member, claim: Manifest) -> bool:
    """Return whether a broker of a group with replicas neither responds nor counts, although its claim has a volume."""
    if not group.replicated or member.surplus or is_unbound(claim):
        return False
    return member.state is None and not is_in_sync(group.master, member.name)


def _is_late(p: BrokerPass, member: Member) -> bool:
    since_ms = member.pod.unready_since_ms if member.pod is not None else 0
    return since_ms is not None and p.now_ms - since_ms >= _LATE_MS


async def check_volume(p: BrokerPass, member: Member, claim: Manifest) -> LostVolume:
    """Return, and remember, whether the volume of a claim is lost. A failed check leaves what is known."""
    uid = claim["metadata"]["uid"]
    before = p.memory.lost_volumes.get(uid)
    why, problem = before.why if before is not None else "", ""
    try:
        why = await _why_lost(p, member, claim)
    except KubeError as error:
        advice = ". Install the chart with rbac.lostVolumes=true" if error.forbidden else ""
        problem = f"{error.message}{advice}"
    since_ms = before.since_ms if before is not None and before.why and why else p.now_ms
    found = LostVolume(why=why, since_ms=since_ms, checked_ms=p.now_ms, problem=problem)
    p.memory.lost_volumes[uid] = found
    return found


async def _why_lost(p: BrokerPass, member: Member, claim: Manifest) -> str:
    """Return why the volume of a claim is lost; empty: it is not."""
    name = (claim.get("spec") or {}).get("volumeName")
    volume = await p.ctx.kube.get("PersistentVolume", "", name) if name else None
    if volume is None:
        # A claim is also marked if its volume refers to another claim. An administrator can correct that.
        is_marked = (claim.get("status") or {}).get("phase") == "Lost"
        return f"its PersistentVolume {name} was deleted" if name and is_marked else ""
    nodes = _nodes_of(volume)
    if not nodes or (member.pod is not None and member.pod.node and await _has_name(p, member.pod.node)):
        return ""
    for key, value in nodes:
        if await _exists(p, key, value):
            return ""
    return f"no node has {' or '.join(f'{key}={value}' for key, value in nodes)}"


def _nodes_of(volume: Manifest) -> list[tuple[str, str]]:
    """Return the nodes to which a volume is bound, each as a label or field and its value; empty: to others as well."""
    required = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get("required") or {}
    found: list[tuple[str, str]] = []
    for term in required.get("nodeSelectorTerms") or []:
        named = _nodes_of_term(term)
        if not named:
            return []
        found += named
    return found if len(found) <= _MAX_NODES else []


def _nodes_of_term(term: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the nodes that a term names. All of its requirements apply, so one that names nodes is sufficient."""
    for each in [*(term.get("matchExpressions") or []), *(term.get("matchFields") or [])]:
        key = str(each.get("key"))
        is_node = key == "metadata.name" or key.rpartition("/")[2] in _NODE_KEYS
        if is_node and each.get("operator") == "In" and each.get("values"):
            return [(key, str(value)) for value in each["values"]]
    return []


async def _exists(p: BrokerPass, key: str, value: str) -> bool:
    """Return whether a node with a label exists, or one that is called like its value.

    The kubelet adds the labels of provisioners only when their plugin runs on the node.
    """
    if await _has_name(p, value):
        return True
    labels = {key, _HOSTNAME} - {"metadata.name"}
    return any([await p.ctx.kube.list("Node", labels={label: value}) for label in sorted(labels)])


async def _has_name(p: BrokerPass, name: str) -> bool:
    return bool(await p.ctx.kube.list("Node", fields={"metadata.name": name}))


def _report(p: BrokerPass, group: Group, member: Member, claim: str, found: LostVolume) -> None:
    what = f"Volume {claim} of {group.name} has been lost since {timestamp_of_ms(found.since_ms)}: {found.why}"
    after_s = p.broker.spec.replication.replace_lost_volumes_after_seconds
    if after_s is None:
        todo = f"If it does not return, delete the claim and then pod {member.name}; the next pod copies all messages"
    elif p.broker.spec.paused:
        todo = "It is not replaced while spec.paused is true"
    else:
        at = timestamp_of_ms(found.since_ms + after_s * 1000)
        todo = f"The operator replaces it after {at} unless it returns"
    p.problem(Reason.VOLUME_LOST, f"{what}. {todo}.")
