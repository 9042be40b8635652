"""Pods and objects of groups with replicas: settings, placement, credentials."""

from __future__ import annotations

import json
from typing import Any

import pytest
from delaymq.config import BrokerConfig, build, from_environment
from delaymq_operator.api.broker import Broker, parse_broker
from delaymq_operator.manifests import (
    Context,
    GroupContext,
    broker_stateful_set,
    group_external_service,
    group_service,
    master_endpoint_slice,
    read_replication_secrets,
    register_role,
    register_role_binding,
    replication_secret,
)
from delaymq_operator.reconcile.ports import Manifest

CONTEXT = Context(image="i", token="t")


def broker(**spec: Any) -> Broker:
    return parse_broker({"metadata": {"name": "demo", "namespace": "ns", "uid": "u"}, "spec": spec})


def pod(of: Broker, members: int) -> Manifest:
    group = GroupContext(group=1, advertised_address="10.96.0.7", storage_size="1Gi", members=members)
    found: Manifest = broker_stateful_set(of, CONTEXT, group)["spec"]["template"]["spec"]
    return found


def settings(of: Broker, members: int, name: str = "demo-broker-1-0") -> dict[str, str]:
    """Return the settings of a pod's environment, with the fields that the kubelet fills in."""
    filled = {"metadata.name": name, "status.podIP": "10.1.0.9"}
    [container] = pod(of, members)["containers"]
    variables = {
        each["name"]: each["value"]
        if "value" in each
        else filled.get(each["valueFrom"].get("fieldRef", {}).get("fieldPath"), "t")
        for each in container["env"]
    }
    return from_environment(BrokerConfig, variables)


def test_broker_starts_as_the_member_that_the_pod_is_named_after() -> None:
    spec = {"replicasPerGroup": 3, "replication": {"minInSync": 2, "acknowledge": "Flushed", "failover": "Manual"}}
    config, ignored = build(BrokerConfig, settings(broker(**spec), 3, "demo-broker-1-2"))
    assert ignored == []
    assert config.ha_member_name == "demo-broker-1-2"
    assert config.members == {
        f"demo-broker-1-{number}": (f"demo-broker-1-{number}.demo-broker-pods.ns.svc", 10911) for number in range(3)
    }
    assert config.broker_role == "SYNC_MASTER"
    assert (config.min_in_sync_replicas, config.replica_acknowledge, config.replica_failover) == (
        2,
        "Flushed",
        "Manual",
    )
    assert config.replica_register == "kubernetes:ns/demo-broker-1-register"
    assert config.replica_endpoint == "kubernetes:ns/demo-broker-1-master"
    assert config.replica_endpoint_address == "10.1.0.9"


@pytest.mark.parametrize(
    ("mode", "members", "role"), [("Sync", 2, "SYNC_MASTER"), ("Async", 2, "ASYNC_MASTER"), ("Sync", 1, "ASYNC_MASTER")]
)
def test_only_master_of_several_members_waits_for_replicas(mode: str, members: int, role: str) -> None:
    found = settings(broker(replicasPerGroup=members, replication={"mode": mode}), members)
    assert found["brokerRole"] == role
    assert build(BrokerConfig, found)[0].min_in_sync_replicas == 1


def test_members_use_tls_with_a_certificate_and_the_operators_name_servers() -> None:
    tls = {"tls": {"secretName": "s"}}
    assert build(BrokerConfig, settings(broker(replicasPerGroup=2, **tls), 2))[0].dials_tls
    assert not build(BrokerConfig, settings(broker(replicasPerGroup=2), 2))[0].dials_tls
    others = {"nameServers": {"addresses": ["a:9876"]}}
    assert not build(BrokerConfig, settings(broker(replicasPerGroup=2, **tls, **others), 2))[0].dials_tls
    assert not build(BrokerConfig, settings(broker(**tls), 0))[0].dials_tls


def test_group_without_replicas_has_neither_settings_nor_credentials_of_a_member() -> None:
    found = pod(broker(), 0)
    assert {"ha", "replica"}.isdisjoint({key[:2] for key in settings(broker(), 0)})
    assert found["serviceAccountName"] == "demo-broker"
    assert not found["automountServiceAccountToken"]
    assert "serviceAccountToken" not in json.dumps(found)
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in json.dumps(found)
    assert "topologySpreadConstraints" not in found


