"""Network access computed from the rendered objects, compared with the tables in kubernetes.md."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from delaymq_operator.api import names
from delaymq_operator.api.broker import Broker, parse_broker
from delaymq_operator.manifests import (
    AnalyticsRun,
    Context,
    GroupContext,
    analytics_application,
    analytics_network_policy,
    broker_stateful_set,
    listen_port,
    name_server_stateful_set,
    name_server_trial,
    supporting_objects,
)
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator_testing.network_policies import Peer, lets_in, pod_of, selects, spark_pod_of

PAGE = Path(__file__).parents[3] / "docs/operations/kubernetes.md"
OPERATOR = {"app.kubernetes.io/name": "delaymq-operator", "app.kubernetes.io/instance": "r"}
CONTEXT = Context(
    image="i",
    token="t",
    operator_namespace="ops",
    operator_labels=(("app.kubernetes.io/name", "delaymq-operator"),),
)
CLIENTS = {"podSelector": {"matchLabels": {"app": "orders"}}}
PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
POLICIES = {
    "networkPolicy: {enabled: true}": {"enabled": True},
    "allowFrom and allowMetricsFrom": {"enabled": True, "allowFrom": [CLIENTS], "allowMetricsFrom": [PROMETHEUS]},
}


def broker(name: str = "demo", **spec: object) -> Broker:
    return parse_broker({"metadata": {"name": name, "namespace": "ns", "uid": "u"}, "spec": spec})


def targets(of: Broker) -> dict[str, Peer]:
    """Return the pods of a Broker."""
    group = GroupContext(group=0, advertised_address="10.0.0.1", storage_size="1Gi")
    servers = name_server_stateful_set(of, CONTEXT)
    run = AnalyticsRun(group=0, token="29654400", image="s", read="HTTP")
    assert of.spec.analytics is not None
    application = analytics_application(of, of.spec.analytics, run)
    return {
        "broker": pod_of(broker_stateful_set(of, CONTEXT, group)),
        "NameServer": pod_of(servers),
        "trial": pod_of(name_server_trial(of, "i", servers["spec"]["template"])),
        "driver": spark_pod_of(application, "driver"),
        "executor": spark_pod_of(application, "executor"),
    }


def sources(of: Broker) -> dict[str, list[Peer]]:
    """Return the peers that might connect, by the name of their row in the table."""
    pods, others = targets(of), targets(broker("other", analytics={}))
    one_each = {
        "a client: a pod with the label `app: orders`": Peer(name="c", namespace="ns", labels={"app": "orders"}),
        "another pod of the namespace": Peer(name="p", namespace="ns", labels={"app": "payroll"}),
        "brokers of the same Broker": pods["broker"],
        "NameServers of the same Broker": pods["NameServer"],
        "pods of another Broker": others["broker"],
        "the operator": Peer(name="o", namespace="ops", labels=OPERATOR),
        "another pod of the operator's namespace": Peer(name="x", namespace="ops", labels={"app": "x"}),
        "Prometheus, in the namespace `monitoring`": Peer(
            name="m", namespace="monitoring", labels={"app": "prometheus"}
        ),
        "a pod of any other namespace": Peer(name="f", namespace="far", labels=OPERATOR | {"app": "orders"}),
        "an address outside the cluster": Peer(name="out", address="198.51.100.7"),
    }
    return {row: [peer] for row, peer in one_each.items()} | {
        "drivers and executors of its analytics": [pods["driver"], pods["executor"]],
        "drivers and executors of another Broker's analytics": [others["driver"], others["executor"]],
        "the Spark operator, in the namespace `spark-operator`": [
            Peer(name="s", namespace="spark-operator", labels={"app.kubernetes.io/name": "spark-operator"})
        ],
    }


def policies(of: Broker, ports: tuple[int, ...] = ()) -> list[dict[str, object]]:
    made = supporting_objects(of, CONTEXT, [0], ports)
    found = [each for each in made if each["kind"] == "NetworkPolicy"]
    return [*found, analytics_network_policy(of)] if of.spec.network_policy.enabled else found


def table_of(title: str) -> dict[str, dict[str, str]]:
    """Return the cells of the table below `### title`, by row and column."""
    section = PAGE.read_text().split(f"### {title}\n", 1)[1].split("\n#", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line]
    return {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[2:]}


def columns(of: Broker) -> dict[str, list[tuple[Peer, int]]]:
    """Return every port of every pod by its column in the table.

    The trial NameServer shares the column of the NameServer; all ports of drivers and executors share one.
    """
    found: dict[str, list[tuple[Peer, int]]] = {}
    for kind, pod in targets(of).items():
        for port in pod.ports.values():
            shown = {"trial": "NameServer"}.get(kind, kind)
            column = f"{shown} 10911, 10909" if port in (10911, 10909) else f"{shown} {port}"
            column = "drivers, executors" if kind in ("driver", "executor") else column
            found.setdefault(column, []).append((pod, port))
    return found


@pytest.mark.parametrize("title", POLICIES)
def test_documented_access_matrix_matches_policies(title: str) -> None:
    of = broker(networkPolicy=POLICIES[title], analytics={})
    made = policies(of)
    computed = {
        row: {
            column: {True: "yes", False: "no"}[
                _all_the_same([lets_in(made, peer, pod, port) for peer in peers for pod, port in ports])
            ]
            for column, ports in columns(of).items()
        }
        for row, peers in sources(of).items()
    }
    assert table_of(title) == computed


def _all_the_same(answers: list[bool]) -> bool:
    assert len(set(answers)) == 1, "pods of one row or ports of one column differ"
    return answers[0]


def test_every_port_is_reachable_without_policies() -> None:
    of = broker(analytics={})
    assert policies(of) == []
    assert all(
        lets_in([], peer, pod, port)
        for peers in sources(of).values()
        for peer in peers
        for ports in columns(of).values()
        for pod, port in ports
    )


def test_old_and_new_port_are_reachable_until_broker_restarts() -> None:
    outside = {"type": "NodePort", "advertisedAddress": "192.0.2.1"}
    of = broker(external=outside, networkPolicy={"enabled": True}, analytics={})
    client, pod = Peer(name="c", namespace="ns"), targets(of)["broker"]
    made = policies(of, (10911,))
    assert [port for port in (10909, 10911, 30909, 30911) if lets_in(made, client, pod, port)] == [
        10909,
        10911,
        30909,
        30911,
    ]
    assert listen_port(of.spec, 0) == 30911
    assert not lets_in(policies(of), client, pod, 10911)


def test_brokers_of_groups_with_replicas_admit_each_other() -> None:
    of = broker(networkPolicy={"enabled": True, "allowFrom": [CLIENTS]}, analytics={}, replicasPerGroup=2)
    pod, stranger = targets(of)["broker"], Peer(name="p", namespace="ns", labels={"app": "payroll"})
    for replicates in (False, True):
        made = supporting_objects(of, replace(CONTEXT, replicates=replicates), [0])
        policies = [each for each in made if each["kind"] == "NetworkPolicy"]
        assert lets_in(policies, pod, pod, 10911) is replicates
        assert not lets_in(policies, pod, pod, 8080)
        assert not lets_in(policies, stranger, pod, 10911)


def test_evaluator_supports_features_that_renderer_does_not_use() -> None:
    target = Peer(name="t", namespace="ns", labels={"a": "1"}, ports={"web": 80})
    policy: Manifest = {
        "metadata": {"namespace": "ns"},
        "spec": {
            "podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
            "ingress": [
                {"ports": [{"port": "web"}], "from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]},
                {"ports": [{"port": 90, "endPort": 95}], "from": [{"podSelector": {}}]},
            ],
        },
    }
    near, far = Peer(name="n", address="10.2.0.1"), Peer(name="f", address="10.1.0.1")
    assert [lets_in([policy], each, target, 80) for each in (near, far)] == [True, False]
    inside = Peer(name="i", namespace="ns", address="10.1.0.9")
    assert [lets_in([policy], inside, target, port) for port in (80, 89, 90, 95, 96)] == [
        False,
        False,
        True,
        True,
        False,
    ]
    assert not lets_in([policy], inside, target, 90, protocol="UDP")
    egress_only = {**policy, "spec": {**policy["spec"], "policyTypes": ["Egress"]}}
    assert lets_in([egress_only], far, target, 80)
    assert not selects({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, {"a": "1"})
    assert selects({"matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]}, {"a": "1"})
    assert names.COMPONENT_LABEL not in target.labels
