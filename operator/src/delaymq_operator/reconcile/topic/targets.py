"""Locations of a Broker's topics: its groups and NameServers, and access to them."""

from __future__ import annotations

from dataclasses import dataclass

from delaymq_operator.api import Broker
from delaymq_operator.api.names import group_pod, rocketmq_broker_name
from delaymq_operator.manifests import listen_port
from delaymq_operator.reconcile.context import ReconcileContext
from delaymq_operator.reconcile.endpoints import broker_endpoint
from delaymq_operator.reconcile.ports import Endpoint
from delaymq_operator.reconcile.secrets import operator_account, server_trust

_NO_TOKEN = ""
"""Requests for topics use RocketMQ's protocol, which has no token."""


@dataclass(frozen=True)
class Group:
    """A broker group."""

    name: str
    """Broker name in RocketMQ."""
    endpoint: Endpoint | None
    """Endpoint of its broker; None: the broker is not ready."""
    leaving: bool
    """Whether it is a surplus group of a scale-in: no new topics are created there."""


async def groups_of(broker: Broker, ctx: ReconcileContext) -> list[Group]:
    """Return the desired and remaining groups of the Broker. KubeError if its account cannot be read."""
    account, trust = await operator_account(broker, ctx), await server_trust(broker, ctx)
    ready = {group.group: group.ready for group in broker.status.groups}
    pods = {group.group: group.pod or group_pod(broker.name, group.group) for group in broker.status.groups}
    return [
        Group(
            rocketmq_broker_name(broker.name, number),
            broker_endpoint(
                ctx.cache.get("Pod", broker.namespace, pods[number]) or {},
                listen_port(broker.spec, number),
                _NO_TOKEN,
                account,
                trust,
            )
            if ready.get(number)
            else None,
            leaving=number >= broker.spec.size,
        )
        for number in sorted({*range(broker.spec.size), *ready})
    ]
