"""Effects of each field of a Broker's spec: changed objects and restarted pods."""

import json
from collections.abc import Iterator

import msgspec
import pytest
from delaymq_operator.api.broker import Broker, BrokerSpec, ResourceRequirements, parse_broker
from delaymq_operator.api.names import INPUTS_ANNOTATION
from delaymq_operator.manifests import (
    Context,
    GroupContext,
    broker_stateful_set,
    group_external_service,
    group_service,
    group_service_account,
    master_endpoint_slice,
    name_server_external_service,
    name_server_stateful_set,
    register_lease,
    register_role,
    register_role_binding,
    supporting_objects,
)
from delaymq_operator.reconcile.ports import Manifest

LEVELS = Context(image="i", token="t")
BROKERS, SERVERS = "StatefulSet demo-broker-0", "StatefulSet demo-namesrv"
BOTH = {BROKERS, SERVERS}
CONF = "ConfigMap demo-broker-conf"
POLICIES = {"NetworkPolicy demo-broker", "NetworkPolicy demo-namesrv"}
NODE_PORT = {"type": "NodePort", "advertisedAddress": "192.0.2.1"}
OUTSIDE = {"Service demo-broker-0-external", "Service demo-namesrv-external"}

GROUP = {
    f"{kind} demo-broker-0{suffix}"
    for kind, suffix in (
        ("ServiceAccount", ""), ("Role", "-register"), ("RoleBinding", "-register"), ("Lease", "-register"),
        ("EndpointSlice", "-master"),
    )
}  # fmt: skip

