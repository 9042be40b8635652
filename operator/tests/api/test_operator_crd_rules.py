"""What a real API server says to each spec that cannot be: these tables are the sentences that users see."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from api_server import ApiError, ApiServer
from crd_files import EXAMPLES_PATH, schema_of, walk
from delaymq.message import names as rocketmq_names
from delaymq_operator.api import names, parse_broker

Spec = dict[str, Any]

LATE_PORT = (
    "the last group's NodePort, brokerNodePort + 10 · (size - 1), would be above 32767: use a smaller brokerNodePort"
)
TAKEN_PORT = (
    "a broker group needs this NodePort (group g has brokerNodePort + 10 · g and the port 2 below it): "
    "use another nameServerNodePort"
)
SMALL_VOLUME = (
    "the volume must hold two log segments at least, and one has 1 GiB unless config says otherwise: use 2Gi or more, "
    "or a smaller config.mappedFileSizeCommitLog (bytes)"
)
AMOUNT = "an amount is a number and perhaps a unit: write it like 100m, 2 or 256Mi"
NO_IP = "an advertised address is an IP address, since message ids carry it: write it like 203.0.113.10"
OWN_LABELS = (
    "delaymq.io/… and app.kubernetes.io/name, instance, component and managed-by belong to the operator: "
    "use other labels"
)
BROKER_TOPIC = (
    "the broker has a topic of its own with the Broker's name, and one with _REPLY_TOPIC: use another topicName"
)
ADDRESS = "an address is host:port: write it like namesrv.messaging:9876"
ONE_PEER_KIND = (
    "an entry has either ipBlock, or podSelector, namespaceSelector or both: write two entries for two kinds"
)
RANGE = "a range is an address and a length: write it like 198.51.100.0/24"
BROKER_NAME = (
    "a Broker's name starts with a letter and has only lower-case letters, digits and -, since Services are named "
    "after it: choose another name"
)


def _node_port(**fields: object) -> Spec:
    return {"external": {"type": "NodePort", "advertisedAddress": "203.0.113.10"} | fields}


def _peer(**fields: object) -> Spec:
    return {"networkPolicy": {"enabled": True, "allowFrom": [fields]}}


# A Broker's spec → the field and what is said about it.
REFUSED_BROKERS: list[tuple[Spec, str, str]] = [
    ({"size": 0}, "spec.size", "spec.size in body should be greater than or equal to 1"),
    ({"size": 33}, "spec.size", "spec.size in body should be less than or equal to 32"),
    ({"flush": "Sometimes"}, "spec.flush", 'Unsupported value: "Sometimes": supported values: "Async", "Sync"'),
    ({"image": "a b"}, "spec.image", "an image has no blanks, write it like registry.example/delaymq/broker:0.1.0"),
    ({"image": ""}, "spec.image", "spec.image in body should be at least 1 chars long"),
    (
        {"config": {"a": "1\n2"}},
        "spec.config[a]",
        "a value is one line of text, remove line breaks and control characters",
    ),
    ({"config": {"a": 1}}, "spec.config.a", 'spec.config.a in body must be of type string: "integer"'),
    ({"config": {str(n): "" for n in range(101)}}, "spec.config", "must have at most 100 items"),
    ({"storage": {"size": "ten"}}, "spec.storage.size", "a size is a number above 0 and a unit: write it like 10Gi"),
    ({"storage": {"size": "-1Gi"}}, "spec.storage.size", "a size is a number above 0 and a unit: write it like 10Gi"),
    ({"storage": {"size": "1Gi"}}, "spec.storage.size", SMALL_VOLUME),
    (
        {"storage": {"size": "4Gi"}, "config": {"mappedFileSizeCommitLog": "2147483649"}},
        "spec.storage.size",
        SMALL_VOLUME,
    ),
    (
        {"nameServers": {"replicas": 2, "addresses": ["a:9876"]}},
        "spec.nameServers",
        "with addresses no NameServers are made: leave replicas out to use those at the addresses, or remove addresses "
        "to have own ones",
    ),
    ({"nameServers": {"addresses": ["a:b"]}}, "spec.nameServers.addresses[0]", ADDRESS),
    ({"nameServers": {"addresses": ["http://a:9876"]}}, "spec.nameServers.addresses[0]", ADDRESS),
    ({"nameServers": {"addresses": ["a:1;b:2"]}}, "spec.nameServers.addresses[0]", ADDRESS),
    (
        {"nameServers": {"addresses": ["a:99999"]}},
        "spec.nameServers.addresses[0]",
        "a port is at most 65535: write the NameServer's, such as 9876",
    ),
    ({"resources": {"requests": {"cpu": "much"}}}, "spec.resources.requests[cpu]", AMOUNT),
    ({"nameServers": {"resources": {"limits": {"cpu": -1}}}}, "spec.nameServers.resources.limits[cpu]", AMOUNT),
    (
        {"resources": {"requests": {"memory": "2Gi", "cpu": 1}, "limits": {"memory": "1Gi"}}},
        "spec.resources",
        "a request is above its limit: raise the limit, or lower the request",
    ),
    ({"podTemplate": {"labels": {"delaymq.io/group": "1"}}}, "spec.podTemplate.labels", OWN_LABELS),
    ({"podTemplate": {"labels": {"app.kubernetes.io/name": "x"}}}, "spec.podTemplate.labels", OWN_LABELS),
    (
        {"podTemplate": {"labels": {"team": "a b"}}},
        "spec.podTemplate.labels[team]",
        "a label's value has letters, digits, -, _ and ., and starts and ends with a letter or digit",
    ),
    (
        {"podTemplate": {"annotations": {"delaymq.io/inputs": "x"}}},
        "spec.podTemplate.annotations",
        "annotations delaymq.io/… belong to the operator: use others",
    ),
    (
        {"podTemplate": {"env": [{"name": "DELAYMQ_LISTEN_PORT", "value": "1"}]}},
        "spec.podTemplate.env[0].name",
        "variables DELAYMQ_… belong to the operator: set the key in spec.config",
    ),
    (
        {"podTemplate": {"env": [{"name": "2b"}]}},
        "spec.podTemplate.env[0].name",
        "a variable's name has letters, digits and _, and does not start with a digit",
    ),
    (
        {"external": {"type": "NodePort"}},
        "spec.external",
        "NodePort needs advertisedAddress: write the IP address of a node, or of what stands before the nodes, that "
        "clients outside reach",
    ),
    (_node_port(advertisedAddress="node.example"), "spec.external.advertisedAddress", NO_IP),
    (_node_port(advertisedAddress="0.0.0.0"), "spec.external.advertisedAddress", NO_IP),
    (
        _node_port(loadBalancerClass="x"),
        "spec.external.loadBalancerClass",
        "loadBalancerClass is for type LoadBalancer: remove it",
    ),
    ({"size": 3} | _node_port(brokerNodePort=32750), "spec.external.brokerNodePort", LATE_PORT),
    (_node_port(nameServerNodePort=30911), "spec.external.nameServerNodePort", TAKEN_PORT),
    (_node_port(nameServerNodePort=30909), "spec.external.nameServerNodePort", TAKEN_PORT),
    ({"size": 2} | _node_port(nameServerNodePort=30921), "spec.external.nameServerNodePort", TAKEN_PORT),
    ({"size": 2} | _node_port(nameServerNodePort=30919), "spec.external.nameServerNodePort", TAKEN_PORT),
    (_peer(), "spec.networkPolicy.allowFrom[0]", ONE_PEER_KIND),
    (_peer(ipBlock={"cidr": "198.51.100.0/24"}, podSelector={}), "spec.networkPolicy.allowFrom[0]", ONE_PEER_KIND),
    (_peer(ipBlock={"cidr": "198.51.100.0"}), "spec.networkPolicy.allowFrom[0].ipBlock.cidr", RANGE),
    (
        _peer(ipBlock={"cidr": "198.51.100.0/24", "except": ["x"]}),
        "spec.networkPolicy.allowFrom[0].ipBlock.except[0]",
        RANGE,
    ),
]

ACCEPTED_BROKERS: list[Spec] = [
    {},
    {"size": 32, "flush": "Sync", "paused": True, "image": "registry.example:5000/a/b@sha256:0"},
    {"config": {"fileReservedTime": "168", "regionId": "a=b; c: d\té", "mappedFileSizeCommitLog": "nonsense"}},
    {"storage": {"size": "128Mi"}, "config": {"mappedFileSizeCommitLog": "67108864"}},
    {"storage": {"size": "1.5Ti", "storageClassName": "fast", "deleteClaim": True}},
    {"nameServers": {"addresses": ["a.b:9876", "10.0.0.1:1", "[2001:db8::1]:65535"]}},
    {"resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"cpu": "1000m", "memory": "1Gi"}}},
    {"resources": {}},
    {"podTemplate": {"labels": {"team": "", "app.kubernetes.io/part-of": "shop"}, "env": [{"name": "TZ"}]}},
    {"podTemplate": {"affinity": {"nodeAffinity": {"anything": [{"at": "all"}]}}, "tolerations": [{"key": "spot"}]}},
    _node_port(),
    _node_port(advertisedAddress="2001:db8::1"),
    {"size": 6} | _node_port(nameServerNodePort=30971),
    {"size": 32} | _node_port(brokerNodePort=32457, nameServerNodePort=32767 - 1),
    {"size": 3, "external": {"type": "LoadBalancer", "loadBalancerClass": "x.example/lb"}},
    {"size": 2, "external": {"type": "LoadBalancer", "advertisedAddress": "203.0.113.10"}},
    {"size": 1} | {"external": {"type": "LoadBalancer", "nameServerNodePort": 30911}},
    _peer(podSelector={}, namespaceSelector={"matchLabels": {"a": "b"}}),
    _peer(ipBlock={"cidr": "2001:db8::/32", "except": ["2001:db8:1::/48"]}),
]

# What the Broker was, what it becomes → the field and what is said about it; None: it may.
CHANGED_BROKERS: list[tuple[Spec, Spec, tuple[str, str] | None]] = [
    ({}, {"storage": {"size": "20Gi"}}, None),
    (
        {},
        {"storage": {"size": "10G"}},
        (
            "spec.storage.size",
            "a volume cannot shrink from 10Gi to 10G: keep 10Gi, or move to a new Broker with smaller volumes",
        ),
    ),
    ({"storage": {"size": "10Gi"}}, {"storage": {"size": "10240Mi"}}, None),
    *(
        (
            {"storage": before},
            {"storage": after},
            (
                "spec.storage.storageClassName",
                "the class of existing volumes cannot change: restore storageClassName as it was, or move to a new "
                "Broker with the other class",
            ),
        )
        for before, after in itertools.permutations(({}, {"storageClassName": "a"}, {"storageClassName": "b"}), 2)
    ),
    ({"size": 3}, {"size": 1}, None),
    ({}, {"nameServers": {"addresses": ["a:9876"]}}, None),
    (_node_port(), {"external": {"type": "LoadBalancer"}}, None),
    ({"external": {"type": "LoadBalancer", "loadBalancerClass": "a"}}, {}, None),
    (
        {"external": {"type": "LoadBalancer"}},
        {"external": {"type": "LoadBalancer", "loadBalancerClass": "a"}},
        (
            "spec.external.loadBalancerClass",
            "the class of an existing load balancer cannot change: remove external, wait until the Services are gone, "
            "and add it with the other class",
        ),
    ),
]

TO = {"brokerRef": {"name": "demo"}}
SYSTEM_TOPIC = "this topic belongs to the broker itself: use another name"
GROUP_TOPIC = "retry and dead-letter topics belong to consumer groups, and the broker makes them: use another name"
RENAMED = "a topic cannot be renamed: restore topicName as it was, and make another Topic for the other name"
# A Topic's name and spec → the field and what is said about it.
REFUSED_TOPICS: list[tuple[str, Spec, str, str]] = [
    ("t", {}, "spec.brokerRef", "Required value"),
    ("t", TO | {"queues": 0}, "spec.queues", "spec.queues in body should be greater than or equal to 1"),
    ("t", TO | {"queues": 1025}, "spec.queues", "spec.queues in body should be less than or equal to 1024"),
    (
        "t",
        TO | {"topicName": "a.b"},
        "spec.topicName",
        "a topic's name has letters, digits, -, _, % and | only: write it like orders_paid",
    ),
    (
        "a.b",
        TO,
        "spec.topicName",
        "a topic's name has no dots, and metadata.name has some: write the topic's name to topicName",
    ),
    (
        "t" * 128,
        TO,
        "spec.topicName",
        "a topic's name has at most 127 characters, and metadata.name has more: write a shorter one to topicName",
    ),
    *(
        ("t", TO | {"topicName": topic}, "spec.topicName", SYSTEM_TOPIC)
        for topic in (
            rocketmq_names.SCHEDULE_TOPIC,
            rocketmq_names.HALF_TOPIC,
            rocketmq_names.OP_HALF_TOPIC,
            rocketmq_names.TRANS_CHECK_MAX_TOPIC,
            rocketmq_names.AUTO_CREATE_TOPIC,
            rocketmq_names.BENCHMARK_TOPIC,
            rocketmq_names.SELF_TEST_TOPIC,
            rocketmq_names.OFFSET_MOVED_TOPIC,
            rocketmq_names.TRACE_TOPIC,
            rocketmq_names.MARKS_TOPIC,
        )
    ),
    ("t", TO | {"topicName": "%RETRY%g"}, "spec.topicName", GROUP_TOPIC),
    ("t", TO | {"topicName": "%DLQ%g"}, "spec.topicName", GROUP_TOPIC),
    *(
        (
            *name_and_spec,
            "spec.topicName",
            BROKER_TOPIC,
        )
        for name_and_spec in (("demo", TO), ("t", TO | {"topicName": "demo_REPLY_TOPIC"}))
    ),
    (
        "demo-31",
        TO,
        "spec.topicName",
        "every broker group has a topic of its own with its name, <broker>-<number>: use another topicName",
    ),
]
ACCEPTED_TOPICS: list[tuple[str, Spec]] = [
    ("orders", TO),
    ("t" * 127, TO),
    ("with.dots", TO | {"topicName": "%a|B_9-"}),
    ("demo-x", TO),
    ("demo-1-2", TO),
    ("t", TO | {"queues": 1024, "permission": "WriteOnly", "order": True, "deletionPolicy": "Retain"}),
]
CHANGED_TOPICS: list[tuple[Spec, Spec, tuple[str, str] | None]] = [
    (TO, TO | {"topicName": "t"}, None),
    (TO, TO | {"topicName": "u"}, ("spec.topicName", RENAMED)),
    (TO | {"topicName": "u"}, TO, ("spec.topicName", RENAMED)),
    (
        TO,
        {"brokerRef": {"name": "other"}},
        ("spec.brokerRef", "a Topic cannot move to another Broker: restore brokerRef, and make another Topic"),
    ),
    (TO | {"queues": 8}, TO | {"queues": 4, "deletionPolicy": "Retain"}, None),
]

DELAY = "a delay is a whole number and s, m, h or d: write it like 30s, 5m, 2h or 7d"
LONG_DELAY = "a delay is at most 3650d (10 years): write a shorter one"
REFUSED_LEVELS: list[tuple[list[object], str, str]] = [
    ([], "spec.levels", "spec.levels in body should have at least 1 items"),
    (["1s"] * 1001, "spec.levels", "must have at most 1000 items"),
    (["1s", "0s"], "spec.levels[1]", DELAY),
    (["01s"], "spec.levels[0]", DELAY),
    (["1w"], "spec.levels[0]", DELAY),
    (["1m30s"], "spec.levels[0]", DELAY),
    (["1 s"], "spec.levels[0]", DELAY),
    (["3651d"], "spec.levels[0]", LONG_DELAY),
    (["999999999999d"], "spec.levels[0]", LONG_DELAY),
    (["87601h"], "spec.levels[0]", LONG_DELAY),
    ([1], "spec.levels[0]", 'spec.levels[0] in body must be of type string: "integer"'),
]
ACCEPTED_LEVELS = [["1s"], ["3650d", "1s", "1s"], ["87600h", "5256000m", "315360000s"], ["9s"] * 1000]


@pytest.mark.parametrize(("spec", "field", "sentence"), REFUSED_BROKERS)
def test_a_broker_that_cannot_be_is_refused(
    api_server: ApiServer, namespace: str, spec: Spec, field: str, sentence: str
) -> None:
    assert (field, sentence) in _refusal(api_server, namespace, "Broker", "demo", spec)


@pytest.mark.parametrize("key", sorted(names.OWNED_KEYS))
def test_a_key_that_belongs_to_the_operator_is_refused_alone(api_server: ApiServer, namespace: str, key: str) -> None:
    [(field, sentence)] = _refusal(api_server, namespace, "Broker", "demo", {"config": {key: "x"}})
    assert field == "spec.config"
    assert sentence.startswith(f"{key} belongs to the operator")


@pytest.mark.parametrize("name", ["a.b", "1a"])
def test_a_broker_needs_a_name_for_services(api_server: ApiServer, namespace: str, name: str) -> None:
    assert ("metadata", BROKER_NAME) in _refusal(api_server, namespace, "Broker", name, {})


def test_a_broker_has_a_name_of_40_characters_at_most(api_server: ApiServer, namespace: str) -> None:
    [(field, sentence)] = _refusal(api_server, namespace, "Broker", "b" * 41, {})
    assert (field, sentence) == (
        "metadata",
        "a Broker's name has at most 40 characters, since pods and Services are named after it",
    )
    _make(api_server, namespace, "Broker", "b" * 40, {})


@pytest.mark.parametrize("spec", ACCEPTED_BROKERS)
def test_a_broker_that_can_be_is_taken_as_it_is_written(api_server: ApiServer, namespace: str, spec: Spec) -> None:
    made = _make(api_server, namespace, "Broker", "demo", spec)
    assert _missing(spec, made["spec"]) == []
    assert parse_broker(made).spec == parse_broker(made | {"spec": spec}).spec


def test_a_broker_without_a_spec_gets_every_default(api_server: ApiServer, namespace: str) -> None:
    made = api_server.create(_path(namespace, "Broker"), _manifest("Broker", "demo", {}) | {"spec": {}})
    without = api_server.create(
        _path(namespace, "Broker") + "?dryRun=All",
        {"apiVersion": names.API_VERSION, "kind": "Broker", "metadata": {"name": "other"}},
    )
    assert without["spec"] == made["spec"]
    assert made["spec"] == {
        "size": 1,
        "imagePullPolicy": "IfNotPresent",
        "flush": "Async",
        "config": {},
        "storage": {"size": "10Gi", "deleteClaim": False},
        "nameServers": {"replicas": 1, "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}}},
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "podTemplate": {"terminationGracePeriodSeconds": 60},
        "networkPolicy": {"enabled": False},
        "paused": False,
    }


@pytest.mark.parametrize(("before", "after", "refused"), CHANGED_BROKERS)
def test_a_broker_changes_only_to_what_its_volumes_allow(
    api_server: ApiServer, namespace: str, before: Spec, after: Spec, refused: tuple[str, str] | None
) -> None:
    _check_change(api_server, namespace, "Broker", before, after, refused)


@pytest.mark.parametrize(("name", "spec", "field", "sentence"), REFUSED_TOPICS)
def test_a_topic_that_cannot_be_is_refused(
    api_server: ApiServer, namespace: str, name: str, spec: Spec, field: str, sentence: str
) -> None:
    assert (field, sentence) in _refusal(api_server, namespace, "Topic", name, spec)


@pytest.mark.parametrize(("name", "spec"), ACCEPTED_TOPICS)
def test_a_topic_that_can_be_is_taken(api_server: ApiServer, namespace: str, name: str, spec: Spec) -> None:
    assert _missing(spec, _make(api_server, namespace, "Topic", name, spec)["spec"]) == []


@pytest.mark.parametrize(("before", "after", "refused"), CHANGED_TOPICS)
def test_a_topic_keeps_its_name_and_its_broker(
    api_server: ApiServer, namespace: str, before: Spec, after: Spec, refused: tuple[str, str] | None
) -> None:
    _check_change(api_server, namespace, "Topic", before, after, refused)


@pytest.mark.parametrize(("levels", "field", "sentence"), REFUSED_LEVELS)
def test_a_level_table_that_cannot_be_is_refused(
    api_server: ApiServer, namespace: str, levels: list[object], field: str, sentence: str
) -> None:
    assert (field, sentence) in _refusal(api_server, namespace, "DelayLevelConfig", "l", {"levels": levels})


@pytest.mark.parametrize("levels", ACCEPTED_LEVELS)
def test_a_level_table_that_can_be_is_taken(api_server: ApiServer, namespace: str, levels: list[str]) -> None:
    made = _make(api_server, namespace, "DelayLevelConfig", "l", {"levels": levels})
    assert made["spec"] == {"levels": levels, "overflow": "Clamp"}


def test_a_broker_is_scaled_and_shows_its_selector(api_server: ApiServer, namespace: str) -> None:
    api_server.create(_path(namespace, "Broker"), _manifest("Broker", "demo", {}))
    selector = names.selector_text(names.labels("demo", "broker"))
    status = {"size": 1, "selector": selector}
    api_server.merge(f"{_path(namespace, 'Broker')}/demo/status", {"status": status})
    api_server.kubectl("-n", namespace, "scale", "dmqb/demo", "--replicas=3")
    scale = api_server.request("GET", f"{_path(namespace, 'Broker')}/demo/scale")
    assert (scale["spec"], scale["status"]) == ({"replicas": 3}, {"replicas": 1, "selector": selector})
    with pytest.raises(ApiError, match="less than or equal to 32"):
        api_server.merge(f"{_path(namespace, 'Broker')}/demo/scale", {"spec": {"replicas": 33}})


def test_a_status_is_written_apart_from_the_spec(api_server: ApiServer, namespace: str) -> None:
    path = f"{_path(namespace, 'Broker')}/demo"
    api_server.create(_path(namespace, "Broker"), _manifest("Broker", "demo", {}))
    api_server.merge(path, {"status": {"size": 5}, "spec": {"size": 2}})
    now = api_server.request("GET", path)
    assert (now["spec"]["size"], now.get("status", {}).get("size"), now["metadata"]["generation"]) == (2, None, 2)
    api_server.merge(f"{path}/status", {"status": {"size": 5}, "spec": {"size": 3}})
    now = api_server.request("GET", path)
    assert (now["spec"]["size"], now["status"]["size"], now["metadata"]["generation"]) == (2, 5, 2)


def test_the_list_of_brokers_shows_what_matters(api_server: ApiServer, namespace: str) -> None:
    api_server.create(_path(namespace, "Broker"), _manifest("Broker", "demo", {"size": 2}))
    conditions = [_condition("Ready", "False", "GroupsNotReady"), _condition("Progressing", "True", "Rolling")]
    status = {
        "readyGroups": 1,
        "pending": 12,
        "nextDue": "2026-12-01T00:00:00Z",
        "levels": "1s 5s",
        "image": "i:1",
        "nameServers": ["demo-namesrv.ns:9876"],
        "conditions": conditions,
    }
    api_server.merge(f"{_path(namespace, 'Broker')}/demo/status", {"status": status})
    head, row = api_server.kubectl("-n", namespace, "get", "dmqb").splitlines()
    assert head.split() == ["NAME", "SIZE", "READY", "PENDING", "NEXT-DUE", "STATUS", "AGE"]
    assert row.split()[:-1] == ["demo", "2", "1", "12", "2026-12-01T00:00:00Z", "GroupsNotReady"]
    head, row = api_server.kubectl("-n", namespace, "get", "dmqb", "-o", "wide").splitlines()
    assert head.split()[7:] == ["PROGRESS", "NAMESERVERS", "LEVELS", "IMAGE"]
    assert row.split()[7:] == ["Rolling", '["demo-namesrv.ns:9876"]', "1s", "5s", "i:1"]


def test_the_lists_of_topics_and_level_tables_show_what_matters(api_server: ApiServer, namespace: str) -> None:
    api_server.create(_path(namespace, "Topic"), _manifest("Topic", "t", TO))
    group = {"name": "demo-0", "writeQueues": 4, "readQueues": 8, "permission": "ReadWrite"}
    status: Spec = {"topicName": "t", "groups": [group], "conditions": [_condition("Ready", "True", "InEveryGroup")]}
    api_server.merge(f"{_path(namespace, 'Topic')}/t/status", {"status": status})
    head, row = api_server.kubectl("-n", namespace, "get", "dmqt").splitlines()
    assert head.split() == ["NAME", "BROKER", "TOPIC", "QUEUES", "PERMISSION", "STATUS", "AGE"]
    assert row.split()[:-1] == ["t", "demo", "t", "4", "ReadWrite", "InEveryGroup"]
    api_server.create(
        _path(namespace, "DelayLevelConfig"), _manifest("DelayLevelConfig", "l", {"levels": ["1s", "2h"]})
    )
    status = {
        "levelCount": 2,
        "maxDelay": "2h",
        "usedBy": ["demo"],
        "conditions": [_condition("Ready", "True", "Applied")],
    }
    api_server.merge(f"{_path(namespace, 'DelayLevelConfig')}/l/status", {"status": status})
    head, row = api_server.kubectl("-n", namespace, "get", "dmql").splitlines()
    assert head.split() == ["NAME", "LEVELS", "MAX", "OVERFLOW", "USED-BY", "STATUS", "AGE"]
    assert row.split()[:-1] == ["l", "2", "2h", "Clamp", '["demo"]', "Applied"]
    together = api_server.kubectl("-n", namespace, "get", "delaymq", "-o", "name").split()
    assert together == ["delaylevelconfig.delaymq.io/l", "topic.delaymq.io/t"]


def test_kubectl_explains_every_field(api_server: ApiServer) -> None:
    served = api_server.request("GET", f"/openapi/v3/apis/{names.GROUP}/{names.VERSION}")
    for kind in names.PLURALS:
        schema = next(found for name, found in served["components"]["schemas"].items() if name.endswith(f".{kind}"))
        assert [path for path, node in walk(schema) if not _is_described(node)] == [], kind
    for field in ("broker", "broker.spec", "broker.spec.storage", "broker.status.groups", "topic.spec", "dmql.spec"):
        text = api_server.kubectl("explain", field)
        assert "DESCRIPTION" in text
        assert "no description" not in text, field


@pytest.mark.parametrize("file", sorted(EXAMPLES_PATH.glob("*.yaml")), ids=lambda file: str(file.name))
def test_examples_are_taken_without_a_warning(api_server: ApiServer, namespace: str, file: Any) -> None:
    said = api_server.kubectl(
        "-n", namespace, "create", "--dry-run=server", "--validate=strict", "-f", str(file), check=False
    )
    assert re.fullmatch(r"(\S+ created \(server dry run\)\n)+", said)


def test_a_field_that_is_misspelt_is_an_error_for_kubectl(api_server: ApiServer, namespace: str) -> None:
    manifest = json.dumps(_manifest("Broker", "demo", {"sizes": 2}))
    said = api_server.kubectl("-n", namespace, "create", "-f", "-", stdin=manifest, check=False)
    assert 'unknown field "spec.sizes"' in said


def _path(namespace: str, kind: str) -> str:
    return f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURALS[kind]}"


def _manifest(kind: str, name: str, spec: Spec) -> Spec:
    return {"apiVersion": names.API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _make(api_server: ApiServer, namespace: str, kind: str, name: str, spec: Spec) -> Spec:
    """What the API server would make of it."""
    return api_server.create(f"{_path(namespace, kind)}?dryRun=All", _manifest(kind, name, spec))


def _refusal(api_server: ApiServer, namespace: str, kind: str, name: str, spec: Spec) -> list[tuple[str, str]]:
    """Fields and sentences of the answer."""
    with pytest.raises(ApiError) as refused:
        _make(api_server, namespace, kind, name, spec)
    return _sentences(refused.value)


def _sentences(refused: ApiError) -> list[tuple[str, str]]:
    assert refused.status == 422
    found = [(cause["field"], cause["message"]) for cause in refused.body["details"]["causes"]]
    # The schema is checked first, and this says only that rules were not.
    kept = [(field, message) for field, message in found if "some validation rules were not checked" not in message]
    # Too large a value is not shown, and "Invalid value" shows types only: what follows is the sentence.
    prefix = re.compile(r'(Invalid value: (?:"(?:[^"\\]|\\.)*"|-?\d+): |Too many: \d+: )')
    return [(field, prefix.sub("", message, count=1)) for field, message in kept]


def _check_change(
    api_server: ApiServer, namespace: str, kind: str, before: Spec, after: Spec, refused: tuple[str, str] | None
) -> None:
    made = api_server.create(_path(namespace, kind), _manifest(kind, "t", before))
    changed = _manifest(kind, "t", after)
    changed["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
    if refused is None:
        api_server.request("PUT", f"{_path(namespace, kind)}/t", changed)
        return
    with pytest.raises(ApiError) as error:
        api_server.request("PUT", f"{_path(namespace, kind)}/t", changed)
    assert _sentences(error.value) == [refused]


def _condition(type_: str, status: str, reason: str) -> Spec:
    at_that_time = {"lastTransitionTime": "2026-11-21T06:00:00Z", "observedGeneration": 1}
    return {"type": type_, "status": status, "reason": reason, "message": "A sentence."} | at_that_time


def _missing(asked: Any, got: Any, path: str = "spec") -> list[str]:
    """What was asked for and was not kept."""
    if isinstance(asked, dict) and isinstance(got, dict):
        return [gap for key, value in asked.items() for gap in _missing(value, got.get(key), f"{path}.{key}")]
    return [] if asked == got else [path]


def _is_described(node: Spec) -> bool:
    # A reference to a schema of Kubernetes' own is described there.
    return bool(node.get("description") or node.get("$ref") or node.get("allOf"))


def test_the_table_has_a_case_for_every_rule() -> None:
    told = {sentence for _, _, sentence in REFUSED_BROKERS}
    told |= {refused[1] for _, _, refused in CHANGED_BROKERS if refused} | {BROKER_NAME}
    told |= {sentence for *_, sentence in REFUSED_TOPICS} | {sentence for *_, sentence in REFUSED_LEVELS}
    told |= {refused[1] for _, _, refused in CHANGED_TOPICS if refused}
    untold = []
    for kind in names.PLURALS:
        for path, node in walk(schema_of(kind)):
            rules = node.get("x-kubernetes-validations", []) if path != "spec.config" else []
            fixed = [rule["message"] for rule in rules if "messageExpression" not in rule]
            untold += [message for message in fixed if message not in told]
    # This one has a test of its own.
    assert untold == ["a Broker's name has at most 40 characters, since pods and Services are named after it"]
