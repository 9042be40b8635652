"""Objects other than StatefulSets and groups' Services: configuration, Secret, account, budgets, policies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from delaymq_operator.api import names
from delaymq_operator.api.broker import Broker
from delaymq_operator.api.names import Component
from delaymq_operator.manifests.config import broker_conf, broker_settings
from delaymq_operator.manifests.context import Context
from delaymq_operator.manifests.metadata import Manifest, component_labels, new_object, secret_data, selector
from delaymq_operator.manifests.services import (
    broker_pods_service,
    listen_port,
    name_server_services,
)


def supporting_objects(
    broker: Broker, context: Context, groups: Iterable[int], running_ports: Iterable[int] = ()
) -> list[Manifest]:
    """Return all objects except the Secret, StatefulSets and Services of groups and for external clients.

    `groups` are the existing groups, `running_ports` the ports on which their pods currently listen.
    """
    spec = broker.spec
    own_name_servers = not spec.name_servers.addresses
    found = [config_map(broker, context), broker_pods_service(broker)]
    if spec.pod_template.service_account_name is None:
        found.append(service_account(broker))
    found.append(disruption_budget(broker, "broker"))
    if own_name_servers:
        found += name_server_services(broker)
        found.append(disruption_budget(broker, "namesrv"))
    if spec.network_policy.enabled:
        found.append(broker_network_policy(broker, context, groups, running_ports))
        if own_name_servers:
            found.append(name_server_network_policy(broker, context))
    return found


def token_secret(broker: Broker, token: str) -> Manifest:
    """Return the Secret with the token of the brokers' HTTP interface. It is created once: a new token would restart
    all brokers.
    """
    found = new_object(broker, "Secret", names.token_secret(broker.name), "broker")
    found["type"] = "Opaque"
    found["data"] = secret_data({names.TOKEN_KEY: token})
    return found


def config_map(broker: Broker, context: Context) -> Manifest:
    """Return the ConfigMap with broker.conf, the same for all groups."""
    found = new_object(broker, "ConfigMap", names.broker_config_map(broker.name), "broker")
    found["data"] = {names.BROKER_CONF_KEY: broker_conf(broker_settings(broker.spec, context.delay))}
    return found


def service_account(broker: Broker) -> Manifest:
    """Return the pods' account, which has no permissions and no token."""
    found = new_object(broker, "ServiceAccount", names.broker_objects(broker.name))
    found["automountServiceAccountToken"] = False
    return found


def disruption_budget(broker: Broker, component: Component) -> Manifest:
    """Return the budget that permits draining nodes one pod at a time."""
    name = names.broker_objects(broker.name) if component == "broker" else names.namesrv_objects(broker.name)
    found = new_object(broker, "PodDisruptionBudget", name, component)
    found["spec"] = {"maxUnavailable": 1, "selector": {"matchLabels": selector(broker, component)}}
    return found


def broker_network_policy(
    broker: Broker, context: Context, groups: Iterable[int], running_ports: Iterable[int] = ()
) -> Manifest:
    """Return the policy of brokers: clients and replicas reach their ports, the operator also HTTP, metrics and
    analytics clients HTTP only.
    """
    policy = broker.spec.network_policy
    ports = sorted({*(listen_port(broker.spec, group) for group in (0, *groups)), *running_ports})
    clients = [port for listen in ports for port in (listen - names.FAST_PORT_DISTANCE, listen)]
    peers = [*_clients(broker), *_operator(context)]
    if context.replicates:
        peers.append({"podSelector": {"matchLabels": selector(broker, "broker")}})
    rules = [
        _rule(peers, clients),
        _rule([*policy.allow_metrics_from, *_operator(context), *_analytics(broker)], [names.BROKER_HTTP_PORT]),
    ]
    return _policy(broker, "broker", names.broker_objects(broker.name), rules)


def name_server_network_policy(broker: Broker, context: Context) -> Manifest:
    """Return the policy of NameServers: clients, brokers and the operator reach them, metrics clients their HTTP
    port.

    The same policy applies to a trial pod.
    """
    own_brokers = {"podSelector": {"matchLabels": selector(broker, "broker")}}
    peers = [*_clients(broker), own_brokers, *_operator(context)]
    metrics = list(broker.spec.network_policy.allow_metrics_from)
    rules = [_rule(peers, [names.NAMESRV_PORT]), _rule(metrics, [names.NAMESRV_HTTP_PORT])]
    found = _policy(broker, "namesrv", names.namesrv_objects(broker.name), rules)
    labels = found["spec"]["podSelector"]["matchLabels"]
    del labels[names.COMPONENT_LABEL]
    trial_too = {"key": names.COMPONENT_LABEL, "operator": "In", "values": ["namesrv", "namesrv-trial"]}
    found["spec"]["podSelector"]["matchExpressions"] = [trial_too]
    return found


def _clients(broker: Broker) -> list[dict[str, Any]]:
    return list(broker.spec.network_policy.allow_from) or [{"podSelector": {}}]


def _operator(context: Context) -> list[dict[str, Any]]:
    if not context.operator_namespace:
        return []
    there = {"matchLabels": {"kubernetes.io/metadata.name": context.operator_namespace}}
    return [{"namespaceSelector": there, "podSelector": {"matchLabels": dict(context.operator_labels)}}]


def _analytics(broker: Broker) -> list[dict[str, Any]]:
    """Return the peers for drivers and executors of the Broker's analytics."""
    if broker.spec.analytics is None:
        return []
    return [{"podSelector": {"matchLabels": component_labels(broker, "analytics")}}]


def _rule(peers: list[dict[str, Any]], ports: list[int]) -> Manifest | None:
    """Return a rule, or none without peers, since a rule without peers would admit everyone."""
    return {"from": peers, "ports": [{"port": port, "protocol": "TCP"} for port in ports]} if peers else None


def _policy(broker: Broker, component: Component, name: str, rules: list[Manifest | None]) -> Manifest:
    found = new_object(broker, "NetworkPolicy", name, component)
    found["spec"] = {
        "podSelector": {"matchLabels": selector(broker, component)},
        "policyTypes": ["Ingress"],
        "ingress": [rule for rule in rules if rule is not None],
    }
    return found
