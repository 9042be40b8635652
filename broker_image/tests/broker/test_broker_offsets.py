"""Offsets of queues and groups, across restarts too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delaymq.broker.groups import consumer_offsets as offsets_module
from delaymq.broker.opening import open_broker
from delaymq.protocol.bodies import (
    ConsumerOffsets,
    ConsumeStats,
    ConsumeStatsList,
    CorrectionOffsets,
    DelayOffsets,
    MessageQueue,
    ResetOffset,
    TimeSpans,
    TopicConfig,
)
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq_testing.broker.harness import Harness, broker_config


def offset_of(harness: Harness, code: int, **fields: Any) -> int:
    answer = harness.answer(code, {"topic": "Orders", "queueId": 0} | fields)
    assert answer.code == ResponseCode.SUCCESS
    return int(answer.fields["offset"])


def commit(harness: Harness, offset: int, queue_id: int = 0, group: str = "readers") -> None:
    fields = {"consumerGroup": group, "topic": "Orders", "queueId": queue_id, "commitOffset": offset}
    assert harness.answer(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == ResponseCode.SUCCESS


def test_offset_is_stored_and_may_go_back(harness: Harness) -> None:
    harness.send()
    for offset in (5, 2):
        commit(harness, offset)
        assert offset_of(harness, RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="readers") == offset
    table = ConsumerOffsets.decode(harness.answer(RequestCode.GET_ALL_CONSUMER_OFFSET).body)
    assert table.offset_table == {"Orders@readers": {0: 2}}


@pytest.mark.parametrize("queue_id", [-1, 4, 16_384])
def test_offset_of_a_nonexistent_queue_is_rejected(harness: Harness, queue_id: int) -> None:
    harness.send()
    fields = {"consumerGroup": "g", "topic": "Orders", "queueId": queue_id, "commitOffset": 1}
    answer = harness.answer(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    assert (answer.code, "is out of range" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    assert (harness.broker.offsets.table, harness.broker.offsets.ignored) == ({}, 1)


def test_offsets_are_stored_for_existing_topics_and_groups_topics(harness: Harness) -> None:
    harness.broker.groups.find("readers")

    def commit_in(topic: str, queue_id: int = 0) -> int:
        fields = {"consumerGroup": "readers", "topic": topic, "queueId": queue_id, "commitOffset": 1}
        return harness.answer(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code

    assert commit_in("Gone") == ResponseCode.TOPIC_NOT_EXIST
    assert commit_in("%RETRY%nobody") == ResponseCode.TOPIC_NOT_EXIST
    assert [commit_in(topic) for topic in ("%RETRY%readers", "%DLQ%readers")] == [ResponseCode.SUCCESS] * 2
    assert commit_in("%RETRY%readers", 1) == ResponseCode.SYSTEM_ERROR
    assert set(harness.broker.offsets.table) == {"%RETRY%readers@readers", "%DLQ%readers@readers"}


def test_consumer_can_finish_removed_queues(harness: Harness) -> None:
    harness.broker.topics.put(TopicConfig("Orders", 2, 8))
    commit(harness, 5, queue_id=7)
    harness.broker.topics.put(TopicConfig("Orders", 2, 2))
    harness.restart()
    commit(harness, 6, queue_id=7)
    assert harness.broker.offsets.table == {"Orders@readers": {7: 6}}
    harness.broker.topics.remove("Orders")
    commit(harness, 7, queue_id=7)
    assert harness.broker.offsets.get("Orders", "readers", 7) == 7


def test_total_length_of_group_names_is_limited(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_module, "MAX_KEY_CHARACTERS", 3 * len("Orders@g0"))
    harness.send()
    offsets = harness.broker.offsets
    assert [offsets.commit("Orders", f"g{number}", 0, 1) for number in range(4)] == [True, True, True, False]
    assert not offsets.clone("Orders", "g0", "g3")
    assert offsets.commit("Orders", "g0", 1, 1)
    offsets.remove_group("g0")
    assert offsets.clone("Orders", "g1", "g3")
    assert not offsets.commit("Orders", "g0", 0, 1)
    harness.restart()
    assert not harness.broker.offsets.commit("Orders", "g0", 0, 1)


def test_offset_count_is_right_after_commits_clones_deletions_and_restart(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("Orders", "Refunds"):
        harness.send(topic)
    offsets = harness.broker.offsets
    monkeypatch.setattr(offsets_module, "MAX_ENTRIES", 7)

    def counted() -> int:
        assert offsets.entries == sum(map(len, offsets.table.values()))
        return offsets.entries

    for queue_id in (0, 1, 1, 2):
        commit(harness, 5, queue_id)
    offsets.commit("Orders", "others", 3, 1)
    assert counted() == 4
    assert offsets.clone("Orders", "readers", "others")
    assert counted() == 6
    assert not offsets.clone("Orders", "readers", "third")
    assert offsets.commit("Refunds", "readers", 0, 1)
    assert not offsets.commit("Refunds", "readers", 1, 1)
    assert offsets.commit("Refunds", "readers", 0, 2)
    assert offsets.commit("Half", "broker's own", 0, 2, own=True)
    assert counted() == 8
    offsets.remove_group("readers")
    assert counted() == 4
    harness.restart()
    offsets = harness.broker.offsets
    assert counted() == 4


def test_new_group_starts_at_zero_when_the_minimum_is_near(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness()
    harness.send()
    assert offset_of(harness, RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="new") == 0
    assert offset_of(harness, RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="new", queueId=3) == 0
    far = open_harness(access_message_in_memory_max_ratio=0)
    far.send()
    fields = {"consumerGroup": "new", "topic": "Orders", "queueId": 0}
    assert far.answer(RequestCode.QUERY_CONSUMER_OFFSET, fields).code == ResponseCode.QUERY_NOT_FOUND


def test_queue_has_minimum_maximum_and_times(harness: Harness) -> None:
    first_ms = harness.clock()
    for _ in range(5):
        harness.send()
        harness.clock.advance(1_000)
    assert offset_of(harness, RequestCode.GET_MAX_OFFSET) == 5
    assert offset_of(harness, RequestCode.GET_MIN_OFFSET) == 0
    assert offset_of(harness, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=first_ms + 2_000) == 2
    earliest = harness.answer(RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "Orders", "queueId": 0})
    assert earliest.fields == {"timestamp": str(first_ms)}


def test_empty_queue_has_zero_offsets_and_no_time(harness: Harness) -> None:
    for code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
        assert offset_of(harness, code, topic="Nothing") == 0
    assert offset_of(harness, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic="Nothing", timestamp=1) == 0
    earliest = harness.answer(RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "Nothing", "queueId": 0})
    assert earliest.fields == {"timestamp": "-1"}


def test_delay_level_positions_are_returned(harness: Harness) -> None:
    harness.send(properties={"DELAY": "1"})
    harness.send(properties={"DELAY": "2"})
    harness.clock.advance(1_000)
    harness.broker.hand_over(harness.clock(), 10)
    table = DelayOffsets.decode(harness.answer(RequestCode.GET_ALL_DELAY_OFFSET).body)
    assert table.offset_table == {1: 1, 2: 0}


def test_group_progress_is_returned_by_queue(harness: Harness) -> None:
    stored_ms = harness.clock()
    for queue_id in (0, 0, 1):
        harness.send(e=queue_id)
    commit(harness, 1)
    stats = ConsumeStats.decode(harness.answer(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "readers"}).body)
    assert len(stats.offset_table) == 4
    progress = stats.offset_table[MessageQueue("broker-a", 0, "Orders")]
    assert (progress.broker_offset, progress.consumer_offset, progress.last_timestamp) == (2, 1, stored_ms)
    untouched = stats.offset_table[MessageQueue("broker-a", 1, "Orders")]
    assert (untouched.broker_offset, untouched.consumer_offset, untouched.last_timestamp) == (1, 0, 0)
    harness.broker.groups.find("readers")
    everything = ConsumeStatsList.decode(
        harness.answer(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}).body
    )
    assert everything.total_diff == 2
    ordered = ConsumeStatsList.decode(harness.answer(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"}).body)
    assert ordered.total_diff == 0


def test_progress_of_a_connected_group_omits_unsubscribed_topics(harness: Harness) -> None:
    harness.send()
    commit(harness, 0)
    heartbeat = (
        b'{"clientID":"c1","consumerDataSet":[{"groupName":"readers","subscriptionDataSet":[{"topic":"Refunds"}]}]}'
    )
    harness.answer(RequestCode.HEART_BEAT, body=heartbeat)
    stats = ConsumeStats.decode(harness.answer(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "readers"}).body)
    assert stats.offset_table == {}
    harness.broker.session_closed(harness.session)
    stats = ConsumeStats.decode(harness.answer(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "readers"}).body)
    assert len(stats.offset_table) == 4


def test_consumed_time_span_of_a_group_is_returned(harness: Harness) -> None:
    start_ms = harness.clock()
    for _ in range(3):
        harness.send()
        harness.clock.advance(1_000)
    commit(harness, 2)
    answer = harness.answer(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "Orders", "group": "readers"})
    span = TimeSpans.decode(answer.body).consume_time_span_set[0]
    assert (span.min_time_stamp, span.max_time_stamp) == (start_ms, start_ms + 2_000)
    assert (span.consume_time_stamp, span.delay_time) == (start_ms + 1_000, 1_000)


def test_members_receive_a_reset_to_a_time(harness: Harness) -> None:
    for queue_id in (0, 1, 2, 3, 0):
        harness.send(e=queue_id)
        harness.clock.advance(1_000)
    for queue_id, offset in enumerate((2, 1, 1, 1)):
        commit(harness, offset, queue_id)
    fields = {"topic": "Orders", "group": "readers", "timestamp": 1, "isForce": "true"}
    offline = harness.answer(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
    harness.answer(
        RequestCode.HEART_BEAT,
        body=b'{"clientID":"c1","consumerDataSet":[{"groupName":"readers","subscriptionDataSet":[]}]}',
    )
    harness.session.notified.clear()
    answer = harness.answer(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    table = ResetOffset.decode(answer.body).offset_table
    assert table == {MessageQueue("broker-a", queue_id, "Orders"): 0 for queue_id in range(4)}
    (order,) = harness.session.notified
    assert order.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    assert ResetOffset.decode(order.body).offset_table == table
    to_the_end = fields | {"timestamp": -1}
    ends = ResetOffset.decode(harness.answer(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, to_the_end).body).offset_table
    assert ends[MessageQueue("broker-a", 0, "Orders")] == 2


def test_reset_of_unknown_group_or_topic_is_an_error(harness: Harness) -> None:
    harness.send()
    fields = {"topic": "Orders", "group": "nobody", "timestamp": 1, "isForce": "true"}
    assert "not exist" in str(harness.answer(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields).remark)
    fields["topic"] = "Nothing"
    assert harness.answer(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields).code == ResponseCode.SYSTEM_ERROR


def test_offsets_survive_a_restart(harness: Harness) -> None:
    harness.send()
    commit(harness, 1)
    harness.restart()
    assert offset_of(harness, RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="readers") == 1


def test_offsets_ahead_of_the_log_are_corrected_after_an_unclean_stop(harness: Harness, tmp_path: Path) -> None:
    harness.send()
    commit(harness, 9)
    commit(harness, 1, group="honest")
    store = Path(harness.config.store_path_root_dir)
    harness.broker.close()
    (store / "abort").touch()
    harness.broker = open_broker(broker_config(tmp_path / "0"), harness.clock)
    assert not harness.broker.store.recovery.clean
    assert offset_of(harness, RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="readers") == 1
    assert offset_of(harness, RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="honest") == 1


def test_group_continues_at_a_cloned_position(harness: Harness) -> None:
    for topic in ("Orders", "Refunds"):
        harness.send(topic)
        fields = {"consumerGroup": "readers", "topic": topic, "queueId": 0, "commitOffset": 1}
        harness.answer(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    commit(harness, 9, queue_id=3, group="others")
    fields = {"srcGroup": "readers", "destGroup": "others", "topic": "Orders", "offline": "false"}
    assert harness.answer(RequestCode.CLONE_GROUP_OFFSET, fields).code == ResponseCode.SUCCESS
    table = harness.broker.offsets.table
    assert table["Orders@others"] == {0: 1}
    assert "Refunds@others" not in table
    commit(harness, 0)
    assert table["Orders@others"] == {0: 1}
    del fields["topic"]
    assert harness.answer(RequestCode.CLONE_GROUP_OFFSET, fields).code == ResponseCode.SUCCESS
    assert (table["Orders@others"], table["Refunds@others"]) == ({0: 0}, {0: 1})


def test_only_subscribed_topics_are_cloned_unless_offline(harness: Harness) -> None:
    harness.send()
    commit(harness, 1)
    heartbeat = (
        b'{"clientID":"c1","consumerDataSet":[{"groupName":"readers","subscriptionDataSet":[{"topic":"Refunds"}]}]}'
    )
    harness.answer(RequestCode.HEART_BEAT, body=heartbeat)
    fields = {"srcGroup": "readers", "destGroup": "others", "topic": "Orders", "offline": "false"}
    harness.answer(RequestCode.CLONE_GROUP_OFFSET, fields)
    assert "Orders@others" not in harness.broker.offsets.table
    harness.answer(RequestCode.CLONE_GROUP_OFFSET, fields | {"offline": "true"})
    assert harness.broker.offsets.table["Orders@others"] == {0: 1}


def test_nothing_is_cloned_for_illegal_names_unknown_groups_or_deleted_topics(harness: Harness) -> None:
    harness.send()
    commit(harness, 1)
    harness.broker.offsets.commit("Gone", "readers", 0, 3)
    before = dict(harness.broker.offsets.table)
    for changes, code in (
        ({"destGroup": "a@b"}, ResponseCode.SYSTEM_ERROR),
        ({"destGroup": "x" * 300}, ResponseCode.SYSTEM_ERROR),
        ({"srcGroup": "nobody"}, ResponseCode.SUCCESS),
        ({"topic": "Gone"}, ResponseCode.SUCCESS),
    ):
        fields = {"srcGroup": "readers", "destGroup": "others", "topic": "Orders", "offline": "true"} | changes
        assert harness.answer(RequestCode.CLONE_GROUP_OFFSET, fields).code == code
    assert harness.broker.offsets.table == before


def corrections(harness: Harness, compare: str, left_out: str = "") -> dict[int, int]:
    fields = {"topic": "Orders", "compareGroup": compare, "filterGroups": left_out}
    answer = harness.answer(RequestCode.QUERY_CORRECTION_OFFSET, fields)
    return CorrectionOffsets.decode(answer.body).correction_offsets


def test_lowest_offset_of_all_groups_is_returned_by_queue(harness: Harness) -> None:
    harness.send()
    for group, offset in (("ahead", 9), ("middle", 6), ("behind", 3)):
        commit(harness, offset, group=group)
    commit(harness, 4, queue_id=1, group="ahead")
    assert corrections(harness, "ahead") == {0: 3, 1: 4}
    assert corrections(harness, "ahead", "behind,nobody") == {0: 6, 1: 4}
    assert corrections(harness, "behind", "behind") == {0: 2**63 - 1, 1: 4}
    assert corrections(harness, "nobody", "ahead,middle,behind") == {}
    # Groups that were omitted keep their offsets.
    assert harness.broker.offsets.get("Orders", "behind", 0) == 3