def test_member_has_the_account_of_its_group_and_a_token_that_expires() -> None:
    found = pod(broker(replicasPerGroup=2), 2)
    assert found["serviceAccountName"] == "demo-broker-1"
    assert not found["automountServiceAccountToken"]
    volumes = {each["name"]: each for each in found["volumes"]}
    [token, authority] = volumes["account"]["projected"]["sources"]
    assert token == {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}
    assert authority["configMap"]["name"] == "kube-root-ca.crt"
    # Only the secret of its own group.
    assert volumes["replication"]["secret"]["items"] == [{"key": "group-1", "path": "secret"}]
    mounts = {each["name"]: each for each in found["containers"][0]["volumeMounts"]}
    assert mounts["account"]["readOnly"]
    assert mounts["account"]["mountPath"] == BrokerConfig().replica_register_account_path


def test_account_of_the_user_gets_the_permissions_of_the_group() -> None:
    of = broker(replicasPerGroup=2, podTemplate={"serviceAccountName": "mine"})
    assert pod(of, 2)["serviceAccountName"] == "mine"
    assert register_role_binding(of, 1)["subjects"][0]["name"] == "mine"


def test_members_of_a_group_are_on_different_nodes_and_preferably_in_different_zones() -> None:
    found = pod(broker(replicasPerGroup=2), 2)
    apart = found["affinity"]["podAntiAffinity"]
    [required] = apart["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["topologyKey"] == "kubernetes.io/hostname"
    assert required["labelSelector"]["matchLabels"]["delaymq.io/group"] == "1"
    assert len(apart["preferredDuringSchedulingIgnoredDuringExecution"]) == 1
    [spread] = found["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("topology.kubernetes.io/zone", "ScheduleAnyway")
    assert spread["labelSelector"] == required["labelSelector"]


def test_placement_of_the_user_takes_precedence() -> None:
    zones = {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}
    template = {"affinity": {"podAntiAffinity": {}}, "topologySpreadConstraints": [zones]}
    found = pod(broker(replicasPerGroup=2, podTemplate=template), 2)
    assert found["affinity"]["podAntiAffinity"] == {}
    [spread] = found["topologySpreadConstraints"]
    assert (spread["maxSkew"], spread["whenUnsatisfiable"]) == (2, "DoNotSchedule")


def test_role_names_the_objects_of_its_group_only() -> None:
    outside = {"type": "NodePort", "advertisedAddress": "192.0.2.1"}
    rules = register_role(broker(replicasPerGroup=2, external=outside), 1)["rules"]
    assert [rule["resourceNames"] for rule in rules] == [
        ["demo-broker-1-register"],
        ["demo-broker-1-master", "demo-broker-1-external-master"],
    ]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "update", "patch"}


def test_services_that_follow_a_master_have_no_selector() -> None:
    of = broker(replicasPerGroup=2, external={"type": "NodePort", "advertisedAddress": "192.0.2.1"})
    external = group_external_service(of, 1, selects=False)
    assert external is not None
    for service in (group_service(of, 1, "10.96.0.7", selects=False), external):
        assert "selector" not in service["spec"]


def test_slice_leads_to_the_port_on_which_the_broker_listens() -> None:
    """While a change of the port is rolled out, a Service has both ports, and the broker one of them."""
    of = broker(replicasPerGroup=2, external={"type": "NodePort", "advertisedAddress": "192.0.2.1"})
    service = group_service(of, 1, "10.96.0.7", 10911, selects=False)
    found = master_endpoint_slice(of, 1, service, 10911, "10.1.0.9", "IPv4")
    assert {each["name"]: each["port"] for each in found["ports"]} == {
        "broker": 10911, "fast": 10909, "http": 8080, "broker-before": 10911, "fast-before": 10909,
    }  # fmt: skip
    assert found["metadata"]["labels"]["kubernetes.io/service-name"] == service["metadata"]["name"]
    assert found["metadata"]["annotations"] == {"delaymq.io/epoch": "0"}


def test_secrets_of_groups_round_trip_and_unreadable_ones_are_omitted() -> None:
    made = replication_secret(broker(), {0: "a" * 20, 11: "b" * 20})
    assert read_replication_secrets(made) == {0: "a" * 20, 11: "b" * 20}
    assert read_replication_secrets({"data": {"group-1": "?", "group-x": "YQ==", "other": "YQ==", "group-2": ""}}) == {}
    assert read_replication_secrets(None) == {}
