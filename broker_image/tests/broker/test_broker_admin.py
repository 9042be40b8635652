"""Administration of topics, groups, statistics and configuration."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delaymq.broker import topics as topics_module
from delaymq.message import names
from delaymq.protocol.bodies import (
    GroupTable,
    KVTable,
    MessageQueue,
    RegisterBody,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicList,
    TopicStats,
    TopicTable,
    decode_settings,
)
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Response
from delaymq.store.errors import NotAStoreError
from delaymq_testing.broker.harness import Harness, response_of

FRESH = {
    "TBW102": (7, 4),
    "DefaultCluster": (7, 16),
    "broker-a": (7, 1),
    "BenchmarkTest": (6, 1024),
    "SELF_TEST_TOPIC": (6, 1),
    "OFFSET_MOVED_EVENT": (6, 1),
    "DefaultCluster_REPLY_TOPIC": (6, 1),
    "SCHEDULE_TOPIC_XXXX": (6, 18),
}


def create(harness: Harness, topic: str, **changes: Any) -> Response:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 8,
        "writeQueueNums": 6,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
    return harness.answer(RequestCode.UPDATE_AND_CREATE_TOPIC, fields | changes)


def stored_json(harness: Harness, name: str) -> Any:
    return json.loads((Path(harness.config.store_path_root_dir) / "config" / name).read_bytes())


def test_new_broker_has_rocketmqs_topics_and_groups(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness()
    table = TopicTable.decode(harness.answer(RequestCode.GET_ALL_TOPIC_CONFIG).body).topic_config_table
    assert {name: (topic.perm, topic.write_queue_nums) for name, topic in table.items()} == FRESH
    groups = GroupTable.decode(harness.answer(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert set(groups.subscription_group_table) == set(names.SYSTEM_GROUPS)
    traced = open_harness(trace_topic_enable=True, auto_create_topic_enable=False, cluster_topic_enable=False)
    table = TopicTable.decode(traced.answer(RequestCode.GET_ALL_TOPIC_CONFIG).body).topic_config_table
    assert "TBW102" not in table
    assert (table["RMQ_SYS_TRACE_TOPIC"].perm, table["DefaultCluster"].perm) == (6, 1)
    elsewhere = open_harness(trace_topic_enable=True, msg_trace_topic_name="Traces")
    assert elsewhere.broker.topics.table["Traces"].write_queue_nums == 1
    assert create(elsewhere, "Traces").code == ResponseCode.SYSTEM_ERROR  # it is the broker's own
    listed = TopicList.decode(elsewhere.answer(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body).topic_list
    assert {"Traces", "RMQ_SYS_TRACE_TOPIC", "SCHEDULE_TOPIC_XXXX"} <= set(listed)


def test_administrator_cannot_exceed_the_topic_limit(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_module, "MAX_TOPICS", len(harness.broker.topics.table) + 1)
    assert create(harness, "Last").code == ResponseCode.SUCCESS
    refused = create(harness, "TooMany")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "delete some" in (refused.remark or "")
    assert create(harness, "Last", perm="4").code == ResponseCode.SUCCESS


def test_keys_required_by_tools_are_present(harness: Harness) -> None:
    settings = decode_settings(harness.answer(RequestCode.GET_BROKER_CONFIG).body)
    assert {key: settings[key] for key in ("brokerRole", "filterServerNums", "brokerId", "traceOn")} == {
        "brokerRole": "ASYNC_MASTER",
        "filterServerNums": "0",
        "brokerId": "0",
        "traceOn": "true",
    }
    assert {"useTLS", "slaveReadEnable", "msgTraceTopicName", "clientCallbackExecutorThreads"} <= set(settings)


def test_created_topic_is_durable_and_registered_before_the_response(harness: Harness) -> None:
    told: list[TopicConfig] = []
    harness.broker.topics.changed = told.append
    before = harness.broker.topics.version
    assert create(harness, "Orders").code == ResponseCode.SUCCESS
    assert [topic.topic_name for topic in told] == ["Orders"]
    stored = stored_json(harness, "topics.json")
    assert stored["topicConfigTable"]["Orders"] == {
        "order": False,
        "perm": 6,
        "readQueueNums": 8,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "Orders",
        "topicSysFlag": 0,
        "writeQueueNums": 6,
    }
    assert stored["dataVersion"]["counter"] == before.counter + 1
    body = RegisterBody.decode(harness.broker.register_body()).topic_config_serialize_wrapper
    assert body.data_version == harness.broker.topics.version
    assert body.topic_config_table["Orders"].read_queue_nums == 8


@pytest.mark.parametrize(
    ("topic", "changes"),
    [
        ("", {}),
        ("a b", {}),
        ("x" * 128, {}),
        ("SCHEDULE_TOPIC_XXXX", {}),
        ("DefaultCluster", {}),
        ("rmq_sys_anything", {}),
        ("Orders", {"readQueueNums": 100_000}),
        ("Orders", {"writeQueueNums": -1}),
        ("Orders", {"perm": 9}),
        ("Orders", {"topicFilterType": "WHATEVER"}),
        ("Orders", {"perm": "rw"}),
    ],
)
def test_invalid_topic_is_rejected(harness: Harness, topic: str, changes: dict[str, Any]) -> None:
    version = harness.broker.topics.version
    answer = create(harness, topic, **changes)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert harness.broker.topics.version == version


def test_deleted_topic_loses_queues_and_keeps_offsets(harness: Harness) -> None:
    harness.send()
    harness.broker.offsets.commit("Orders", "readers", 0, 1)
    assert harness.answer(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"}).code == ResponseCode.SUCCESS
    assert "Orders" not in harness.broker.topics.table
    assert harness.broker.store.queue_bounds("Orders", 0) == (0, 0)
    assert harness.broker.offsets.get("Orders", "readers", 0) == 1
    assert "Orders" not in stored_json(harness, "topics.json")["topicConfigTable"]
    system = harness.answer(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TBW102"})
    assert (system.code, "conflict with system topic" in str(system.remark)) == (ResponseCode.SYSTEM_ERROR, True)


def test_topics_and_groups_survive_a_restart(harness: Harness) -> None:
    create(harness, "Orders", readQueueNums=3)
    harness.answer(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        body=SubscriptionGroupConfig("readers", retry_max_times=5).encode(),
    )
    harness.send("Auto")
    version = harness.broker.topics.version
    harness.restart()
    topic = harness.broker.topics.get("Orders")
    assert topic is not None
    assert topic.read_queue_nums == 3
    assert "Auto" in harness.broker.topics.table
    assert harness.broker.groups.table["readers"].retry_max_times == 5
    # What a drained broker registered before must not pass for what it registers now.
    assert harness.broker.topics.version.counter == version.counter + 1


def test_topics_of_a_lost_file_are_restored_from_queues(harness: Harness) -> None:
    for queue_id in range(3):
        harness.send(e=queue_id)
    harness.send(properties={"DELAY": "1"})
    harness.broker.close()
    config = Path(harness.config.store_path_root_dir) / "config"
    (config / "topics.json").write_text("{broken")
    (config / "topics.json.bak").unlink(missing_ok=True)
    harness.restart()
    topic = harness.broker.topics.get("Orders")
    assert topic is not None
    assert (topic.read_queue_nums, topic.perm) == (3, 6)
    assert set(harness.broker.topics.table) == {*FRESH, "Orders"}
    assert len(harness.pulled(queue_id=2)) == 1


def test_tables_of_a_real_broker_are_read(harness: Harness) -> None:
    harness.broker.close()
    config = Path(harness.config.store_path_root_dir) / "config"
    (config / "consumerOffset.json").write_text('{\n\t"offsetTable":{"Orders@readers":{0:3,1:4\n\t\t}\n\t}\n}')
    harness.restart()
    assert harness.broker.offsets.queues_of("Orders", "readers") == {0: 3, 1: 4}


@pytest.mark.parametrize(
    "group",
    [SubscriptionGroupConfig(""), SubscriptionGroupConfig("a b"), SubscriptionGroupConfig("g", retry_queue_nums=-1)],
)
def test_invalid_group_is_rejected(harness: Harness, group: SubscriptionGroupConfig) -> None:
    answer = harness.answer(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group.encode())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert group.group_name not in harness.broker.groups.table


def test_deleted_group_loses_its_offsets_on_request(harness: Harness) -> None:
    harness.broker.groups.find("readers")
    harness.broker.offsets.commit("Orders", "readers", 0, 1)
    harness.answer(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "readers"})
    assert "readers" not in harness.broker.groups.table
    assert harness.broker.offsets.get("Orders", "readers", 0) == 1
    harness.answer(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "readers", "removeOffset": "true"})
    assert harness.broker.offsets.get("Orders", "readers", 0) is None


def test_topic_statistics_have_queue_offsets(harness: Harness) -> None:
    harness.send()
    harness.clock.advance(10)
    harness.send()
    stats = TopicStats.decode(harness.answer(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Orders"}).body)
    assert len(stats.offset_table) == 4
    queue = stats.offset_table[MessageQueue("broker-a", 0, "Orders")]
    assert (queue.min_offset, queue.max_offset, queue.last_update_timestamp) == (0, 2, harness.clock())
    empty = stats.offset_table[MessageQueue("broker-a", 1, "Orders")]
    assert (empty.min_offset, empty.max_offset, empty.last_update_timestamp) == (0, 0, 0)
    unknown = harness.answer(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Nothing"})
    assert unknown.code == ResponseCode.TOPIC_NOT_EXIST


def test_system_topics_are_listed(harness: Harness) -> None:
    listed = TopicList.decode(harness.answer(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body).topic_list
    assert set(FRESH) <= set(listed)
    assert names.OP_HALF_TOPIC in listed


def test_broker_permission_restricts_registered_topics(
    open_harness: Callable[..., Harness],
) -> None:
    harness = open_harness(broker_permission=4)
    table = RegisterBody.decode(harness.broker.register_body()).topic_config_serialize_wrapper.topic_config_table
    assert {topic.perm for topic in table.values()} == {4}


def test_changed_permission_registers_all_topics_with_a_new_version(harness: Harness) -> None:
    told: list[TopicConfig] = []
    harness.broker.topics.changed = told.append
    version = harness.broker.topics.version
    for permission, counter in ((b"4", 1), (b"6", 2)):
        told.clear()
        harness.answer(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=" + permission)
        assert {topic.topic_name for topic in told} == set(FRESH)
        body = RegisterBody.decode(harness.broker.register_body()).topic_config_serialize_wrapper
        assert body.data_version.counter == version.counter + counter
    assert {name: topic.perm for name, topic in body.topic_config_table.items()} == {
        name: perm for name, (perm, _) in FRESH.items()
    }


def test_configuration_is_readable_and_hot_keys_can_be_changed(harness: Harness) -> None:
    answer = harness.answer(RequestCode.GET_BROKER_CONFIG)
    settings = decode_settings(answer.body)
    assert settings["brokerName"] == "broker-a"
    assert settings["messageDelayLevel"].startswith("1s 5s")
    assert "httpToken" not in settings
    assert json.loads(answer.fields["version"])["counter"] == harness.broker.topics.version.counter
    assert response_of(harness.send(body=bytes(2_049))).code == ResponseCode.SUCCESS
    text = b"maxMessageSize=2048\nmessageDelayLevel=2s 4s\nfileReservedTime=48\nlistenPort=10911\n"
    assert harness.answer(RequestCode.UPDATE_BROKER_CONFIG, body=text).code == ResponseCode.SUCCESS
    assert response_of(harness.send(body=bytes(2_049))).code == ResponseCode.MESSAGE_ILLEGAL
    assert harness.broker.delivery.levels.delays_ms == (2_000, 4_000)
    assert harness.broker.config.file_reserved_time == 48
    assert harness.broker.store.options.file_reserved_hours == 48
    larger = b"maxMessageSize=%d" % (6 << 20)
    assert harness.answer(RequestCode.UPDATE_BROKER_CONFIG, body=larger).code == ResponseCode.SUCCESS
    assert response_of(harness.send(body=bytes(5 << 20))).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (b"rocketmqHome=/tmp", ResponseCode.NO_PERMISSION, "rocketmqHome"),
        (b"brokerConfigPath=/tmp/x", ResponseCode.NO_PERMISSION, "brokerConfigPath"),
        (b"storePathRootDir=/tmp/x", ResponseCode.NO_PERMISSION, "storePathRootDir"),
        (b"httpToken=x", ResponseCode.NO_PERMISSION, "httpToken"),
        (
            b"maxMessageSize=2048\nlistenPort=1",
            ResponseCode.NO_PERMISSION,
            "listenPort: cannot be changed over the network",
        ),
        (b"maxMessageSize=2048\nregionId=b", ResponseCode.SYSTEM_ERROR, "regionId: a change needs a restart"),
        (b"maxMessageSiez=2048", ResponseCode.SYSTEM_ERROR, "did you mean maxMessageSize?"),
        (b"maxMessageSize=many", ResponseCode.SYSTEM_ERROR, "not an integer"),
        (b"messageDelayLevel=1s 2x", ResponseCode.SYSTEM_ERROR, "level 2"),
        (b"deleteWhen=04;noon", ResponseCode.SYSTEM_ERROR, "'noon' is not an hour"),
        (b"deleteWhen=24", ResponseCode.SYSTEM_ERROR, "'24' is not an hour"),
        (b"brokerIP1=localhost", ResponseCode.NO_PERMISSION, "brokerIP1: cannot be changed over the network"),
        (b"nonsense", ResponseCode.SYSTEM_ERROR, "key=value"),
        (b"", ResponseCode.SYSTEM_ERROR, "the body contains no settings"),
    ],
)
def test_invalid_change_has_no_effect(harness: Harness, text: bytes, code: int, words: str) -> None:
    config = harness.broker.config
    answer = harness.answer(RequestCode.UPDATE_BROKER_CONFIG, body=text)
    assert (answer.code, words in str(answer.remark)) == (code, True), answer.remark
    assert harness.broker.config is config


RUNTIME_KEYS = """
    bootTimestamp runtime putMessageEntireTimeMax putMessageTimesTotal putMessageFailedTimes putMessageSizeTotal
    putMessageDistributeTime putMessageAverageSize dispatchMaxBuffer getMessageEntireTimeMax putTps getFoundTps
    getMissTps getTotalTps getTransferedTps putLatency99 putLatency999 commitLogDiskRatio
    consumeQueueDiskRatio commitLogMinOffset
    commitLogMaxOffset brokerVersionDesc brokerVersion msgPutTotalYesterdayMorning msgPutTotalTodayMorning
    msgPutTotalTodayNow msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow sendThreadPoolQueueSize
    sendThreadPoolQueueCapacity pullThreadPoolQueueSize pullThreadPoolQueueCapacity queryThreadPoolQueueSize
    queryThreadPoolQueueCapacity EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity dispatchBehindBytes
    pageCacheLockTimeMills sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills
    queryThreadPoolQueueHeadWaitTimeMills earliestMessageTimeStamp startAcceptSendRequestTimeStamp
    remainTransientStoreBufferNumbs remainHowManyDataToFlush commitLogDirCapacity scheduleMessageOffset_1
