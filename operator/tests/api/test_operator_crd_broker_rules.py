"""Validation of Brokers by a real API server: accepted specs, changes, error messages."""

from __future__ import annotations

import pytest
from delaymq_operator.api import names, parse_broker
from delaymq_operator_testing.api_server import ApiServer
from delaymq_operator_testing.crd_requests import (
    CLASS_FIXED,
    Spec,
    check_change,
    collection,
    manifest,
    not_kept,
    refusal,
    rules_without,
    would_make,
)

LATE_PORT = (
    "the last group's NodePort, brokerNodePort + 10 · (size - 1), would be above 32767: use a smaller brokerNodePort"
)
TAKEN_PORT = (
    "a broker group needs this NodePort (group g uses brokerNodePort + 10 · g and the port 2 below it): use another "
    "nameServerNodePort"
)
OTHERS_PORT = (
    "spec.external.brokerNodePort",
    "during the rollout, clients would confuse groups, since a group's new port is another group's old port: "
    "choose a brokerNodePort that differs by 4, 5 or 6, or by 10 · size or more",
)
SMALL_VOLUME = (
    "the volume must hold at least two log segments, and a segment has 1 GiB unless config sets another size: use 2Gi"
    " or more, or a smaller config.mappedFileSizeCommitLog (bytes)"
)
LARGE_VOLUME = "a volume has at most 1Pi: check the unit, and use a value like 10Gi"
AMOUNT = "an amount is a number with an optional unit: use a value like 100m, 2 or 256Mi"
NO_IP = "an advertised address is an IP address, since offset message ids contain it: use a value like 203.0.113.10"
OWN_LABELS = (
    "labels delaymq.io/… and app.kubernetes.io/name, instance, component and managed-by are reserved for the "
    "operator: use other labels"
)
ADDRESS = "an address is host:port: use a value like namesrv.messaging:9876"
ONE_PEER_KIND = (
    "an entry must have either ipBlock, or at least one of podSelector and namespaceSelector: use separate entries for "
    "pods and for addresses"
)
RANGE = "a range is an address and a prefix length: use a value like 198.51.100.0/24"
TLS_KEYS = "useTLS and tls.… are set by the operator: use spec.tls, and remove the keys"
OWN_NAME_SERVERS = (
    "the mode enforcing requires NameServers with the certificate of this Broker: remove nameServers.addresses, or use "
    "permissive"
)
ENFORCING = {"secretName": "a", "mode": "enforcing"}
OTHER_SOURCE = (
    "spec.tls",
    "brokers and NameServers that require TLS would reject each other during the rollout: set the mode to permissive, "
    "wait until the Broker is ready, and then change the source of the certificate",
)
ONE_SOURCE = "a certificate has exactly one source: set either secretName or generate"
SHORT_CA = "a CA must outlive its certificates by far: use a caValidityDays of at least 6 · validityDays"
ACCOUNTS = "the accounts come either from Users or from a Secret: set users to true, or set secretName, and not both"
WRONG_ACCOUNTS: list[Spec] = [{}, {"users": False}, {"users": True, "secretName": "r"}]
WITH_ACCOUNTS = (
    "Own requires NameServers with the accounts of this Broker: remove nameServers.addresses, or set "
    "config.aclMetadata to own, which restricts brokers only"
)
SIGNED = "metadata Own requires signatures at the NameServers: remove nameServers, or set it to true"
OWN: Spec = {"users": True, "metadata": "Own"}
SECRET_NAME = (
    "a Secret name consists of lower-case letters, digits, - and ., and starts and ends with a letter or digit"
)
LONG_NAME = "a Broker's name has at most 40 characters, since pods and Services are named after it: use a shorter name"
TOO_MANY_IN_SYNC = (
    "spec.replication.minInSync",
    "a group would refuse all messages, since minInSync is larger than replicasPerGroup: use a smaller minInSync",
)
NOT_COPIED_YET = (
    "spec.replication.minInSync",
    "groups would refuse messages until their new replicas have copied all messages: add replicas with minInSync 1, "
    "and increase it when the condition ReplicasInSync is True",
)
BROKER_NAME = (
    "a Broker's name starts with a letter and consists of lower-case letters, digits and -, since Services are named "
    "after it: use another name"
)


