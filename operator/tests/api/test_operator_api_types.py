"""Parsing of resources, status patches, conditions, timestamps and object names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from delaymq.access.plain_acl import parse as parse_rules
from delaymq_operator.api import (
    BrokerStatus,
    Condition,
    SpecError,
    analytics_names,
    find_condition,
    names,
    parse_broker,
    parse_delay_level_config,
    parse_timestamp,
    parse_topic,
    parse_user,
    status_patch,
    timestamp,
    with_condition,
    without_condition,
)
from delaymq_operator.api.broker_status import CorrectedLevel, GroupStatus, ResumedStatus
from delaymq_operator.api.resource import ms_of_timestamp, timestamp_of_ms
from delaymq_operator.manifests.accounts.access import RULES_KEY
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator_testing.crd_files import EXAMPLES_PATH, REPOSITORY_PATH

NOW = datetime(2026, 11, 21, 6, 0, 0, 900_000, tzinfo=UTC)
METADATA = {
    "name": "demo",
    "namespace": "default",
    "uid": "u-1",
    "generation": 3,
    "annotations": {"delaymq.io/restart": "2", "delaymq.io/force-scale-in": "1"},
    "creationTimestamp": "2026-11-21T06:00:00Z",
}


def _body(spec: object = None, status: object = None, **metadata: object) -> dict[str, Any]:
    return {"metadata": METADATA | metadata, "spec": spec or {}, "status": status or {}}


def test_broker_without_spec_has_every_default() -> None:
    broker = parse_broker(_body())
    assert (broker.name, broker.namespace, broker.uid, broker.generation) == ("demo", "default", "u-1", 3)
    assert (broker.spec.size, broker.spec.flush_disk_type, broker.spec.storage.size) == (1, "ASYNC_FLUSH", "10Gi")
    assert broker.spec.resources.requests == {"cpu": "100m", "memory": "256Mi"}
    assert (broker.restart_annotation, broker.force_scale_in, broker.deleting) == ("2", True, False)


def test_given_resources_are_not_merged_with_defaults() -> None:
    broker = parse_broker(_body({"resources": {"limits": {"memory": "128Mi", "cpu": 1}}}))
    assert broker.spec.resources.requests == {}
    assert broker.spec.resources.limits == {"memory": "128Mi", "cpu": 1}


def test_read_only_bodies_and_unknown_fields_are_accepted() -> None:
    body = _body({"size": 2, "fromTheFuture": {"a": 1}, "config": MappingProxyType({"a": "b"})})
    broker = parse_broker(MappingProxyType({key: MappingProxyType(value) for key, value in body.items()}))
    assert (broker.spec.size, broker.spec.config) == (2, {"a": "b"})


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"size": 0}, "spec.size: expected `int` >= 1; correct it in the Broker"),
        ({"size": "2"}, "spec.size: expected `int`, got `str`; correct it in the Broker"),
        ({"flush": "Sometimes"}, "spec.flush: invalid enum value 'Sometimes'; correct it in the Broker"),
        ({"config": {"a": 1}}, "spec.config: expected `str`, got `int`; correct it in the Broker"),
        (
            {"config": {"flushDiskType": "SYNC_FLUSH"}},
            "spec.config.flushDiskType is set by the operator: use spec.flush; remove the key",
        ),
        (
            {"config": {"regionId": "a\nbrokerId=1"}},
            "spec.config.regionId contains a line break or control character: use a single line",
        ),
        (
            {"config": {"regionId": "a\u2028storePathCommitLog=/tmp"}},
            "spec.config.regionId contains a line break or control character: use a single line",
        ),
        ({"config": {"a\x85b": "c"}}, "spec.config.a?b contains a line break or control character: use a single line"),
        ({"external": {}}, "spec.external: object missing required field `type`; correct it in the Broker"),
    ],
)
def test_invalid_broker_spec_is_rejected_with_field_name(spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_broker(_body(spec))
    assert str(refused.value) == sentence


def test_topic_name_defaults_to_resource_name() -> None:
    reference = {"brokerRef": {"name": "b"}}
    assert parse_topic(_body(reference)).topic_name == "demo"
    assert parse_topic(_body(reference | {"topicName": "DEMO"})).topic_name == "DEMO"
    with pytest.raises(SpecError, match="illegal characters"):
        parse_topic(_body(reference, name="de.mo"))


def test_level_table_is_validated_like_in_broker() -> None:
    config = parse_delay_level_config(_body({"levels": ["1s", "7d"], "overflow": "Reject"}))
    assert (config.spec.message_delay_level, config.spec.delay_level_overflow) == ("1s 7d", "reject")
    with pytest.raises(SpecError, match=r"spec.levels: level 2: .*out of range"):
        parse_delay_level_config(_body({"levels": ["1s", "9999d"]}))


def test_long_level_table_is_truncated_between_levels() -> None:
    config = parse_delay_level_config(_body({"levels": ["1000s"] * 100}))
    assert len(config.spec.short_table) <= 202
    assert set(config.spec.short_table.split()) == {"1000s", "…"}


def test_status_round_trips() -> None:
    resumed = ResumedStatus(
        at="2026-11-21T06:00:00Z",
        boot_id="b",
        verdict="Corrected",
        corrected=(CorrectedLevel(level=3, from_offset=5, to_offset=9, reason="stale"),),
    )
    status = BrokerStatus(size=1, groups=(GroupStatus(name="demo-0", group=0, ready=True, resumed=resumed),))
    written = status.to_dict()
    corrected = written["groups"][0]["resumed"]["corrected"]
    assert corrected == [{"level": 3, "from": 5, "to": 9, "reason": "stale"}]
    assert "nextDue" not in written
    assert parse_broker(_body(status=written)).status == status


def test_unreadable_status_is_parsed_as_empty() -> None:
    assert parse_broker(_body(status={"size": "many"})).status == BrokerStatus()


def test_status_patch_contains_only_changes_and_removals() -> None:
    before = {"size": 1, "nextDue": "2026-11-21T06:00:00Z", "groups": [1]}
    assert status_patch(before, dict(before)) is None
    assert status_patch(before, {"size": 2, "groups": [1]}) == {"status": {"size": 2, "nextDue": None}}


def test_status_patch_removes_nested_fields() -> None:
    before = {"analytics": {"run": "1", "completedAt": "x", "groups": [1, 2]}, "gone": {"a": 1}}
    after = {"analytics": {"run": "2", "groups": [1]}, "new": {"b": {}}}
    changes: Manifest = {"analytics": {"run": "2", "completedAt": None, "groups": [1]}, "gone": None, "new": {"b": {}}}
    assert status_patch(before, after) == {"status": changes}
    assert status_patch(after, dict(after)) is None


def test_condition_keeps_transition_time_until_status_changes() -> None:
    conditions = with_condition((), "Ready", "False", "Creating", "a", NOW, 1)
    conditions = with_condition(conditions, "Progressing", "True", "Creating", "b", NOW, 1)
    later = NOW + timedelta(minutes=5)
    same = with_condition(conditions, "Ready", "False", "GroupsNotReady", "c", later, 2)
    assert same[0] == Condition(
        type="Ready",
        status="False",
        reason="GroupsNotReady",
        message="c",
        last_transition_time="2026-11-21T06:00:00Z",
        observed_generation=2,
    )
    other = with_condition(same, "Ready", "True", "AllGroupsReady", "d", later, 2)
    assert [item.type for item in other] == ["Ready", "Progressing"]
    assert other[0].last_transition_time == "2026-11-21T06:05:00Z"
    assert find_condition(without_condition(other, "Ready"), "Ready") is None
    assert conditions[0].reason == "Creating"


def test_condition_message_is_truncated() -> None:
    [condition] = with_condition((), "Ready", "False", "Creating", "x" * 100_000, NOW, 1)
    assert (len(condition.message), condition.message[-1]) == (2_000, "…")


def test_timestamp_round_trips_without_fractions() -> None:
    assert parse_timestamp(timestamp(NOW)) == NOW.replace(microsecond=0)


def test_timestamps_are_converted_to_ms_and_invalid_ones_to_none() -> None:
    assert ms_of_timestamp(timestamp_of_ms(1_790_000_000_999)) == 1_790_000_000_000
    assert ms_of_timestamp("2026-09-21T14:13:20.25+02:00") == 1_789_992_800_250
    assert [ms_of_timestamp(text) for text in (None, "", "soon", "2026-13-01T00:00:00Z")] == [None] * 4


def test_object_names_of_longest_broker_name_fit_label_limit() -> None:
    longest = "b" * names.MAX_BROKER_NAME_CHARS
    last = names.MAX_SIZE - 1
    revision = f"{names.group_object(longest, last)}-{'0' * 10}"
    services = (names.group_external_service(longest, last), names.namesrv_pods_service(longest))
    assert [name for name in (revision, *services) if len(name) > 63] == []


def test_object_names_of_different_brokers_are_distinct() -> None:
    brokers = [
        "demo",
        "demo-analytics",
        "demo-broker",
        "demo-namesrv",
        "demo-broker-0",
        "demo-http",
        "demo-broker-pods",
    ]
    made = [name for broker in brokers for name in _object_names(broker)]
    assert len(made) == len(set(made))


def test_each_name_server_pod_has_its_own_address() -> None:
    assert names.namesrv_pod_addresses("demo", "ns", 2, "svc") == (
        "demo-namesrv-0.demo-namesrv-pods.ns.svc:9876",
        "demo-namesrv-1.demo-namesrv-pods.ns.svc:9876",
    )
    assert names.namesrv_client_address("demo", "ns") == "demo-namesrv.ns:9876"


def test_selector_text_lists_sorted_labels() -> None:
    labels = names.labels("demo", "broker", 1)
    assert labels[names.GROUP_LABEL] == "1"
    assert set(labels) == set(names.OWN_LABELS)
    assert names.selector_text({"b": "2", "a": "1"}) == "a=1,b=2"


@pytest.mark.parametrize("file", sorted(EXAMPLES_PATH.glob("*.yaml")), ids=lambda file: str(file.name))
def test_examples_are_parsed_by_operator(file: Any) -> None:
    parsers = {
        "Broker": parse_broker,
        "Topic": parse_topic,
        "DelayLevelConfig": parse_delay_level_config,
        "User": parse_user,
    }
    for body in yaml.safe_load_all(file.read_text()):
        if body["kind"] == "Secret":
            continue
        assert body["apiVersion"] == names.API_VERSION
        body["metadata"]["namespace"] = "default"
        assert parsers[body["kind"]](body).name == body["metadata"]["name"]


def test_documented_secret_contains_administrator_account_of_operator() -> None:
    page = (REPOSITORY_PATH / "docs" / "operations" / "kubernetes.md").read_text()
    stated = yaml.safe_load(page.partition("## Access control\n\n```yaml\n")[2].partition("```")[0])["stringData"]
    rules = parse_rules(stated[RULES_KEY], 0)
    assert rules.notes == ()
    account = rules.account(stated["accessKey"])
    assert account is not None
    assert account.admin
    assert account.entry.secret_key == stated["secretKey"]


def _object_names(broker: str) -> set[str]:
    groups = range(2)
    return {
        *(names.group_object(broker, group) for group in groups),
        *(names.group_external_service(broker, group) for group in groups),
        names.broker_pods_service(broker),
        names.broker_config_map(broker),
        names.broker_objects(broker),
        names.token_secret(broker),
        names.namesrv_objects(broker),
        names.namesrv_pods_service(broker),
        names.namesrv_external_service(broker),
        analytics_names.analytics_objects(broker),
    }
