"""Observed state: objects and pods from the cache, and the brokers' responses."""

from __future__ import annotations

import asyncio

from delaymq_operator.api import names
from delaymq_operator.api.conditions import Reason
from delaymq_operator.manifests import component_labels, listen_port
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass, Group, ObservedSet
from delaymq_operator.reconcile.broker.model.pods import Pod
from delaymq_operator.reconcile.endpoints import broker_endpoint, read_token
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.secrets import operator_account


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
    pod = p.cached("Pod", names.group_pod(name, index))
    return Group(
        index=index,
        name=names.rocketmq_broker_name(name, index),
        surplus=index >= p.broker.spec.size,
        service=p.cached("Service", names.group_object(name, index)),
        external=p.cached("Service", names.group_external_service(name, index)),
        claim=p.cached("PersistentVolumeClaim", names.group_claim(name, index)),
        pod=Pod.of(pod, p.now_ms) if pod is not None else None,
        set=ObservedSet(live=p.cached("StatefulSet", names.group_object(name, index))),
    )


async def observe_brokers(p: BrokerPass) -> None:
    """Query the state of every broker whose pod runs. An unresponsive broker does not delay the others."""
    running = [group for group in p.groups if group.pod is not None and group.pod.running and group.pod.ip]
    if not running:
        return
    if p.memory.token is None:
        p.memory.token = await read_token(p.ctx.kube, p.namespace, p.broker.name)
    if p.memory.token is None:
        return
    account = await operator_account(p.broker, p.ctx)
    for group in running:
        if group.pod is not None and group.pod.ip and not group.pod.terminating:
            port = group.pod.port or listen_port(p.broker.spec, group.index)
            group.endpoint = broker_endpoint(group.pod.ip, port, p.memory.token, account)
    await asyncio.gather(*(_observe_broker(p, group) for group in running))


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
