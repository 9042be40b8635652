"""Observed state: objects and pods from the cache, and the brokers' responses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from delaymq_operator.api import names
from delaymq_operator.api.conditions import Reason
from delaymq_operator.manifests import component_labels, listen_port, members_text
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group, ObservedSet
from delaymq_operator.reconcile.broker.model.members import Member, find_master, recorded_members
from delaymq_operator.reconcile.broker.model.pods import Pod
from delaymq_operator.reconcile.endpoints import broker_endpoint, read_token
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator.reconcile.secrets import operator_account, server_trust


async def observe_cluster(p: BrokerPass) -> None:
    """Observe desired and existing groups, and the NameServers."""
    p.groups = [_group(p, index) for index in sorted(_existing_groups(p) | set(range(p.broker.spec.size)))]
    if p.spec_problem is not None and p.spec_problem.reason is Reason.INVALID_SPEC:
        # An unreadable spec does not reveal which groups are surplus.
        p.groups = [group for group in p.groups if group.made]
        for group in p.groups:
            group.surplus = False
    p.name_servers = ObservedSet(live=p.cached("StatefulSet", names.namesrv_objects(p.broker.name)))
    found = p.ctx.cache.labelled("Pod", p.namespace, component_labels(p.broker, "namesrv"))
    p.name_server_pods = sorted((Pod.of(body, p.now_ms) for body in found), key=lambda pod: (len(pod.name), pod.name))


def _existing_groups(p: BrokerPass) -> set[int]:
    found = set()
    for kind in ("StatefulSet", "Service"):
        for body in p.ctx.cache.owned(kind, p.broker.uid):
            index = (body["metadata"].get("labels") or {}).get(names.GROUP_LABEL, "")
            if index.isdecimal():
                found.add(int(index))
    return found


def _group(p: BrokerPass, index: int) -> Group:
    name = p.broker.name
    live = p.cached("StatefulSet", names.group_object(name, index))
    members, size = _members(p, index, live)
    return Group(
        index=index,
        name=names.rocketmq_broker_name(name, index),
        surplus=index >= p.broker.spec.size,
        service=p.cached("Service", names.group_object(name, index)),
        external=p.cached("Service", names.group_external_service(name, index)),
        claim=members[0].claim,
        pod=members[0].pod,
        set=ObservedSet(live=live),
        members=members,
        size=size,
    )


def _members(p: BrokerPass, index: int, live: Manifest | None) -> tuple[list[Member], int]:
    """Return the brokers of a group, and their desired number; 0: it has no replicas."""
    found = [_member(p, index, ordinal) for ordinal in range(names.MAX_REPLICAS)]
    recorded = recorded_members(member.claim for member in found)
    desired = p.broker.spec.replicas_per_group
    existing = ((live or {}).get("spec") or {}).get("replicas") or 1
    if index >= p.broker.spec.size:
        # A group that is removed keeps its brokers until then.
        desired = recorded or 1
    if recorded > desired == 1 and _is_still_plain(found, live):
        recorded = 1
    size = max(recorded, desired) if recorded or desired > 1 else 0
    for member in found:
        member.surplus = member.ordinal >= desired
    kept = [member for member in found if member.ordinal < max(1, size, existing) or member.pod is not None]
    return kept, size


def _is_still_plain(members: Sequence[Member], live: Manifest | None) -> bool:
    """Return whether replicas were requested and withdrawn before the only broker became a member.

    Then it becomes the only member: its Service has lost its selector already.
    """
    first = members[0]
    template = ((live or {}).get("spec") or {}).get("template")
    if template is not None and not members_text(template):
        return True
    return first.pod is not None and first.pod.ready and not first.known_members


def _member(p: BrokerPass, index: int, ordinal: int) -> Member:
    name = names.group_pod(p.broker.name, index, ordinal)
    pod = p.cached("Pod", name)
    return Member(
        ordinal=ordinal,
        name=name,
        claim=p.cached("PersistentVolumeClaim", names.group_claim(p.broker.name, index, ordinal)),
        pod=Pod.of(pod, p.now_ms) if pod is not None else None,
        known_members=members_text(pod),
    )


async def observe_brokers(p: BrokerPass) -> None:
    """Query the state of every broker whose pod runs. An unresponsive broker does not delay the others."""
    running = [group for group in p.groups if any(pod.running and pod.ip for pod in group.pods)]
    if not running:
        return
    if p.memory.token is None:
        p.memory.token = await read_token(p.ctx.kube, p.namespace, p.broker.name)
    if p.memory.token is None:
        return
    account, trust = await operator_account(p.broker, p.ctx), await server_trust(p.broker, p.ctx)
    for group in running:
        for member in group.members:
            pod = member.pod
            if pod is not None and pod.running and pod.ip and not pod.terminating:
                body = p.cached("Pod", pod.name) or {}
                port = listen_port(p.broker.spec, group.index)
                member.endpoint = broker_endpoint(body, port, p.memory.token, account, trust)
    await asyncio.gather(*(_observe_group(p, group) for group in running))


async def _observe_group(p: BrokerPass, group: Group) -> None:
    members = [member for member in group.members if member.known_members and member.endpoint is not None]
    await asyncio.gather(*(_observe_member(p, member) for member in members))
    group.master = find_master(members)
    acting = group.master or _first_running(group)
    group.masterless = group.master is None and bool(acting.known_members)
    group.pod, group.endpoint = acting.pod, acting.endpoint
    if acting.claim is not None:
        group.claim = acting.claim
    await _observe_broker(p, group)
    if group.masterless:
        # It does not act as the group's broker.
        group.info = None
    _note_lack_of_master(p, group)


def _first_running(group: Group) -> Member:
    """Return the broker that stands for a group without a master: one without replicas, else the first one."""
    plain = [member for member in group.members if member.pod is not None and not member.known_members]
    return (plain or group.members)[0]


async def _observe_member(p: BrokerPass, member: Member) -> None:
    if member.endpoint is None:
        return
    try:
        state = await p.ctx.admin.replication(member.endpoint)
    except (BrokerUnreachable, BrokerRefused) as error:
        member.unreachable = str(error)
        return
    if state is None or state.member != member.name:
        # Pod addresses are reused, and orders must not reach another broker.
        member.unreachable = f"{member.endpoint.host} is not the address of {member.name}"
        member.endpoint = None
        return
    member.state = state


def _note_lack_of_master(p: BrokerPass, group: Group) -> None:
    if group.masterless:
        p.memory.masterless_since_ms.setdefault(group.index, p.now_ms)
    else:
        p.memory.masterless_since_ms.pop(group.index, None)


async def _observe_broker(p: BrokerPass, group: Group) -> None:
    if group.endpoint is None:
        return
    try:
        info = await p.ctx.admin.info(group.endpoint)
        if info.broker_name != group.name:
            # Pod addresses are reused: requests for this broker must not reach another one.
            _unreachable(p, group, f"{group.endpoint.host} is the address of {info.broker_name}")
            return
        group.info = info
        p.memory.unreachable_since_ms.pop(group.index, None)
    except BrokerUnreachable as error:
        _unreachable(p, group, str(error))
    except BrokerRefused as error:
        # The Secret may have been replaced.
        p.memory.token = None
        _unreachable(p, group, str(error))


def _unreachable(p: BrokerPass, group: Group, why: str) -> None:
    group.unreachable = why
    p.memory.unreachable_since_ms.setdefault(group.index, p.now_ms)