def _node_port(**fields: object) -> Spec:
    return {"external": {"type": "NodePort", "advertisedAddress": "203.0.113.10"} | fields}


def _peer(**fields: object) -> Spec:
    return {"networkPolicy": {"enabled": True, "allowFrom": [fields]}}


REFUSED_BROKERS: list[tuple[Spec, str, str]] = [
    ({"size": 0}, "spec.size", "spec.size in body should be greater than or equal to 1"),
    ({"size": 33}, "spec.size", "spec.size in body should be less than or equal to 32"),
    (
        {"replicasPerGroup": 6},
        "spec.replicasPerGroup",
        "spec.replicasPerGroup in body should be less than or equal to 5",
    ),
    ({"replication": {"minInSync": 2}}, *TOO_MANY_IN_SYNC),
    ({"replicasPerGroup": 2, "replication": {"minInSync": 3}}, *TOO_MANY_IN_SYNC),
    ({"flush": "Sometimes"}, "spec.flush", 'Unsupported value: "Sometimes": supported values: "Async", "Sync"'),
    (
        {"image": "a b"},
        "spec.image",
        ("an image name contains no spaces: use a name like registry.example/delaymq/broker:0.1.0"),
    ),
    ({"image": ""}, "spec.image", "spec.image in body should be at least 1 chars long"),
    (
        {"config": {"a": "1\n2"}},
        "spec.config[a]",
        "a value is a single line of text: remove line breaks and control characters",
    ),
    ({"config": {"a": 1}}, "spec.config.a", 'spec.config.a in body must be of type string: "integer"'),
    ({"config": {str(n): "" for n in range(101)}}, "spec.config", "must have at most 100 items"),
    ({"config": {"useTLS": "true"}}, "spec.config", TLS_KEYS),
    ({"config": {"tls.server.mode": "enforcing"}}, "spec.config", TLS_KEYS),
    ({"tls": {"secretName": "../others"}}, "spec.tls.secretName", SECRET_NAME),
    ({"tls": {}}, "spec.tls", ONE_SOURCE),
    ({"tls": {"secretName": "a", "generate": {}}}, "spec.tls", ONE_SOURCE),
    ({"tls": ENFORCING, "nameServers": {"addresses": ["a:1"]}}, "spec.tls.mode", OWN_NAME_SERVERS),
    ({"tls": {"generate": {"validityDays": 90, "caValidityDays": 539}}}, "spec.tls.generate", SHORT_CA),
    ({"accessControl": {"secretName": "Rules"}}, "spec.accessControl.secretName", SECRET_NAME),
    *(({"accessControl": control}, "spec.accessControl", ACCOUNTS) for control in WRONG_ACCOUNTS),
    ({"accessControl": OWN | {"nameServers": False}}, "spec.accessControl.nameServers", SIGNED),
    ({"accessControl": OWN, "nameServers": {"addresses": ["a:1"]}}, "spec.accessControl.metadata", WITH_ACCOUNTS),
    (
        {"accessControl": OWN, "config": {"aclMetadata": "own"}},
        "spec.accessControl.metadata",
        "it sets aclMetadata: remove config.aclMetadata",
    ),
    ({"storage": {"size": "ten"}}, "spec.storage.size", "a size is a number above 0 and a unit: use a value like 10Gi"),
    (
        {"storage": {"size": "-1Gi"}},
        "spec.storage.size",
        ("a size is a number above 0 and a unit: use a value like 10Gi"),
    ),
    ({"storage": {"size": "1Gi"}}, "spec.storage.size", SMALL_VOLUME),
    ({"storage": {"size": "9000000Ei"}}, "spec.storage.size", LARGE_VOLUME),
    ({"storage": {"size": "1025Ti"}}, "spec.storage.size", LARGE_VOLUME),
    (
        {"storage": {"size": "4Gi"}, "config": {"mappedFileSizeCommitLog": "2147483649"}},
        "spec.storage.size",
        SMALL_VOLUME,
    ),
    (
        {"nameServers": {"replicas": 2, "addresses": ["a:9876"]}},
        "spec.nameServers",
        "addresses refers to existing NameServers, so none are created: remove replicas to use them, or remove "
        "addresses to create NameServers",
    ),
    ({"nameServers": {"addresses": ["a:b"]}}, "spec.nameServers.addresses[0]", ADDRESS),
    ({"nameServers": {"addresses": ["http://a:9876"]}}, "spec.nameServers.addresses[0]", ADDRESS),
    ({"nameServers": {"addresses": ["a:1;b:2"]}}, "spec.nameServers.addresses[0]", ADDRESS),
    (
        {"nameServers": {"addresses": ["a:99999"]}},
        "spec.nameServers.addresses[0]",
        "a port is at most 65535: use the NameServer's port, such as 9876",
    ),
    ({"resources": {"requests": {"cpu": "much"}}}, "spec.resources.requests[cpu]", AMOUNT),
    ({"nameServers": {"resources": {"limits": {"cpu": -1}}}}, "spec.nameServers.resources.limits[cpu]", AMOUNT),
    (
        {"resources": {"requests": {"memory": "2Gi", "cpu": 1}, "limits": {"memory": "1Gi"}}},
        "spec.resources",
        "a request exceeds its limit: raise the limit, or lower the request",
    ),
    ({"podTemplate": {"labels": {"delaymq.io/group": "1"}}}, "spec.podTemplate.labels", OWN_LABELS),
    ({"podTemplate": {"labels": {"app.kubernetes.io/name": "x"}}}, "spec.podTemplate.labels", OWN_LABELS),
    (
        {"podTemplate": {"labels": {"team": "a b"}}},
        "spec.podTemplate.labels[team]",
        "a label value consists of letters, digits, -, _ and ., and starts and ends with a letter or digit",
    ),
    (
        {"podTemplate": {"annotations": {"delaymq.io/inputs": "x"}}},
        "spec.podTemplate.annotations",
        "annotations delaymq.io/… are reserved for the operator: use other annotations",
    ),
    (
        {"podTemplate": {"env": [{"name": "DELAYMQ_LISTEN_PORT", "value": "1"}]}},
        "spec.podTemplate.env[0].name",
        "variables DELAYMQ_… are reserved for the operator: set the key in spec.config",
    ),
    (
        {"podTemplate": {"env": [{"name": "2b"}]}},
        "spec.podTemplate.env[0].name",
        "a variable name consists of letters, digits and _, and does not start with a digit",
    ),
    (
        {"external": {"type": "NodePort"}},
        "spec.external",
        "NodePort requires advertisedAddress: set it to an IP address, of a node or of a proxy in front of the nodes,"
        " that external clients can reach",
    ),
    (_node_port(advertisedAddress="node.example"), "spec.external.advertisedAddress", NO_IP),
    (_node_port(advertisedAddress="0.0.0.0"), "spec.external.advertisedAddress", NO_IP),
    (
        _node_port(loadBalancerClass="x"),
        "spec.external.loadBalancerClass",
        "loadBalancerClass applies to type LoadBalancer only: remove it",
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
"""Invalid spec of a Broker, the field, and the error message."""

ACCEPTED_BROKERS: list[Spec] = [
    {},
    {"tls": {"secretName": "orders-tls.v2"}, "accessControl": {"secretName": "r"}},
    {"tls": {"generate": {}, "mode": "enforcing"}},
    {"tls": ENFORCING},
    {"tls": {"generate": {}, "mode": "permissive"}, "nameServers": {"addresses": ["a:1"]}},
    {"tls": {"generate": {"validityDays": 397, "caValidityDays": 2382}}},
    {"accessControl": {"users": False, "secretName": "r"}},
    {"accessControl": {"users": True, "nameServers": False}},
    {"accessControl": OWN},
    {"accessControl": OWN | {"nameServers": True}, "nameServers": {"replicas": 2}},
    {"accessControl": {"users": True, "metadata": "Open"}, "config": {"aclMetadata": "own"}},
    {"size": 32, "flush": "Sync", "paused": True, "image": "registry.example:5000/a/b@sha256:0"},
    {"replicasPerGroup": 5, "replication": {"mode": "Async", "minInSync": 5, "failover": "Manual"}},
    {"config": {"fileReservedTime": "168", "regionId": "a=b; c: d\té", "mappedFileSizeCommitLog": "nonsense"}},
    {"storage": {"size": "128Mi"}, "config": {"mappedFileSizeCommitLog": "67108864"}},
    {"storage": {"size": "1Pi"}},
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

CHANGED_BROKERS: list[tuple[Spec, Spec, tuple[str, str] | None]] = [
    ({}, {"storage": {"size": "20Gi"}}, None),
    ({}, {"replicasPerGroup": 3}, None),
    ({}, {"replicasPerGroup": 3, "replication": {"minInSync": 2}}, NOT_COPIED_YET),
    ({"replicasPerGroup": 3}, {"replicasPerGroup": 3, "replication": {"minInSync": 2}}, None),
    ({"replicasPerGroup": 3, "replication": {"minInSync": 2}}, {"replicasPerGroup": 1}, None),
    ({"size": 2} | _node_port(), {"size": 2} | _node_port(brokerNodePort=30921), OTHERS_PORT),
    ({"size": 3} | _node_port(), {"size": 1} | _node_port(brokerNodePort=30893), OTHERS_PORT),
    ({"size": 1} | _node_port(), {"size": 2} | _node_port(brokerNodePort=30919), OTHERS_PORT),
    ({"size": 2} | _node_port(), {"size": 2} | _node_port(brokerNodePort=30931), None),
    ({"size": 32} | _node_port(), {"size": 32} | _node_port(brokerNodePort=30915, nameServerNodePort=30000), None),
    ({"size": 1} | _node_port(), {"size": 1} | _node_port(brokerNodePort=30921), None),
    ({"size": 2} | _node_port(), {"size": 2}, None),
    ({"storage": {"size": "10Gi"}}, {"storage": {"size": "10240Mi"}}, None),
    ({"size": 3}, {"size": 1}, None),
    ({}, {"nameServers": {"addresses": ["a:9876"]}}, None),
    ({"tls": {"secretName": "a"}}, {"tls": {"generate": {}}}, None),
    ({"tls": {"secretName": "a"}}, {}, None),
    ({}, {"tls": {"generate": {}, "mode": "enforcing"}}, None),
    ({"tls": {"generate": {}}}, {"tls": {"generate": {}, "mode": "enforcing"}}, None),
    ({"tls": {"generate": {}, "mode": "enforcing"}}, {"tls": {"generate": {"validityDays": 7}}}, None),
    ({"tls": ENFORCING}, {"tls": ENFORCING, "size": 2}, None),
    ({"tls": ENFORCING}, {}, OTHER_SOURCE),
    ({"tls": ENFORCING}, {"tls": {"secretName": "b"}}, OTHER_SOURCE),
    ({"tls": {"secretName": "a"}}, {"tls": {"secretName": "b", "mode": "enforcing"}}, OTHER_SOURCE),
    ({"tls": ENFORCING}, {"tls": {"generate": {}}}, OTHER_SOURCE),
    ({"tls": {"generate": {}}}, {"tls": ENFORCING}, OTHER_SOURCE),
    (_node_port(), {"external": {"type": "LoadBalancer"}}, None),
    ({"external": {"type": "LoadBalancer", "loadBalancerClass": "a"}}, {}, None),
    (
        {"external": {"type": "LoadBalancer"}},
        {"external": {"type": "LoadBalancer", "loadBalancerClass": "a"}},
        (
            "spec.external.loadBalancerClass",
            "the class of an existing load balancer cannot change: remove external, wait until the Services are "
            "deleted, and add external again with the other class",
        ),
    ),
]
"""Old spec, new spec, and field and message of the error, or None if the change is accepted."""


@pytest.mark.parametrize(("spec", "field", "sentence"), REFUSED_BROKERS)
def test_invalid_broker_is_rejected(
    api_server: ApiServer, namespace: str, spec: Spec, field: str, sentence: str
) -> None:
    assert refusal(api_server, namespace, "Broker", "demo", spec) == [(field, sentence)]


@pytest.mark.parametrize("key", sorted(names.OWNED_KEYS))
def test_reserved_config_key_is_rejected_with_single_message(api_server: ApiServer, namespace: str, key: str) -> None:
    [(field, sentence)] = refusal(api_server, namespace, "Broker", "demo", {"config": {key: "x"}})
    assert field == "spec.config"
    assert sentence.startswith(f"{key} is set by the operator")


@pytest.mark.parametrize("name", ["a.b", "1a"])
def test_broker_name_must_be_valid_service_name(api_server: ApiServer, namespace: str, name: str) -> None:
    assert refusal(api_server, namespace, "Broker", name, {}) == [("metadata", BROKER_NAME)]


def test_broker_name_has_at_most_40_characters(api_server: ApiServer, namespace: str) -> None:
    [(field, sentence)] = refusal(api_server, namespace, "Broker", "b" * 41, {})
    assert (field, sentence) == (
        "metadata",
        LONG_NAME,
    )
    would_make(api_server, namespace, "Broker", "b" * 40, {})


@pytest.mark.parametrize("spec", ACCEPTED_BROKERS)
def test_valid_broker_is_stored_unchanged(api_server: ApiServer, namespace: str, spec: Spec) -> None:
    made = would_make(api_server, namespace, "Broker", "demo", spec)
    assert not_kept(spec, made["spec"]) == []
    assert parse_broker(made).spec == parse_broker(made | {"spec": spec}).spec


def test_broker_without_spec_gets_every_default(api_server: ApiServer, namespace: str) -> None:
    made = api_server.create(collection(namespace, "Broker"), manifest("Broker", "demo", {}) | {"spec": {}})
    without = api_server.create(
        collection(namespace, "Broker") + "?dryRun=All",
        {"apiVersion": names.API_VERSION, "kind": "Broker", "metadata": {"name": "other"}},
    )
    assert without["spec"] == made["spec"]
    assert made["spec"] == {
        "size": 1,
        "replicasPerGroup": 1,
        "replication": {"mode": "Sync", "minInSync": 1, "acknowledge": "Appended", "failover": "Automatic"},
        "imagePullPolicy": "IfNotPresent",
        "flush": "Async",
        "config": {},
        "storage": {"size": "10Gi", "deleteClaim": False},
        "nameServers": {"replicas": 1, "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}}},
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "podTemplate": {"terminationGracePeriodSeconds": 60},
        "networkPolicy": {},
        "paused": False,
    }


@pytest.mark.parametrize(("before", "after", "refused"), CHANGED_BROKERS)
def test_broker_change_is_accepted_or_rejected(
    api_server: ApiServer, namespace: str, before: Spec, after: Spec, refused: tuple[str, str] | None
) -> None:
    check_change(api_server, namespace, "Broker", before, after, refused)


def test_every_broker_rule_has_test_case() -> None:
    told = {sentence for _, _, sentence in REFUSED_BROKERS} | {BROKER_NAME, LONG_NAME}
    told |= {refused[1] for _, _, refused in CHANGED_BROKERS if refused} | {CLASS_FIXED[1]}
    # test_operator_crd_analytics_rules.py covers the rules of spec.analytics.
    rules = rules_without("Broker", told)
    assert [rule for rule in rules if rule not in rules_without("Broker", told, below="spec.analytics")] == []