"""


def test_runtime_information_has_store_and_read_times(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([10.0, 10.25, 20.0, 20.0009])
    monkeypatch.setattr("delaymq.broker.processors.send.perf_counter", lambda: next(readings))
    harness.send()
    harness.send()
    readings = iter([5.0, 5.035])
    monkeypatch.setattr("delaymq.broker.processors.pull.perf_counter", lambda: next(readings))
    assert len(harness.pulled()) == 2
    harness.clock.advance(60_000)
    harness.broker.stats.sample(harness.clock())
    table = KVTable.decode(harness.answer(RequestCode.GET_BROKER_RUNTIME_INFO).body).table
    assert (table["putMessageEntireTimeMax"], table["getMessageEntireTimeMax"]) == ("250", "35")
    counts = [part for part in table["putMessageDistributeTime"].split() if not part.endswith(":0")]
    assert counts == ["[<=0ms]:1", "[200~500ms]:1"]


def test_runtime_information_has_all_rocketmq_keys_and_counts(harness: Harness) -> None:
    start_ms = harness.clock()
    harness.send(body=b"x")
    harness.send(properties={"DELAY": "1"})
    harness.pull()
    harness.clock.advance(10_000)
    harness.broker.stats.sample(harness.clock())
    table = KVTable.decode(harness.answer(RequestCode.GET_BROKER_RUNTIME_INFO).body).table
    assert set(RUNTIME_KEYS.split()) <= set(table)
    assert (table["brokerVersionDesc"], table["brokerVersion"]) == ("V4_9_7", "407")
    assert table["putMessageTimesTotal"] == "2"
    assert table["putTps"].split()[0] == "0.2"
    assert table["getTransferedTps"].split()[0] == "0.1"
    assert table["scheduleMessageOffset_1"] == "0,1"
    assert table["earliestMessageTimeStamp"] == str(start_ms)
    assert int(table["commitLogMaxOffset"]) == harness.broker.store.end_offset
    assert table["runtime"] == "[ 0 days, 0 hours, 0 minutes, 10 seconds ]"


def test_queues_without_a_topic_are_cleaned(harness: Harness) -> None:
    harness.send()
    harness.send(properties={"DELAY": "1"})
    harness.broker.topics.remove("Orders")
    assert harness.answer(RequestCode.CLEAN_UNUSED_TOPIC).code == ResponseCode.SUCCESS
    assert {topic for topic, _ in harness.broker.store.queues()} == {names.SCHEDULE_TOPIC}


@pytest.mark.parametrize("code", [RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.DELETE_EXPIRED_COMMITLOG])
def test_retention_on_demand_keeps_young_segments(harness: Harness, code: int) -> None:
    harness.send()
    assert harness.answer(code).code == ResponseCode.SUCCESS
    assert len(harness.pulled()) == 1


def test_retention_on_demand_ignores_the_hour_and_keeps_pending_messages(
    open_harness: Callable[..., Harness],
) -> None:
    def filled(first: dict[str, str]) -> Harness:
        harness = open_harness(mapped_file_size_commit_log=64 * 1024, delete_when="")
        harness.clock.now_ms = time.time_ns() // 1_000_000  # files have the machine's times
        harness.send(properties=first)
        for _ in range(30):
            harness.send(body=bytes(10_000))
        harness.flush()
        harness.clock.advance(100 * 3_600_000)
        assert harness.answer(RequestCode.DELETE_EXPIRED_COMMITLOG).code == ResponseCode.SUCCESS
        return harness

    assert filled({}).broker.store.min_offset == 4 * 64 * 1024
    assert filled({"DELAY": "18"}).broker.store.min_offset == 0


@pytest.mark.parametrize("code", [13, 27, 9_999])
def test_unsupported_codes_get_response_code_3(harness: Harness, code: int) -> None:
    answer = harness.answer(code)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert f"request type {code} not supported" in str(answer.remark)


def test_error_names_store_path_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotAStoreError, match="file/deeper: cannot be created"):
        Harness(tmp_path, store_path_root_dir=str(tmp_path / "file" / "deeper" / "store"))
