"""What objects of a Broker share: names, labels, owner, selectors, the data of Secrets."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from delaymq_operator.api import names
from delaymq_operator.api.broker import Broker
from delaymq_operator.api.names import Component
from delaymq_operator.api.user import User

Manifest = dict[str, Any]

API_VERSIONS = {
    "AnalyticsResult": "v1",
    "ConfigMap": "v1",
    "EndpointSlice": "discovery.k8s.io/v1",
    "Lease": "coordination.k8s.io/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "Secret": "v1",
    "Service": "v1",
    "ServiceAccount": "v1",
    "SparkApplication": "sparkoperator.k8s.io/v1beta2",
    "StatefulSet": "apps/v1",
}


def new_object(
    broker: Broker, kind: str, name: str, component: Component | None = None, group: int | None = None
) -> Manifest:
    """Return an object without a body, owned by the Broker and deleted with it."""
    return {
        "apiVersion": API_VERSIONS[kind],
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": broker.namespace,
            "labels": names.labels(broker.name, component, group),
            "ownerReferences": [owner_reference(broker)],
        },
    }


def owner_reference(owner: Broker | User) -> Manifest:
    """Return the reference that makes a Broker or a User owner and controller."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.BROKER_KIND if isinstance(owner, Broker) else names.USER_KIND,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def secret_data(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the data of a Secret with `texts`."""
    return {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}


def component_labels(broker: Broker, component: Component) -> dict[str, str]:
    """Return the labels of a component's objects, for lists, watches and the peers of a policy."""
    return {names.INSTANCE_LABEL: broker.name, names.COMPONENT_LABEL: component}


def selector(broker: Broker, component: Component, group: int | None = None) -> dict[str, str]:
    """Return the labels that select pods. They must not change, since a StatefulSet's selector is immutable."""
    found = {names.NAME_LABEL: names.NAME_VALUE, **component_labels(broker, component)}
    if group is not None:
        found[names.GROUP_LABEL] = str(group)
    return found