CHANGES: dict[str, tuple[Manifest, Manifest, set[str], set[str]]] = {
    "size": ({}, {"size": 3}, set(), set()),
    "replicasPerGroup": ({}, {"replicasPerGroup": 2}, {BROKERS, "Service demo-broker-0"} | GROUP, {BROKERS}),
    "replicasPerGroup, more": ({"replicasPerGroup": 2}, {"replicasPerGroup": 3}, {BROKERS}, {BROKERS}),
    "replicasPerGroup, with policies": (
        {"networkPolicy": {"enabled": True}},
        {"networkPolicy": {"enabled": True}, "replicasPerGroup": 2},
        {BROKERS, "Service demo-broker-0", "NetworkPolicy demo-broker"} | GROUP,
        {BROKERS},
    ),
    "replication.mode": (
        {"replicasPerGroup": 2},
        {"replicasPerGroup": 2, "replication": {"mode": "Async"}},
        {BROKERS},
        {BROKERS},
    ),
    "replication.mode, without replicas": ({}, {"replication": {"mode": "Async"}}, set(), set()),
    "replication.minInSync": (
        {"replicasPerGroup": 2},
        {"replicasPerGroup": 2, "replication": {"minInSync": 2}},
        {BROKERS},
        {BROKERS},
    ),
    "replication.acknowledge": (
        {"replicasPerGroup": 2},
        {"replicasPerGroup": 2, "replication": {"acknowledge": "Flushed"}},
        {BROKERS},
        {BROKERS},
    ),
    "replication.replaceLostVolumesAfterSeconds": (
        {"replicasPerGroup": 2},
        {"replicasPerGroup": 2, "replication": {"replaceLostVolumesAfterSeconds": 60}},
        set(),
        set(),
    ),
    "replication.failover": (
        {"replicasPerGroup": 2},
        {"replicasPerGroup": 2, "replication": {"failover": "Manual"}},
        {BROKERS},
        {BROKERS},
    ),
    "image": ({}, {"image": "i:2"}, BOTH, BOTH),
    "imagePullPolicy": ({}, {"imagePullPolicy": "Always"}, BOTH, BOTH),
    "imagePullSecrets": ({}, {"imagePullSecrets": [{"name": "s"}]}, BOTH, BOTH),
    "tls": ({}, {"tls": {"secretName": "s"}}, BOTH, BOTH),
    "tls, another": ({"tls": {"secretName": "s"}}, {"tls": {"secretName": "t"}}, BOTH, BOTH),
    "tls, generated": ({"tls": {"secretName": "s"}}, {"tls": {"generate": {}}}, BOTH, BOTH),
    "tls, enforcing": ({"tls": {"generate": {}}}, {"tls": {"generate": {}, "mode": "enforcing"}}, BOTH, BOTH),
    "tls, another lifetime": ({"tls": {"generate": {}}}, {"tls": {"generate": {"validityDays": 7}}}, set(), set()),
    "accessControl": ({}, {"accessControl": {"secretName": "s"}}, {BROKERS}, {BROKERS}),
    "accessControl, another": (
        {"accessControl": {"secretName": "s"}},
        {"accessControl": {"secretName": "t"}},
        {BROKERS},
        {BROKERS},
    ),
    "accessControl, nameServers": (
        {"accessControl": {"secretName": "s"}},
        {"accessControl": {"secretName": "s", "nameServers": True}},
        BOTH,
        BOTH,
    ),
    "accessControl, another Secret of nameServers": (
        {"accessControl": {"secretName": "s", "nameServers": True}},
        {"accessControl": {"secretName": "t", "nameServers": True}},
        BOTH,
        BOTH,
    ),
    "accessControl, metadata": (
        {"accessControl": {"users": True, "nameServers": True}},
        {"accessControl": {"users": True, "nameServers": True, "metadata": "Own"}},
        BOTH,
        BOTH,
    ),
    "flush": ({}, {"flush": "Sync"}, {BROKERS, CONF}, {BROKERS}),
    "delayLevelConfigRef": ({}, {"delayLevelConfigRef": {"name": "x"}}, set(), set()),
    "config, hot": ({}, {"config": {"fileReservedTime": "9"}}, {CONF}, set()),
    "config, hot, taken out": ({"config": {"fileReservedTime": "9"}}, {"config": {}}, {CONF}, set()),
    "config, cold": ({}, {"config": {"regionId": "eu"}}, {BROKERS, CONF}, {BROKERS}),
    "config, cold, taken out": ({"config": {"regionId": "eu"}}, {"config": {}}, {BROKERS, CONF}, {BROKERS}),
    "config, without a meaning": ({}, {"config": {"highSpeedMode": "false"}}, {CONF}, set()),
    "storage.size": ({}, {"storage": {"size": "20Gi"}}, {BROKERS}, set()),
    "storage.storageClassName": ({}, {"storage": {"storageClassName": "c"}}, {BROKERS}, set()),
    "storage.deleteClaim": ({}, {"storage": {"deleteClaim": True}}, {BROKERS}, set()),
    "nameServers.replicas": ({}, {"nameServers": {"replicas": 3}}, BOTH, {BROKERS}),
    "nameServers.addresses": (
        {},
        {"nameServers": {"addresses": ["a:1"]}},
        {
            BROKERS,
            SERVERS,
            "Service demo-namesrv",
            "Service demo-namesrv-pods",
            "PodDisruptionBudget demo-namesrv",
        },
        {BROKERS},
    ),
    "nameServers.resources": ({}, {"nameServers": {"resources": {"limits": {"cpu": 1}}}}, {SERVERS}, {SERVERS}),
    "resources": ({}, {"resources": {"limits": {"memory": "1Gi"}}}, {BROKERS}, {BROKERS}),
    "resources, another spelling": (
        {"resources": {"limits": {"memory": "1Gi", "cpu": "1"}}},
        {"resources": {"limits": {"memory": "1024Mi", "cpu": "1000m"}}},
        {BROKERS},
        set(),
    ),
    "podTemplate.labels": ({}, {"podTemplate": {"labels": {"a": "b"}}}, BOTH, BOTH),
    "podTemplate.annotations": ({}, {"podTemplate": {"annotations": {"a": "b"}}}, BOTH, BOTH),
    "podTemplate.nodeSelector": ({}, {"podTemplate": {"nodeSelector": {"a": "b"}}}, BOTH, BOTH),
    "podTemplate.tolerations": ({}, {"podTemplate": {"tolerations": [{"operator": "Exists"}]}}, BOTH, BOTH),
    "podTemplate.affinity": ({}, {"podTemplate": {"affinity": {"nodeAffinity": {"x": 1}}}}, BOTH, BOTH),
    "podTemplate.topologySpreadConstraints": (
        {},
        {"podTemplate": {"topologySpreadConstraints": [{"maxSkew": 1}]}},
        BOTH,
        BOTH,
    ),
    "podTemplate.priorityClassName": ({}, {"podTemplate": {"priorityClassName": "p"}}, BOTH, BOTH),
    "podTemplate.serviceAccountName": (
        {},
        {"podTemplate": {"serviceAccountName": "p"}},
        BOTH | {"ServiceAccount demo-broker"},
        BOTH,
    ),
    "podTemplate.terminationGracePeriodSeconds": (
        {},
        {"podTemplate": {"terminationGracePeriodSeconds": 5}},
        {BROKERS},
        {BROKERS},
    ),
    "podTemplate.env": ({}, {"podTemplate": {"env": [{"name": "TZ", "value": "UTC"}]}}, {BROKERS}, {BROKERS}),
    "external.type": ({}, {"external": NODE_PORT}, {BROKERS, "Service demo-broker-0"} | OUTSIDE, {BROKERS}),
    "external.advertisedAddress": (
        {"external": NODE_PORT},
        {"external": NODE_PORT | {"advertisedAddress": "192.0.2.2"}},
        {BROKERS},
        {BROKERS},
    ),
    "external.brokerNodePort": (
        {"external": NODE_PORT},
        {"external": NODE_PORT | {"brokerNodePort": 31000}},
        {BROKERS, "Service demo-broker-0", "Service demo-broker-0-external"},
        {BROKERS},
    ),
    "external.nameServerNodePort": (
        {"external": NODE_PORT},
        {"external": NODE_PORT | {"nameServerNodePort": 31000}},
        {"Service demo-namesrv-external"},
        set(),
    ),
    "external.annotations": (
        {"external": NODE_PORT},
        {"external": NODE_PORT | {"annotations": {"a": "b"}}},
        OUTSIDE,
        set(),
    ),
    "external.loadBalancerClass": (
        {"external": {"type": "LoadBalancer"}},
        {"external": {"type": "LoadBalancer", "loadBalancerClass": "c"}},
        OUTSIDE,
        set(),
    ),
    "analytics": ({}, {"analytics": {"schedule": "@daily"}}, set(), set()),
    "analytics, with policies": (
        {"networkPolicy": {"enabled": True}},
        {"networkPolicy": {"enabled": True}, "analytics": {}},
        {"NetworkPolicy demo-broker"},
        set(),
    ),
    "networkPolicy.enabled": ({}, {"networkPolicy": {"enabled": True}}, POLICIES, set()),
    "networkPolicy.allowFrom": (
        {"networkPolicy": {"enabled": True}},
        {"networkPolicy": {"enabled": True, "allowFrom": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}},
        POLICIES,
        set(),
    ),
    "networkPolicy.allowMetricsFrom": (
        {"networkPolicy": {"enabled": True}},
        {"networkPolicy": {"enabled": True, "allowMetricsFrom": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}},
        POLICIES,
        set(),
    ),
    "paused": ({}, {"paused": True}, set(), set()),
}
"""Old spec, new spec, changed objects, and StatefulSets whose pods restart."""


