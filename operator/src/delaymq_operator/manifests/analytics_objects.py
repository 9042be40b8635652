"""What SparkApplications need beside themselves: an account that may make executors, a NetworkPolicy, and a place for
the result."""

from __future__ import annotations

from delaymq_operator.api import analytics_names, names
from delaymq_operator.api.broker import Broker
from delaymq_operator.manifests.metadata import API_VERSIONS, Manifest, new_object, selector


def analytics_service_account(broker: Broker) -> Manifest:
    """What drivers run as."""
    return new_object(broker, "ServiceAccount", analytics_names.analytics_objects(broker.name), "analytics")


def analytics_role_binding(broker: Broker, role: str, role_kind: str) -> Manifest:
    """Lets drivers do what the chart's role says: make their executors, write their result."""
    name = analytics_names.analytics_objects(broker.name)
    found = new_object(broker, "RoleBinding", name, "analytics")
    found["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role}
    found["subjects"] = [{"kind": "ServiceAccount", "name": name, "namespace": broker.namespace}]
    return found


def analytics_network_policy(broker: Broker) -> Manifest:
    """Drivers and executors accept connections from each other, and from nobody else.

    The rule has no ports. Executors choose theirs at random, and what a pod of the same application may do on one port
    it may do on all: drivers and executors run each other's code.
    """
    pods = {"podSelector": {"matchLabels": selector(broker, "analytics")}}
    found = new_object(broker, "NetworkPolicy", analytics_names.analytics_objects(broker.name), "analytics")
    found["spec"] = {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]}
    return found


def analytics_result(broker: Broker, application: Manifest) -> Manifest:
    """The ConfigMap that the driver writes its result to; it goes with the application. Without the label by which
    watches find objects: a report of 1 MB must not be in the operator's memory."""
    metadata = application["metadata"]
    labels = {key: value for key, value in metadata["labels"].items() if key != names.MANAGED_BY_LABEL}
    owner = {
        "apiVersion": API_VERSIONS["SparkApplication"],
        "kind": "SparkApplication",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {
        "apiVersion": API_VERSIONS["AnalyticsResult"],
        "kind": "AnalyticsResult",
        "metadata": {
            "name": metadata["name"],
            "namespace": broker.namespace,
            "labels": labels,
            "ownerReferences": [owner],
        },
    }
