"""The calls of RocketMQ's dashboard and Prometheus exporter, in the order in which their test makes them."""

from dataclasses import dataclass, field
from typing import Any

TOPIC, GROUP, PRODUCERS = "GoldenTopic", "GoldenGroup", "GoldenProducers"
TIMEOUT_MS = 5000

DASHBOARD, EXPORTER, BOTH = ("dashboard",), ("exporter",), ("dashboard", "exporter")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call; its golden file has its name. In arguments, placeholders such as {broker} name parts of the scene."""

    name: str
    method: str
    arguments: tuple[Any, ...] = ()
    by: tuple[str, ...] = DASHBOARD
    options: dict[str, Any] = field(default_factory=dict)


def statistics(name: str, key: str, *, by: tuple[str, ...] = EXPORTER) -> Call:
    return Call(name=f"statistics-{name}", method="viewBrokerStatsData", arguments=("{broker}", name, key), by=by)


CALLS = [
    Call(name="clusters", method="examineBrokerClusterInfo", by=BOTH),
    Call(name="name-servers", method="getNameServerAddressList", by=EXPORTER),
    Call(name="runtime", method="fetchBrokerRuntimeStats", arguments=("{broker}",), by=BOTH),
    Call(name="settings", method="getBrokerConfig", arguments=("{broker}",)),
    Call(name="topics", method="fetchAllTopicList", by=BOTH),
    Call(name="route", method="examineTopicRouteInfo", arguments=(TOPIC,), by=BOTH),
    Call(name="topic-status", method="examineTopicStats", arguments=(TOPIC,), by=BOTH),
    Call(name="topic-settings", method="examineTopicConfig", arguments=("{broker}", TOPIC)),
    Call(name="readers", method="queryTopicConsumeByWho", arguments=(TOPIC,), by=BOTH),
    Call(name="readers-of-nothing", method="queryTopicConsumeByWho", arguments=("BenchmarkTest",), by=BOTH),
    Call(name="progress", method="examineConsumeStats", arguments=(GROUP,)),
    Call(name="progress-of-topic", method="examineConsumeStats", arguments=(GROUP, TOPIC), by=BOTH),
    Call(name="members", method="examineConsumerConnectionInfo", arguments=(GROUP,), by=BOTH),
    Call(name="members-of-nobody", method="examineConsumerConnectionInfo", arguments=("Nobody",), by=BOTH),
    Call(name="state", method="getConsumerRunningInfo", arguments=(GROUP, "{client}", False), by=BOTH),
    Call(name="producers", method="examineProducerConnectionInfo", arguments=(PRODUCERS, TOPIC)),
    Call(name="all-producers", method="getAllProducerInfo", arguments=("{broker}",), by=EXPORTER),
    Call(name="groups", method="getAllSubscriptionGroup", arguments=("{broker}", TIMEOUT_MS)),
    Call(name="group-settings", method="examineSubscriptionGroupConfig", arguments=("{broker}", GROUP)),
    Call(name="all-topic-settings", method="getAllTopicConfig", arguments=("{broker}", TIMEOUT_MS)),
    statistics("TOPIC_PUT_NUMS", TOPIC, by=BOTH),
    statistics("TOPIC_PUT_SIZE", TOPIC),
    statistics("GROUP_GET_NUMS", f"{TOPIC}@{GROUP}", by=BOTH),
    statistics("GROUP_GET_SIZE", f"{TOPIC}@{GROUP}"),
    statistics("BROKER_PUT_NUMS", "DefaultCluster"),
    statistics("BROKER_GET_NUMS", "DefaultCluster"),
    Call(
        name="statistics-of-nothing",
        method="viewBrokerStatsData",
        arguments=("{broker}", "SNDBCK_PUT_NUMS", f"{TOPIC}@{GROUP}"),
        by=EXPORTER,
    ),
    Call(name="message", method="viewMessage", arguments=(TOPIC, "{message}")),
    Call(name="message-by-place", method="viewMessage", arguments=("{offset_message}",)),
    Call(name="messages-by-key", method="queryMessage", arguments=(TOPIC, "key1", 32, 0, 1 << 62)),
    Call(name="consume-directly", method="consumeMessageDirectly", arguments=(GROUP, "{client}", TOPIC, "{message}")),
    Call(
        name="offset-first", method="minOffset", arguments=({"topic": TOPIC, "brokerName": "broker-a", "queueId": 0},)
    ),
    Call(name="offset-end", method="maxOffset", arguments=({"topic": TOPIC, "brokerName": "broker-a", "queueId": 0},)),
    Call(
        name="offset-by-time",
        method="searchOffset",
        arguments=({"topic": TOPIC, "brokerName": "broker-a", "queueId": 0}, 0),
    ),
    Call(
        name="oldest",
        method="earliestMsgStoreTime",
        arguments=({"topic": TOPIC, "brokerName": "broker-a", "queueId": 0},),
    ),
    Call(name="consume-times", method="queryConsumeTimeSpan", arguments=(TOPIC, GROUP)),
    Call(name="system-topics", method="getSystemTopicList", arguments=(TIMEOUT_MS,), options={"api": True}),
    Call(
        name="system-topics-of-broker",
        method="getSystemTopicListFromBroker",
        arguments=("{broker}", TIMEOUT_MS),
        options={"api": True},
    ),
    Call(name="unit-topics", method="getUnitTopicList", arguments=(True, TIMEOUT_MS), options={"api": True}),
    Call(
        name="unit-subscribed-topics",
        method="getHasUnitSubTopicList",
        arguments=(True, TIMEOUT_MS),
        options={"api": True},
    ),
    Call(
        name="unit-subscribed-only-topics",
        method="getHasUnitSubUnUnitTopicList",
        arguments=(True, TIMEOUT_MS),
        options={"api": True},
    ),
    Call(name="topics-of-cluster", method="fetchTopicsByCLuster", arguments=("DefaultCluster",)),
    Call(name="topics-of-no-cluster", method="fetchTopicsByCLuster", arguments=("Nowhere",)),
    Call(name="keys-put", method="createAndUpdateKvConfig", arguments=("SOME_SPACE", "colour", "blue")),
    Call(name="keys", method="getKVListByNamespace", arguments=("SOME_SPACE",)),
    Call(name="keys-get", method="getKVConfig", arguments=("SOME_SPACE", "colour")),
    Call(name="keys-delete", method="deleteKvConfig", arguments=("SOME_SPACE", "colour")),
    Call(name="keys-gone", method="getKVConfig", arguments=("SOME_SPACE", "colour")),
    Call(name="keys-nowhere", method="getKVListByNamespace", arguments=("NO_SPACE",)),
    Call(name="clean-queues", method="cleanExpiredConsumerQueue", arguments=("DefaultCluster",)),
    Call(name="clean-queues-of-broker", method="cleanExpiredConsumerQueueByAddr", arguments=("{broker}",)),
    Call(name="clean-topics", method="cleanUnusedTopic", arguments=("DefaultCluster",)),
    Call(name="clean-topics-of-broker", method="cleanUnusedTopicByAddr", arguments=("{broker}",)),
    Call(name="clone", method="cloneGroupOffset", arguments=(GROUP, "Clone", TOPIC, True)),
    Call(name="reset-offline", method="resetOffsetByTimestampOld", arguments=("Clone", TOPIC, 0, True)),
    Call(name="reset", method="resetOffsetByTimestamp", arguments=(TOPIC, GROUP, 0, True)),
    Call(
        name="put-group",
        method="createAndUpdateSubscriptionGroupConfig",
        arguments=("{broker}", {"groupName": "Made", "retryMaxTimes": 3}),
    ),
    Call(name="put-group-shown", method="examineSubscriptionGroupConfig", arguments=("{broker}", "Made")),
    Call(name="delete-group", method="deleteSubscriptionGroup", arguments=("{broker}", "Made")),
    Call(
        name="put-topic",
        method="createAndUpdateTopicConfig",
        arguments=("{broker}", {"topicName": "Made", "readQueueNums": 3, "writeQueueNums": 2}),
    ),
    Call(name="put-topic-shown", method="examineTopicConfig", arguments=("{broker}", "Made")),
    Call(name="delete-topic", method="deleteTopicInBroker", arguments=(["{broker}"], "Made")),
    Call(name="delete-route", method="deleteTopicInNameServer", arguments=(["{namesrv}"], "Made", "DefaultCluster")),
    Call(name="delete-route-shown", method="examineTopicRouteInfo", arguments=("Made",)),
]
"""Calls in order: later ones depend on changes by earlier ones."""
