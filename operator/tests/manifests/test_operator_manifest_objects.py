"""Services, disruption budgets, network policies and configuration of a Broker."""

from typing import Any

import pytest
from delaymq.config import BrokerConfig, build, parse_properties_text
from delaymq_operator.api.broker import Broker, parse_broker
from delaymq_operator.manifests import (
    Context,
    DelayTable,
    broker_conf,
    broker_settings,
    group_external_service,
    group_service,
    hot_settings,
    listen_port,
    name_server_external_service,
    supporting_objects,
    token_secret,
)
from delaymq_operator.reconcile.ports import Manifest

CONTEXT = Context(image="delaymq/broker:1", token="t", operator_namespace="ops", operator_labels=(("app", "op"),))
NODE_PORT = {"type": "NodePort", "advertisedAddress": "192.0.2.1"}


def broker(**spec: Any) -> Broker:
    return parse_broker({"metadata": {"name": "demo", "namespace": "ns", "uid": "u-1"}, "spec": spec})


def objects(**spec: Any) -> dict[tuple[str, str], Manifest]:
    found = supporting_objects(broker(**spec), CONTEXT, [0, 1])
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def test_plain_broker_has_expected_objects() -> None:
    assert set(objects()) == {
        ("ConfigMap", "demo-broker-conf"),
        ("Service", "demo-broker-pods"),
        ("ServiceAccount", "demo-broker"),
        ("PodDisruptionBudget", "demo-broker"),
        ("Service", "demo-namesrv-pods"),
        ("Service", "demo-namesrv"),
        ("PodDisruptionBudget", "demo-namesrv"),
    }


def test_external_name_servers_get_no_objects() -> None:
    assert not [name for _, name in objects(nameServers={"addresses": ["a:1"]}) if "namesrv" in name]
    with_policy = objects(nameServers={"addresses": ["a:1"]}, networkPolicy={"enabled": True})
    assert ("NetworkPolicy", "demo-namesrv") not in with_policy
    assert name_server_external_service(broker(nameServers={"addresses": ["a:1"]}, external=NODE_PORT)) is None


def test_no_service_account_is_created_if_spec_names_one() -> None:
    assert ("ServiceAccount", "demo-broker") not in objects(podTemplate={"serviceAccountName": "mine"})


def test_every_object_has_labels_of_watches() -> None:
    everything: list[Manifest | None] = [
        *objects(networkPolicy={"enabled": True}).values(),
        token_secret(broker(), "t"),
    ]
    everything += [
        group_service(broker(external=NODE_PORT), 1, None),
        group_external_service(broker(external=NODE_PORT), 1),
    ]
    for each in everything:
        assert each is not None
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/managed-by"] == "delaymq-operator"
        assert labels["app.kubernetes.io/instance"] == "demo"
        assert each["metadata"]["ownerReferences"][0]["uid"] == "u-1"


def ports(service: Manifest) -> dict[str, int]:
    return {port["name"]: port["port"] for port in service["spec"]["ports"]}


def test_group_service_has_fixed_address_and_publishes_unready_pods() -> None:
    service = group_service(broker(), 1, "10.96.0.7")
    assert service["spec"]["clusterIP"] == "10.96.0.7"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"]["delaymq.io/group"] == "1"
    assert ports(service) == {"broker": 10911, "fast": 10909, "http": 8080}


def test_node_ports_equal_listen_ports_and_http_is_not_exposed() -> None:
    outside = group_external_service(broker(external=NODE_PORT, size=3), 2)
    assert outside is not None
    assert outside["spec"]["type"] == "NodePort"
    assert ports(outside) == {"broker": 30931, "fast": 30929}
    assert all(port["nodePort"] == port["port"] for port in outside["spec"]["ports"])
    assert ports(group_service(broker(external=NODE_PORT), 2, None))["broker"] == 30931
    servers = name_server_external_service(broker(external=NODE_PORT))
    assert servers is not None
    assert servers["spec"]["ports"][0]["nodePort"] == 30976
    assert servers["spec"]["ports"][0]["port"] == 9876


