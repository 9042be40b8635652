"""Evaluation of NetworkPolicies for single connections, written from the API reference independently of the renderer.

https://kubernetes.io/docs/reference/kubernetes-api/policy-resources/network-policy-v1/
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""Every namespace has this label."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A pod, or an address outside the cluster if `namespace` is empty."""

    name: str
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = "10.244.0.9"
    ports: Mapping[str, int] = field(default_factory=dict)
    """Named container ports."""

    @property
    def namespace_labels(self) -> Mapping[str, str]:
        return {NAMESPACE_NAME: self.namespace}


def pod_of(manifest: Mapping[str, Any], name: str = "") -> Peer:
    """Return the pod of a StatefulSet or Deployment."""
    template = manifest["spec"]["template"]
    ports = {
        port["name"]: port["containerPort"]
        for container in template["spec"]["containers"]
        for port in container.get("ports", [])
    }
    metadata = manifest["metadata"]
    return Peer(
        name=name or metadata["name"],
        namespace=metadata["namespace"],
        labels=template["metadata"]["labels"],
        ports=ports,
    )


def spark_pod_of(application: Mapping[str, Any], role: str) -> Peer:
    """Return the driver or an executor with the labels of its role and the ports of Spark 4.3.

    The labels of the application are omitted, since older versions of the Spark operator do not pass them on.
    """
    metadata = application["metadata"]
    ports = {
        "driver": {"driver-rpc-port": 7078, "blockmanager": 7079, "spark-ui": 4040},
        # spark.blockManager.port is 0: any port.
        "executor": {"blockmanager": 41873},
    }
    return Peer(
        name=f"{metadata['name']}-{role}",
        namespace=metadata["namespace"],
        labels=application["spec"][role]["labels"] | {"spark-role": role},
        ports=ports[role],
    )


def lets_in(
    policies: Iterable[Mapping[str, Any]], source: Peer, target: Peer, port: int, protocol: str = "TCP"
) -> bool:
    """Return whether the policies allow a connection from `source` to a port of the pod `target`."""
    about = [policy for policy in policies if _is_about(policy, target)]
    return not about or any(
        _rule_allows(policy, rule, source, target, port, protocol)
        for policy in about
        for rule in policy["spec"].get("ingress") or ()
    )


def _is_about(policy: Mapping[str, Any], target: Peer) -> bool:
    spec = policy["spec"]
    kinds = spec.get("policyTypes") or ["Ingress"]
    same_namespace = policy["metadata"]["namespace"] == target.namespace
    return "Ingress" in kinds and same_namespace and selects(spec["podSelector"], target.labels)


def _rule_allows(
    policy: Mapping[str, Any], rule: Mapping[str, Any], source: Peer, target: Peer, port: int, protocol: str
) -> bool:
    ports, peers = rule.get("ports") or (), rule.get("from") or ()
    fits_port = not ports or any(_is_port(each, target, port, protocol) for each in ports)
    return fits_port and (not peers or any(_is_peer(each, policy["metadata"]["namespace"], source) for each in peers))


def _is_port(stated: Mapping[str, Any], target: Peer, port: int, protocol: str) -> bool:
    if stated.get("protocol", "TCP") != protocol:
        return False
    first = stated.get("port")
    if first is None:
        return True
    if isinstance(first, str):
        return target.ports.get(first) == port
    return bool(first <= port <= stated.get("endPort", first))


def _is_peer(stated: Mapping[str, Any], own_namespace: str, source: Peer) -> bool:
    block = stated.get("ipBlock")
    if block is not None:
        address = ipaddress.ip_address(source.address)
        return address in ipaddress.ip_network(block["cidr"]) and not any(
            address in ipaddress.ip_network(each) for each in block.get("except") or ()
        )
    if not source.namespace:
        return False
    namespaces, pods = stated.get("namespaceSelector"), stated.get("podSelector")
    if namespaces is None:
        return source.namespace == own_namespace and selects(pods or {}, source.labels)
    return selects(namespaces, source.namespace_labels) and (pods is None or selects(pods, source.labels))


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a LabelSelector selects these labels; an empty one selects everything."""
    wanted = selector.get("matchLabels") or {}
    expressions = selector.get("matchExpressions") or ()
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(each, labels) for each in expressions
    )


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or ()
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    if operator == "Exists":
        return key in labels
    assert operator == "DoesNotExist", operator
    return key not in labels
