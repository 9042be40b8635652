"""Objects required by SparkApplications: an account that may create executors, a NetworkPolicy, and a ConfigMap for
the result.
"""

from __future__ import annotations

from delaymq_operator.api import analytics_names, names
from delaymq_operator.api.broker import Broker
from delaymq_operator.manifests.metadata import API_VERSIONS, Manifest, new_object, selector


def analytics_service_account(broker: Broker) -> Manifest:
    """Return the service account of drivers."""
    return new_object(broker, "ServiceAccount", analytics_names.analytics_objects(broker.name), "analytics")


def analytics_role_binding(broker: Broker, role: str, role_kind: str) -> Manifest:
    """Return the binding that permits drivers what the chart's role contains: to create executors and write the
    result.
    """
    name = analytics_names.analytics_objects(broker.name)
    found = new_object(broker, "RoleBinding", name, "analytics")
    found["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role}
    found["subjects"] = [{"kind": "ServiceAccount", "name": name, "namespace": broker.namespace}]
    return found


def analytics_network_policy(broker: Broker) -> Manifest:
    """Return the policy by which drivers and executors accept connections from each other only.

    The rule has no ports. Executors choose theirs at random, and what a pod of the same application may do on one port
    it may do on all: drivers and executors run each other's code.
    """
    pods = {"podSelector": {"matchLabels": selector(broker, "analytics")}}
    found = new_object(broker, "NetworkPolicy", analytics_names.analytics_objects(broker.name), "analytics")
    found["spec"] = {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]}
    return found


def analytics_result(broker: Broker, application: Manifest) -> Manifest:
    """Return the ConfigMap for the driver's result, which is deleted with the application.

    It lacks the label by which watches select objects: reports of 1 MB must not be in the operator's memory.
    """
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