def broker(spec: Manifest, **annotations: str) -> Broker:
    metadata = {"name": "demo", "namespace": "ns", "uid": "u-1", "annotations": annotations}
    return parse_broker({"metadata": metadata, "spec": spec})


def everything(of: Broker) -> dict[str, Manifest]:
    """Return all objects of a Broker with one group by kind and name."""
    external = of.spec.external
    members = of.spec.replicas_per_group if of.spec.replicas_per_group > 1 else 0
    context = Context(image=of.spec.image or "i", token="t", replicates=members > 0)
    address = external.advertised_address if external and external.advertised_address else "10.96.0.7"
    group = GroupContext(group=0, advertised_address=address, storage_size=of.spec.storage.size, members=members)
    found: list[Manifest | None] = [*supporting_objects(of, context, [0])]
    service = group_service(of, 0, None, selects=not members)
    found += [service, group_external_service(of, 0, selects=not members), name_server_external_service(of)]
    if members:
        found += [group_service_account(of, 0), register_role(of, 0), register_role_binding(of, 0)]
        found += [register_lease(of, 0), master_endpoint_slice(of, 0, service, 10911, None, "IPv4")]
    found.append(broker_stateful_set(of, context, group))
    if not of.spec.name_servers.addresses:
        found.append(name_server_stateful_set(of, context))
    return {f"{each['kind']} {each['metadata']['name']}": each for each in found if each is not None}