@pytest.mark.parametrize(("external", "port"), [({}, 10911), ({"advertisedAddress": "192.0.2.1"}, 10931)])
def test_groups_behind_shared_load_balancer_address_have_distinct_ports(external: Manifest, port: int) -> None:
    assert listen_port(broker(external={"type": "LoadBalancer"} | external).spec, 2) == port


def test_load_balancers_get_class_and_annotations() -> None:
    external = {"type": "LoadBalancer", "loadBalancerClass": "x/y", "annotations": {"a": "b"}}
    for service in (
        group_external_service(broker(external=external), 0),
        name_server_external_service(broker(external=external)),
    ):
        assert service is not None
        assert service["spec"]["type"] == "LoadBalancer"
        assert service["spec"]["loadBalancerClass"] == "x/y"
        assert service["metadata"]["annotations"] == {"a": "b"}
        assert all("nodePort" not in port for port in service["spec"]["ports"])


def test_disruption_budgets_allow_one_unavailable_pod() -> None:
    for name in ("demo-broker", "demo-namesrv"):
        assert objects()["PodDisruptionBudget", name]["spec"]["maxUnavailable"] == 1


def policy(name: str, **network_policy: Any) -> list[tuple[list[Manifest], list[int]]]:
    found = objects(networkPolicy={"enabled": True} | network_policy)["NetworkPolicy", name]["spec"]
    assert found["policyTypes"] == ["Ingress"]
    return [([*rule["from"]], [port["port"] for port in rule["ports"]]) for rule in found["ingress"]]


OPERATOR = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ops"}},
    "podSelector": {"matchLabels": {"app": "op"}},
}


def test_policy_admits_namespace_to_broker_ports_and_only_operator_to_http() -> None:
    assert policy("demo-broker") == [
        ([{"podSelector": {}}, OPERATOR], [10909, 10911]),
        ([OPERATOR], [8080]),
    ]


def test_policy_admits_peers_listed_in_spec() -> None:
    block = {"ipBlock": {"cidr": "192.0.2.0/24"}}
    scraper = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
    clients, metrics = policy("demo-broker", allowFrom=[block], allowMetricsFrom=[scraper])
    assert clients[0] == [block, OPERATOR]
    assert metrics == ([scraper, OPERATOR], [8080])


def test_brokers_can_always_reach_their_name_servers() -> None:
    [(peers, found)] = policy("demo-namesrv", allowFrom=[{"ipBlock": {"cidr": "192.0.2.0/24"}}])
    assert any("podSelector" in peer and "namespaceSelector" not in peer for peer in peers)
    assert found == [9876]


def test_policy_without_peers_has_no_rule_that_admits_everyone() -> None:
    alone = Context(image="i", token="t")
    [found] = [
        each
        for each in supporting_objects(broker(networkPolicy={"enabled": True}), alone, [0])
        if (each["kind"], each["metadata"]["name"]) == ("NetworkPolicy", "demo-broker")
    ]
    assert all(rule["from"] for rule in found["spec"]["ingress"])
    assert [8080] not in [[port["port"] for port in rule["ports"]] for rule in found["spec"]["ingress"]]


def test_broker_conf_contains_settings_of_spec_and_is_parsed_by_broker() -> None:
    spec = broker(flush="Sync", config={"fileReservedTime": "48", "regionId": r"a\b"}).spec
    settings = broker_settings(spec, DelayTable(levels="1s 2s", overflow="reject"))
    read = parse_properties_text(broker_conf(settings))
    assert read == settings
    config, _ = build(BrokerConfig, read)
    assert config.flush_disk_type == "SYNC_FLUSH"
    assert config.message_delay_level == "1s 2s"
    assert config.delay_level_overflow == "reject"
    assert config.file_reserved_time == 48
    assert config.region_id == r"a\b"


def test_hot_settings_include_defaults_but_no_permissions() -> None:
    found = hot_settings({"fileReservedTime": "48", "maxConnections": "5"})
    assert "logLevel" not in found
    assert hot_settings({"logLevel": "debug"})["logLevel"] == "debug"
    assert found["fileReservedTime"] == "48"
    assert found["messageDelayLevel"].startswith("1s 5s")
    assert "maxConnections" not in found
    assert "brokerPermission" not in found
