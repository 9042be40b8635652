"""Validation of Topics and DelayLevelConfigs by a real API server: accepted specs, error messages."""

from __future__ import annotations

import pytest
from delaymq.message import names as rocketmq_names
from delaymq_operator_testing.api_server import ApiServer
from delaymq_operator_testing.crd_requests import Spec, check_change, not_kept, refusal, rules_without, would_make

BROKER_TOPIC = "the broker creates system topics named <broker> and <broker>_REPLY_TOPIC: use another topicName"
TO = {"brokerRef": {"name": "demo"}}
SYSTEM_TOPIC = "this topic is a system topic of the broker: use another name"
GROUP_TOPIC = (
    "retry topics and dead-letter topics belong to consumer groups, and the broker creates them: use another name"
)
OVERDUE = "overMilliseconds is the duration of the treatment Spread: give both of them, or neither"
RENAMED = "a topic cannot be renamed: restore the previous topicName, and create another Topic for the other name"
REFUSED_TOPICS: list[tuple[str, Spec, str, str]] = [
    ("t", {}, "spec.brokerRef", "Required value"),
    ("t", TO | {"queues": 0}, "spec.queues", "spec.queues in body should be greater than or equal to 1"),
    ("t", TO | {"queues": 1025}, "spec.queues", "spec.queues in body should be less than or equal to 1024"),
    (
        "t",
        TO | {"delay": {"latenessObjective": {"withinMilliseconds": 5}}},
        "spec.delay.latenessObjective.percent",
        "Required value",
    ),
    (
        "t",
        TO | {"delay": {"latenessObjective": {"withinMilliseconds": 5, "percent": 100}}},
        "spec.delay.latenessObjective.percent",
        "spec.delay.latenessObjective.percent in body should be less than 100",
    ),
    ("t", TO | {"delay": {"overdue": {"treatment": "Spread"}}}, "spec.delay.overdue", OVERDUE),
    ("t", TO | {"delay": {"overdue": {"overMilliseconds": 5}}}, "spec.delay.overdue", OVERDUE),
    (
        "t",
        TO | {"delay": {"spreadOverMilliseconds": 86_400_001}},
        "spec.delay.spreadOverMilliseconds",
        "spec.delay.spreadOverMilliseconds in body should be less than or equal to 86400000",
    ),
    (
        "t",
        TO | {"topicName": "a.b"},
        "spec.topicName",
        "a topic name consists of letters, digits, -, _, % and |: use a name like orders_paid",
    ),
    (
        "a.b",
        TO,
        "spec.topicName",
        "a topic name contains no dots, and metadata.name contains some: set topicName to a name without dots",
    ),
    (
        "t" * 128,
        TO,
        "spec.topicName",
        "a topic name has at most 127 characters, and metadata.name is longer: set topicName to a shorter name",
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
        "every broker group has a system topic with its own name, <broker>-<number>: use another topicName",
    ),
]
"""Name and invalid spec of a Topic, the field, and the error message."""
ACCEPTED_TOPICS: list[tuple[str, Spec]] = [
    ("orders", TO),
    ("t" * 127, TO),
    ("with.dots", TO | {"topicName": "%a|B_9-"}),
    ("demo-x", TO),
    ("demo-1-2", TO),
    ("t", TO | {"queues": 1024, "permission": "WriteOnly", "order": True, "deletionPolicy": "Retain"}),
    ("t", TO | {"delay": {"maxDelaySeconds": 1, "maxPendingMessages": 0, "whenTopicIsGone": "Drop"}}),
    ("t", TO | {"delay": {"maxPerSecond": 1, "overdue": {"treatment": "Spread", "overMilliseconds": 1}}}),
    ("t", TO | {"delay": {"spreadOverMilliseconds": 1, "overdue": {"afterMilliseconds": 0}}}),
    ("t", TO | {"delay": {"overdue": {"treatment": "Shift"}}}),
    (
        "t",
        TO
        | {
            "delay": {"latenessObjective": {"withinMilliseconds": 5, "percent": 99.95}, "maxPendingBytes": 1 << 40},
            "deletionPolicy": "RefuseWhilePending",
        },
    ),
]
CHANGED_TOPICS: list[tuple[Spec, Spec, tuple[str, str] | None]] = [
    (TO, TO | {"topicName": "t"}, None),
    (TO, TO | {"topicName": "u"}, ("spec.topicName", RENAMED)),
    (TO | {"topicName": "u"}, TO, ("spec.topicName", RENAMED)),
    (
        TO,
        {"brokerRef": {"name": "other"}},
        (
            "spec.brokerRef",
            ("a Topic cannot move to another Broker: restore brokerRef, and create another Topic for the other Broker"),
        ),
    ),
    (TO | {"queues": 8}, TO | {"queues": 4, "deletionPolicy": "Retain"}, None),
]

DELAY = "a delay is a whole number followed by s, m, h or d: use a value like 30s, 5m, 2h or 7d"
LONG_DELAY = "a delay is at most 3650d (10 years): use a shorter one"
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


@pytest.mark.parametrize(("name", "spec", "field", "sentence"), REFUSED_TOPICS)
def test_invalid_topic_is_rejected(
    api_server: ApiServer, namespace: str, name: str, spec: Spec, field: str, sentence: str
) -> None:
    assert refusal(api_server, namespace, "Topic", name, spec) == [(field, sentence)]


@pytest.mark.parametrize(("name", "spec"), ACCEPTED_TOPICS)
def test_valid_topic_is_accepted(api_server: ApiServer, namespace: str, name: str, spec: Spec) -> None:
    assert not_kept(spec, would_make(api_server, namespace, "Topic", name, spec)["spec"]) == []


@pytest.mark.parametrize(("before", "after", "refused"), CHANGED_TOPICS)
def test_topic_name_and_broker_are_immutable(
    api_server: ApiServer, namespace: str, before: Spec, after: Spec, refused: tuple[str, str] | None
) -> None:
    check_change(api_server, namespace, "Topic", before, after, refused)


@pytest.mark.parametrize(("levels", "field", "sentence"), REFUSED_LEVELS)
def test_invalid_level_table_is_rejected(
    api_server: ApiServer, namespace: str, levels: list[object], field: str, sentence: str
) -> None:
    assert refusal(api_server, namespace, "DelayLevelConfig", "l", {"levels": levels}) == [(field, sentence)]


@pytest.mark.parametrize("levels", ACCEPTED_LEVELS)
def test_valid_level_table_is_accepted(api_server: ApiServer, namespace: str, levels: list[str]) -> None:
    made = would_make(api_server, namespace, "DelayLevelConfig", "l", {"levels": levels})
    assert made["spec"] == {"levels": levels, "overflow": "Clamp"}


def test_every_topic_and_level_rule_has_test_case() -> None:
    told = {sentence for *_, sentence in REFUSED_TOPICS} | {sentence for *_, sentence in REFUSED_LEVELS}
    told |= {refused[1] for _, _, refused in CHANGED_TOPICS if refused}
    assert rules_without("Topic", told) + rules_without("DelayLevelConfig", told) == []
