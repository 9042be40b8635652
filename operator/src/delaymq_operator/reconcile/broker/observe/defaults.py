"""Versioned defaults of fields that a Broker omits: new defaults apply to new Brokers, so that an upgrade
disconnects nobody.

The status contains the version with which a Broker was created (`status.defaults`).
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from delaymq_operator.api.broker import BrokerSpec, Opaque
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass

FIRST: Final = 1
"""Defaults of Brokers created before versions existed: no policies."""
CLOSED: Final = 2
"""Network policies are enabled, and NameServers require signatures if brokers do."""
_EVERYWHERE: Final[tuple[Opaque, ...]] = ({"ipBlock": {"cidr": "0.0.0.0/0"}}, {"ipBlock": {"cidr": "::/0"}})


async def choose_defaults(p: BrokerPass) -> None:
    """Fill in the defaults of the pass's Broker."""
    p.defaults = p.broker.status.defaults or _found(p)
    inside = bool(p.ctx.settings.operator_namespace)
    spec = p.broker.spec
    if spec.network_policy.enabled is None:
        spec = _with_policy(spec, on=inside and p.defaults >= CLOSED)
    control = spec.access_control
    if control is not None and control.name_servers is None:
        control = structs.replace(control, name_servers=p.defaults >= CLOSED)
        spec = structs.replace(spec, access_control=control)
    p.broker = structs.replace(p.broker, spec=spec)


def _found(p: BrokerPass) -> int:
    is_new = p.name_servers.live is None and not any(group.made for group in p.groups)
    # Policies are created before pods, so they reveal the version if the status was lost.
    return CLOSED if is_new or p.ctx.cache.owned("NetworkPolicy", p.broker.uid) else FIRST


def _with_policy(spec: BrokerSpec, *, on: bool) -> BrokerSpec:
    policy = structs.replace(spec.network_policy, enabled=on)
    if on and spec.external is not None and not policy.allow_from:
        # A Broker with external access is not meant to exclude external clients.
        policy = structs.replace(policy, allow_from=({"podSelector": {}}, *_EVERYWHERE))
    return structs.replace(spec, network_policy=policy)
