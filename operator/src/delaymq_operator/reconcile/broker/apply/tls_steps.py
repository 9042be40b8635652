"""Order of a change of spec.tls.mode, in which every connection between brokers and NameServers stays possible.

Servers need the certificate before others verify it, and clients have to use TLS before servers require it. Therefore,
NameServers get the certificate first; then brokers use TLS, and verify it; NameServers require it last. When the mode
is set back, NameServers stop requiring it first. Each step follows from the pods that exist.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from delaymq_operator.api.conditions import Reason
from delaymq_operator.manifests.tls import enforces, mounted_certificate
from delaymq_operator.reconcile.broker.model.broker_pass import BrokerPass
from delaymq_operator.reconcile.ports import Manifest

_LOOK_S: Final = 5.0


async def choose_tls_steps(p: BrokerPass) -> None:
    """Choose the present mode of brokers and NameServers, and report one that differs from the spec."""
    if p.broker.spec.tls is None:
        return
    wanted = p.broker.enforces_tls
    brokers, name_servers = _brokers_enforce(p), _name_servers_enforce(p)
    p.of_brokers = p.broker.with_tls_mode(enforcing=brokers)
    p.of_name_servers = p.broker.with_tls_mode(enforcing=name_servers)
    if brokers != wanted and wanted:
        p.tls_step = "brokers will require TLS when all servers that they connect to have the certificate."
    elif name_servers != wanted and wanted:
        p.tls_step = "NameServers will require TLS when all brokers use it."
    elif brokers != wanted:
        p.tls_step = "brokers will accept plaintext connections when all NameServers do."
    if p.tls_step:
        p.progressing(Reason.ROLLING, f"{p.tls_step[:1].upper()}{p.tls_step[1:]}", again_s=_LOOK_S)


def _brokers_enforce(p: BrokerPass) -> bool:
    templates = _templates(group.set.live for group in p.groups)
    is_on_the_way = any(enforces(template) for template in templates)
    if not p.broker.enforces_tls:
        return is_on_the_way and any(enforces(pod) for pod in _name_server_pods(p))
    # Members verify each other, too.
    peers = _name_server_pods(p) + (_broker_pods(p) if any(group.replicated for group in p.groups) else [])
    secret = p.broker.certificate_secret
    return is_on_the_way or all(mounted_certificate(pod) == secret for pod in peers)


def _name_servers_enforce(p: BrokerPass) -> bool:
    if not p.broker.enforces_tls:
        return False
    if any(enforces(template) for template in _templates([p.name_servers.live])):
        return True
    return all(enforces(pod) for pod in (*_broker_pods(p), *_templates(group.set.live for group in p.groups)))


def _broker_pods(p: BrokerPass) -> list[Manifest]:
    found = (p.cached("Pod", member.name) for group in p.groups for member in group.members)
    return [pod for pod in found if pod is not None]


def _name_server_pods(p: BrokerPass) -> list[Manifest]:
    found = (p.cached("Pod", pod.name) for pod in p.name_server_pods)
    return [pod for pod in found if pod is not None]


def _templates(sets: Iterable[Manifest | None]) -> list[Manifest]:
    return [live["spec"]["template"] for live in sets if live is not None]