def changed(before: dict[str, Manifest], after: dict[str, Manifest]) -> set[str]:
    return {
        name
        for name in before.keys() | after.keys()
        if json.dumps(before.get(name), sort_keys=True) != json.dumps(after.get(name), sort_keys=True)
    }


def restarted(before: dict[str, Manifest], after: dict[str, Manifest]) -> set[str]:
    def inputs(of: dict[str, Manifest]) -> dict[str, str]:
        return {name: each["metadata"]["annotations"][INPUTS_ANNOTATION] for name, each in of.items() if name in BOTH}

    old, new = inputs(before), inputs(after)
    return {name for name in old.keys() & new.keys() if old[name] != new[name]}


@pytest.mark.parametrize("change", CHANGES, ids=lambda name: name.replace(" ", "-"))
def test_field_changes_listed_objects_and_restarts_listed_pods(change: str) -> None:
    old, new, objects, restarts = CHANGES[change]
    before, after = everything(broker(old)), everything(broker(new))
    assert changed(before, after) == objects
    assert restarted(before, after) == restarts


def test_every_field_of_spec_has_test_case() -> None:
    def fields(kind: type[msgspec.Struct], path: str = "") -> Iterator[str]:
        for field in msgspec.structs.fields(kind):
            inner = field.type
            whole = f"{path}{field.encode_name}"
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct) and inner is not ResourceRequirements:
                yield from fields(inner, f"{whole}.")
            else:
                yield whole

    listed = {name.partition(",")[0] for name in CHANGES}
    external = {name for name in listed if name.startswith("external.")}
    assert set(fields(BrokerSpec)) - {"external"} == listed - external
    inside = msgspec.inspect.type_info(BrokerSpec)
    assert isinstance(inside, msgspec.inspect.StructType)
    [of_external] = [field.type for field in inside.fields if field.encode_name == "external"]
    assert isinstance(of_external, msgspec.inspect.UnionType)
    [struct] = [kind for kind in of_external.types if isinstance(kind, msgspec.inspect.StructType)]
    assert {f"external.{field.encode_name}" for field in struct.fields} == external


@pytest.mark.parametrize("restart", ["1", "now"])
def test_restart_annotation_restarts_everything(restart: str) -> None:
    before, after = everything(broker({})), everything(broker({}, **{"delaymq.io/restart": restart}))
    assert restarted(before, after) == BOTH


def test_new_default_image_of_operator_restarts_nothing() -> None:
    made = [
        broker_stateful_set(
            broker({}),
            Context(image=image, token="t"),
            GroupContext(group=0, advertised_address="10.96.0.7", storage_size="1Gi"),
        )
        for image in ("i:1", "i:2")
    ]
    assert made[0]["metadata"]["annotations"] == made[1]["metadata"]["annotations"]


def test_input_hash_of_plain_broker_is_stable() -> None:
    """A different hash would restart every broker when the operator is upgraded."""
    found = everything(broker({}))
    assert found[BROKERS]["metadata"]["annotations"] == {INPUTS_ANNOTATION: "9d950498448fd71d"}
    assert found[SERVERS]["metadata"]["annotations"] == {INPUTS_ANNOTATION: "0d973bf808ef0dd9"}
