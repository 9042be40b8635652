"""Access to the operator's port, computed from the rendered objects."""

from __future__ import annotations

from typing import Any

import pytest
from delaymq_helm_testing.helm_chart import Helm, Object, of_kind, only
from delaymq_operator_testing.network_policies import Peer, lets_in, pod_of

MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
PROMETHEUS = Peer(name="prometheus", namespace="monitoring")
NEIGHBOUR = Peer(name="p", namespace="delaymq", labels={"app": "x"})


def operator_of(objects: list[Object]) -> Peer:
    deployment = only(objects, "Deployment")
    return pod_of({**deployment, "metadata": {"namespace": "delaymq", **deployment["metadata"]}})


def policies_of(objects: list[Object]) -> list[Object]:
    return of_kind(objects, "NetworkPolicy")


def test_no_network_policy_is_created_by_default(helm: Helm) -> None:
    assert policies_of(helm.render()) == []


@pytest.mark.parametrize(
    ("values", "allowed"),
    [
        ({}, {"test"}),
        ({"networkPolicy.allowMetricsFrom": [MONITORING]}, {"test", "prometheus"}),
        ({"metrics.service.enabled": False}, set()),
    ],
)
def test_only_metrics_clients_reach_the_operator(helm: Helm, values: dict[str, Any], allowed: set[str]) -> None:
    objects = helm.render({"networkPolicy.enabled": True} | values)
    operator, policies = operator_of(objects), policies_of(objects)
    pods = of_kind(objects, "Pod")  # the pod of `helm test`
    tests = [Peer(name="test", namespace="delaymq", labels=pod["metadata"]["labels"]) for pod in pods]
    assert len(policies) == 1
    peers = [*tests, PROMETHEUS, NEIGHBOUR, Peer(name="far", namespace="far", labels=operator.labels)]
    assert {peer.name for peer in peers if lets_in(policies, peer, operator, operator.ports["http"])} == allowed
    assert set(operator.ports.values()) == {8080}
