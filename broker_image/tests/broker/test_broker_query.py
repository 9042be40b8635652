"""Messages by key and by id, and reads of a consume queue."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from delaymq.broker.processors import query as module
from delaymq.protocol.bodies import ConsumerData, HeartbeatData, QueueData, SubscriptionData
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Response
from delaymq_testing.broker.harness import START_MS, Harness, records_of


def query(harness: Harness, key: str, **changes: Any) -> Response:
    fields = {
        "topic": "Orders",
        "key": key,
        "maxNum": 64,
        "beginTimestamp": 0,
        "endTimestamp": START_MS * 2,
    }
    return harness.answer(RequestCode.QUERY_MESSAGE, fields | changes)


def test_messages_are_found_by_each_key_in_log_order(harness: Harness) -> None:
    for number in range(3):
        harness.send(body=b"%d" % number, properties={"KEYS": f"common k{number}", "UNIQ_KEY": f"U{number}"})
        harness.clock.advance(1_000)
    answer = query(harness, "common")
    assert answer.code == ResponseCode.SUCCESS
    assert [record.body for record in records_of(answer.body)] == [b"0", b"1", b"2"]
    assert int(answer.fields["indexLastUpdatePhyoffset"]) == records_of(answer.body)[-1].physical_offset
    assert int(answer.fields["indexLastUpdateTimestamp"]) == START_MS + 2_000
    assert [record.body for record in records_of(query(harness, "k1").body)] == [b"1"]
    unique = query(harness, "U2", _UNIQUE_KEY_QUERY="true")
    assert [record.body for record in records_of(unique.body)] == [b"2"]
    assert [record.body for record in records_of(query(harness, "common", maxNum=2).body)] == [b"1", b"2"]


def test_unknown_key_other_topic_or_time_finds_nothing(harness: Harness) -> None:
    harness.send(properties={"KEYS": "k"})
    for answer in (
        query(harness, "other"),
        query(harness, "k", topic="BenchmarkTest"),
        query(harness, "k", beginTimestamp=START_MS + 10_000),
        query(harness, "k", endTimestamp=START_MS - 10_000),
    ):
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        assert answer.body == b""


def test_message_with_colliding_key_hash_is_omitted(harness: Harness) -> None:
    harness.send(body=b"Aa", properties={"KEYS": "Aa"})
    harness.send(body=b"BB", properties={"KEYS": "BB"})
    assert [record.body for record in records_of(query(harness, "Aa").body)] == [b"Aa"]


def test_large_responses_fit_a_frame(harness: Harness) -> None:
    for _ in range(5):
        harness.send(body=bytes(2_500_000), properties={"KEYS": "k"})
    assert len(records_of(query(harness, "k").body)) == 3


@pytest.mark.parametrize("offset", [-1, 3, 10**9, 2**62])
def test_offset_without_a_record_is_an_error(harness: Harness, offset: int) -> None:
    harness.send()
    answer = harness.answer(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"can not find message by the offset, {offset}"


def look(harness: Harness, **changes: Any) -> Response:
    fields = {"topic": "Orders", "queueId": 0, "index": 0, "count": 10, "consumerGroup": ""}
    return harness.answer(RequestCode.QUERY_CONSUME_QUEUE, fields | changes)


def test_queue_entries_are_returned_as_stored(harness: Harness) -> None:
    for _ in range(3):
        harness.send(properties={"TAGS": "TagA"})
    data = QueueData.decode(look(harness, index=1).body)
    assert (data.min_queue_index, data.max_queue_index) == (0, 3)
    assert [entry.tags_code for entry in data.queue_data] == [2598919, 2598919]
    assert data.queue_data[0].physic_offset == harness.pulled(offset=1)[0].physical_offset


def test_missing_queue_or_index_is_reported(harness: Harness) -> None:
    harness.send()
    assert look(harness, queueId=3).code == ResponseCode.SYSTEM_ERROR
    beyond = look(harness, index=1)
    assert (beyond.code, beyond.body) == (ResponseCode.SUCCESS, b"")
    assert "not exist" in str(beyond.remark)


def subscribe(harness: Harness, expression: str, expression_type: str) -> None:
    subscription = SubscriptionData("Orders", expression, sub_version=7, expression_type=expression_type)
    data = HeartbeatData("c1", consumer_data_set=[ConsumerData("readers", subscription_data_set=[subscription])])
    assert harness.answer(RequestCode.HEART_BEAT, body=data.encode()).code == ResponseCode.SUCCESS


def test_entries_are_returned_with_the_groups_filter_result(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(enable_property_filter=True)
    for number in range(3):
        harness.send(properties={"TAGS": f"Tag{number}", "size": str(number)})
    assert QueueData.decode(look(harness, consumerGroup="readers").body).filter_data == "readers@Orders is not online!"
    subscribe(harness, "Tag1 || Tag2", "TAG")
    by_tag = QueueData.decode(look(harness, consumerGroup="readers").body)
    assert [entry.eval for entry in by_tag.queue_data] == [False, True, True]
    assert by_tag.filter_data == "null"
    assert by_tag.subscription_data is not None
    assert by_tag.subscription_data.sub_string == "Tag1 || Tag2"
    harness.broker.session_closed(harness.session)
    subscribe(harness, "size < 1 OR TAGS = 'Tag2'", "SQL92")
    by_property = QueueData.decode(look(harness, consumerGroup="readers").body)
    assert [entry.eval for entry in by_property.queue_data] == [True, False, True]
    assert json.loads(by_property.filter_data or "") == {
        "consumerGroup": "readers",
        "expression": "size < 1 OR TAGS = 'Tag2'",
        "expressionType": "SQL92",
        "topic": "Orders",
        "clientVersion": 7,
    }
    harness.broker.session_closed(harness.session)
    subscribe(harness, "size <", "SQL92")
    broken = QueueData.decode(look(harness, consumerGroup="readers").body)
    assert [entry.eval for entry in broken.queue_data] == [False, False, False]


def test_number_of_entries_is_limited(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUEUE_ENTRIES", 2)
    for _ in range(4):
        harness.send()
    for count, shown in ((10, 2), (2**31 - 1, 2), (1, 1), (0, 0), (-5, 0)):
        assert len(QueueData.decode(look(harness, count=count).body).queue_data) == shown
