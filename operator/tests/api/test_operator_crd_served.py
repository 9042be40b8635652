"""The resources in kubectl: columns, explanations, scaling, examples."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from delaymq_operator.api import names
from delaymq_operator_testing.api_server import ApiError, ApiServer
from delaymq_operator_testing.crd_files import EXAMPLES_PATH, walk
from delaymq_operator_testing.crd_requests import Spec, collection, manifest

TO = {"brokerRef": {"name": "demo"}}
ANALYTICS = ("broker.spec.analytics", "broker.spec.analytics.executor", "broker.status.analytics.groups")


def test_broker_can_be_scaled_and_reports_selector(api_server: ApiServer, namespace: str) -> None:
    api_server.create(collection(namespace, "Broker"), manifest("Broker", "demo", {}))
    selector = names.selector_text(names.labels("demo", "broker"))
    status = {"size": 1, "selector": selector}
    api_server.merge(f"{collection(namespace, 'Broker')}/demo/status", {"status": status})
    api_server.kubectl("-n", namespace, "scale", "dmqb/demo", "--replicas=3")
    scale = api_server.request("GET", f"{collection(namespace, 'Broker')}/demo/scale")
    assert (scale["spec"], scale["status"]) == ({"replicas": 3}, {"replicas": 1, "selector": selector})
    with pytest.raises(ApiError, match="less than or equal to 32"):
        api_server.merge(f"{collection(namespace, 'Broker')}/demo/scale", {"spec": {"replicas": 33}})


def test_status_and_spec_are_written_separately(api_server: ApiServer, namespace: str) -> None:
    path = f"{collection(namespace, 'Broker')}/demo"
    api_server.create(collection(namespace, "Broker"), manifest("Broker", "demo", {}))
    api_server.merge(path, {"status": {"size": 5}, "spec": {"size": 2}})
    now = api_server.request("GET", path)
    assert (now["spec"]["size"], now.get("status", {}).get("size"), now["metadata"]["generation"]) == (2, None, 2)
    api_server.merge(f"{path}/status", {"status": {"size": 5}, "spec": {"size": 3}})
    now = api_server.request("GET", path)
    assert (now["spec"]["size"], now["status"]["size"], now["metadata"]["generation"]) == (2, 5, 2)


def test_broker_list_shows_documented_columns(api_server: ApiServer, namespace: str) -> None:
    api_server.create(collection(namespace, "Broker"), manifest("Broker", "demo", {"size": 2}))
    conditions = [_condition("Ready", "False", "GroupsNotReady"), _condition("Progressing", "True", "Rolling")]
    conditions.append(_condition("ReplicasInSync", "False", "NotInSync"))
    status = {
        "readyGroups": 1,
        "pending": 12,
        "nextDue": "2026-12-01T00:00:00Z",
        "levels": "1s 5s",
        "image": "i:1",
        "nameServers": ["demo-namesrv.ns:9876"],
        "conditions": conditions,
        "analytics": {"reclaimableBytes": 4711},
    }
    api_server.merge(f"{collection(namespace, 'Broker')}/demo/status", {"status": status})
    head, row = api_server.kubectl("-n", namespace, "get", "dmqb").splitlines()
    assert head.split() == ["NAME", "SIZE", "READY", "PENDING", "NEXT-DUE", "STATUS", "AGE"]
    assert row.split()[:-1] == ["demo", "2", "1", "12", "2026-12-01T00:00:00Z", "GroupsNotReady"]
    head, row = api_server.kubectl("-n", namespace, "get", "dmqb", "-o", "wide").splitlines()
    assert head.split()[7:] == ["PROGRESS", "NAMESERVERS", "LEVELS", "IMAGE", "IN-SYNC", "RECLAIMABLE"]
    assert row.split()[7:] == ["Rolling", "demo-namesrv.ns:9876", "1s", "5s", "i:1", "False", "4711"]


def test_topic_and_level_table_lists_show_documented_columns(api_server: ApiServer, namespace: str) -> None:
    api_server.create(collection(namespace, "Topic"), manifest("Topic", "t", TO))
    group = {"name": "demo-0", "writeQueues": 4, "readQueues": 8, "permission": "ReadWrite"}
    conditions = [_condition("Ready", "True", "InEveryGroup")]
    delay = {"pendingMessages": 12, "nextDueTime": "2026-12-01T00:00:00Z"}
    status: Spec = {"topicName": "t", "groups": [group], "conditions": conditions, "delay": delay}
    api_server.merge(f"{collection(namespace, 'Topic')}/t/status", {"status": status})
    head, row = api_server.kubectl("-n", namespace, "get", "dmqt").splitlines()
    assert head.split() == ["NAME", "BROKER", "TOPIC", "QUEUES", "PERMISSION", "STATUS", "PENDING", "NEXT-DUE", "AGE"]
    assert row.split()[:-1] == ["t", "demo", "t", "4", "ReadWrite", "InEveryGroup", "12", "2026-12-01T00:00:00Z"]
    api_server.create(
        collection(namespace, "DelayLevelConfig"), manifest("DelayLevelConfig", "l", {"levels": ["1s", "2h"]})
    )
    status = {
        "levelCount": 2,
        "maxDelay": "2h",
        "usedBy": ["demo"],
        "conditions": [_condition("Ready", "True", "Applied")],
    }
    api_server.merge(f"{collection(namespace, 'DelayLevelConfig')}/l/status", {"status": status})
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
    for field in (
        "broker",
        "broker.spec",
        "broker.spec.storage",
        "broker.status.groups",
        "topic.spec",
        "dmql.spec",
        *ANALYTICS,
    ):
        text = api_server.kubectl("explain", field)
        assert "DESCRIPTION" in text
        assert "no description" not in text, field


@pytest.mark.parametrize("file", sorted(EXAMPLES_PATH.glob("*.yaml")), ids=lambda file: str(file.name))
def test_examples_are_accepted_without_warnings(api_server: ApiServer, namespace: str, file: Any) -> None:
    said = api_server.kubectl(
        "-n", namespace, "create", "--dry-run=server", "--validate=strict", "-f", str(file), check=False
    )
    assert re.fullmatch(r"(\S+ created \(server dry run\)\n)+", said)


def test_kubectl_rejects_unknown_field(api_server: ApiServer, namespace: str) -> None:
    misspelt = json.dumps(manifest("Broker", "demo", {"sizes": 2}))
    said = api_server.kubectl("-n", namespace, "create", "-f", "-", stdin=misspelt, check=False)
    assert 'unknown field "spec.sizes"' in said


def _condition(type_: str, status: str, reason: str) -> Spec:
    at_that_time = {"lastTransitionTime": "2026-11-21T06:00:00Z", "observedGeneration": 1}
    return {"type": type_, "status": status, "reason": reason, "message": "A sentence."} | at_that_time


def _is_described(node: Spec) -> bool:
    # A reference to a Kubernetes schema is described in that schema.
    return bool(node.get("description") or node.get("$ref") or node.get("allOf"))
