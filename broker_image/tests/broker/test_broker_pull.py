"""Pulls: every status of the table, limits, filters, long polling, and consumer offsets."""

from collections.abc import Callable
from typing import Any

import pytest
from delaymq.broker.requests.results import Held
from delaymq.message import names
from delaymq.message.hashing import tags_code
from delaymq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData, SubscriptionGroupConfig
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Response
from delaymq_testing.broker.harness import FakeSession, Harness, records_of, response_of

HOLD = 2 | 4


def offsets_of(response: Response | Held) -> tuple[int, int, int]:
    assert isinstance(response, Response)
    assert response.fields["suggestWhichBrokerId"] == "0"
    fields = response.fields
    return int(fields["nextBeginOffset"]), int(fields["minOffset"]), int(fields["maxOffset"])


def fill(harness: Harness, count: int, **send: Any) -> None:
    for number in range(count):
        assert response_of(harness.send(body=b"%d" % number, **send)).code == ResponseCode.SUCCESS


def subscribe(harness: Harness, expression: str = "*", version: int = 1, model: str = "CLUSTERING") -> None:
    data = HeartbeatData(
        "client-1",
        consumer_data_set=[
            ConsumerData(
                "readers",
                message_model=model,
                subscription_data_set=[SubscriptionData("Orders", expression, sub_version=version)],
            )
        ],
    )
    assert harness.answer(RequestCode.HEART_BEAT, body=data.encode()).code == ResponseCode.SUCCESS


def test_found_records_are_returned_in_order_as_stored(harness: Harness) -> None:
    fill(harness, 5)
    response = harness.pull(offset=1)
    assert isinstance(response, Response)
    assert (response.code, response.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert [record.body for record in records_of(response.body)] == [b"1", b"2", b"3", b"4"]
    assert offsets_of(response) == (5, 0, 5)


def test_records_of_other_queues_are_not_returned(harness: Harness) -> None:
    for number in range(6):
        harness.send(body=b"%d" % number, e=number % 3)
    assert [record.body for record in harness.pulled(queue_id=1)] == [b"1", b"4"]


@pytest.mark.parametrize(
    ("offset", "code", "status", "next_offset"),
    [
        (3, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 3),
        (4, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        (-1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
    ],
)
def test_offset_outside_the_queue_follows_the_table(
    harness: Harness, offset: int, code: int, status: str, next_offset: int
) -> None:
    fill(harness, 3)
    response = harness.pull(offset=offset)
    assert isinstance(response, Response)
    assert (response.code, response.remark, offsets_of(response)) == (code, status, (next_offset, 0, 3))


def test_empty_queue_holds_pulls_at_zero_and_corrects_other_offsets(harness: Harness) -> None:
    fill(harness, 1)
    at_zero = harness.pull(queue_id=2, offset=0)
    assert isinstance(at_zero, Response)
    assert (at_zero.code, at_zero.remark) == (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
    elsewhere = harness.pull(queue_id=2, offset=7)
    assert isinstance(elsewhere, Response)
    assert (elsewhere.code, offsets_of(elsewhere)) == (ResponseCode.PULL_OFFSET_MOVED, (0, 0, 0))


def test_corrected_offset_records_an_event(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness()
    fill(harness, 1)
    harness.pull(offset=9)
    (event,) = harness.pulled(names.OFFSET_MOVED_TOPIC)
    assert b'"offsetNew":1,"offsetRequest":9' in event.body
    assert event.properties["TAGS"] == "readers"
    silent = open_harness(offset_moved_event_enable=False)
    fill(silent, 1)
    silent.pull(offset=9)
    assert silent.pulled(names.OFFSET_MOVED_TOPIC) == []


def test_at_most_the_requested_number_and_32_records_are_returned(harness: Harness) -> None:
    fill(harness, 40)
    assert len(harness.pulled(maxMsgNums=7)) == 7
    assert len(harness.pulled(maxMsgNums=1_000)) == 32
    assert len(harness.pulled(maxMsgNums=0)) == 1


def test_bytes_are_limited_but_one_record_is_always_returned(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(max_transfer_bytes_on_message_in_memory=10_000)
    for _ in range(4):
        harness.send(body=bytes(4_000))
    assert len(harness.pulled()) == 2
    big = open_harness(max_transfer_bytes_on_message_in_memory=10_000)
    big.send(body=bytes(50_000))
    assert len(big.pulled()) == 1


def test_old_records_have_smaller_limits(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(access_message_in_memory_max_ratio=0)
    fill(harness, 20)
    assert len(harness.pulled()) == 8


def test_tags_select_records_and_skipped_ones_are_not_read_again(harness: Harness) -> None:
    for number in range(6):
        harness.send(body=b"%d" % number, properties={"TAGS": "AB"[number % 2]})
    response = harness.pull(subscription="B || C")
    assert isinstance(response, Response)
    assert [record.body for record in records_of(response.body)] == [b"1", b"3", b"5"]
    assert offsets_of(response)[0] == 6
    nothing = harness.pull(subscription="C")
    assert isinstance(nothing, Response)
    assert (nothing.code, nothing.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert offsets_of(nothing)[0] == 6


def test_filtering_pull_reads_at_most_800_entries(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(mapped_file_size_consume_queue=20 * 2_000)
    fill(harness, 900)
    response = harness.pull(subscription="rare")
    assert offsets_of(response)[0] == 800


def test_pull_ends_at_its_queue_file_and_continues_in_the_next(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(mapped_file_size_consume_queue=200)
    fill(harness, 25)
    seen: list[bytes] = []
    offset = 0
    while offset < 25:
        response = harness.pull(offset=offset)
        assert isinstance(response, Response)
        seen += [record.body for record in records_of(response.body)]
        offset = offsets_of(response)[0]
    assert seen == [b"%d" % number for number in range(25)]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "Nothing"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 4}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": -1}, ResponseCode.SYSTEM_ERROR),
        ({"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"expressionType": "SQL92", "subscription": "a > 1"}, ResponseCode.SYSTEM_ERROR),
        ({"consumerGroup": "bad group"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"sysFlag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ({"queueOffset": "x"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_rejected_pull_states_the_reason(harness: Harness, fields: dict[str, Any], code: int) -> None:
    fill(harness, 1)
    response = harness.pull(**fields)
    assert isinstance(response, Response)
    assert response.code == code
    assert response.remark


def test_groups_and_topics_may_be_closed_to_readers(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(auto_create_subscription_group=False)
    fill(harness, 1)
    unknown = harness.pull()
    assert isinstance(unknown, Response)
    assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    harness.broker.groups.put(SubscriptionGroupConfig("readers", consume_enable=False))
    closed = harness.pull()
    assert isinstance(closed, Response)
    assert closed.code == ResponseCode.NO_PERMISSION
    harness.broker.groups.put(SubscriptionGroupConfig("readers"))
    topic = harness.broker.topics.get("Orders")
    assert topic is not None
    topic.perm = 2
    write_only = harness.pull()
    assert isinstance(write_only, Response)
    assert write_only.code == ResponseCode.NO_PERMISSION


def test_pull_without_subscription_uses_the_heartbeats(harness: Harness) -> None:
    for tag in "AB":
        harness.send(body=tag.encode(), properties={"TAGS": tag})
    subscribe(harness, "B", version=5)
    response = harness.pull(sysFlag=0, subVersion=5)
    assert isinstance(response, Response)
    assert [record.body for record in records_of(response.body)] == [b"B"]
    newer = harness.pull(sysFlag=0, subVersion=6)
    assert isinstance(newer, Response)
    assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    other = harness.pull("BenchmarkTest", sysFlag=0)
    assert isinstance(other, Response)
    assert other.code == ResponseCode.SUBSCRIPTION_NOT_EXIST


def test_broadcasting_may_be_forbidden_for_a_group(harness: Harness) -> None:
    fill(harness, 1)
    subscribe(harness, model="BROADCASTING")
    assert len(harness.pulled(sysFlag=0)) == 1
    harness.broker.groups.put(SubscriptionGroupConfig("readers", consume_broadcast_enable=False))
    response = harness.pull(sysFlag=0)
    assert isinstance(response, Response)
    assert response.code == ResponseCode.NO_PERMISSION


def test_pull_commits_its_offset(harness: Harness) -> None:
    fill(harness, 3)
    harness.pull(sysFlag=5, commitOffset=2, offset=3)
    assert harness.broker.offsets.get("Orders", "readers", 0) == 2
    harness.pull(sysFlag=4, commitOffset=3, offset=3)
    assert harness.broker.offsets.get("Orders", "readers", 0) == 2


def test_pull_at_the_end_is_held_until_its_deadline(harness: Harness) -> None:
    fill(harness, 1)
    held = harness.pull(offset=1, sysFlag=HOLD)
    assert isinstance(held, Held)
    assert (held.topic, held.queue_id, held.offset) == ("Orders", 0, 1)
    assert held.deadline_ms == harness.clock() + 15_000
    assert isinstance(held.resume(False), Held)
    answer = held.resume(True)
    assert isinstance(answer, Response)
    assert (answer.code, offsets_of(answer)) == (ResponseCode.PULL_NOT_FOUND, (1, 0, 1))


def test_pull_is_held_briefly_without_long_polling(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(long_polling_enable=False, short_polling_time_mills=300)
    fill(harness, 1)
    held = harness.pull(offset=1, sysFlag=HOLD)
    assert isinstance(held, Held)
    assert held.deadline_ms == harness.clock() + 300


def test_hold_time_is_at_most_two_minutes_and_only_on_request(harness: Harness) -> None:
    fill(harness, 1)
    held = harness.pull(offset=1, sysFlag=HOLD, suspendTimeoutMillis=2**62)
    assert isinstance(held, Held)
    assert held.deadline_ms == harness.clock() + 120_000
    assert isinstance(harness.pull(offset=1, sysFlag=HOLD, suspendTimeoutMillis=0), Response)


def test_matching_message_resumes_a_held_pull(harness: Harness) -> None:
    arrivals: list[tuple[str, int, int, int]] = []
    harness.broker.on_arrival = lambda *arrival: arrivals.append(arrival[:4])
    fill(harness, 1)
    held = harness.pull(offset=1, sysFlag=HOLD, subscription="A")
    assert isinstance(held, Held)
    assert held.matches(tags_code("A"))
    assert not held.matches(tags_code("B"))
    harness.send(body=b"new", properties={"TAGS": "A"})
    assert arrivals == [("Orders", 0, 0, 0), ("Orders", 0, 1, tags_code("A"))]
    answer = held.resume(False)
    assert isinstance(answer, Response)
    assert [record.body for record in records_of(answer.body)] == [b"new"]


def test_held_pull_of_a_deleted_topic_gets_the_reason(harness: Harness) -> None:
    fill(harness, 1)
    held = harness.pull(offset=1, sysFlag=HOLD)
    assert isinstance(held, Held)
    harness.answer(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"})
    answer = held.resume(False)
    assert isinstance(answer, Response)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_message_is_visible_only_when_durable_with_synchronous_flush(
    open_harness: Callable[..., Harness],
) -> None:
    harness = open_harness(flush_disk_type="SYNC_FLUSH")
    arrivals: list[tuple[str, int, int, int]] = []
    harness.broker.on_arrival = lambda *arrival: arrivals.append(arrival[:4])
    harness.send(body=b"x")
    assert harness.pulled() == []
    held = harness.pull(sysFlag=HOLD)
    assert isinstance(held, Held)
    assert arrivals == []
    harness.flush()
    assert arrivals == [("Orders", 0, 0, 0)]
    answer = held.resume(False)
    assert isinstance(answer, Response)
    assert [record.body for record in records_of(answer.body)] == [b"x"]


def test_pull_needs_no_earlier_heartbeat(harness: Harness) -> None:
    fill(harness, 1)
    response = harness.ask(
        RequestCode.PULL_MESSAGE,
        {
            "consumerGroup": "mqadmin-reader",
            "topic": "Orders",
            "queueId": 0,
            "queueOffset": 0,
            "maxMsgNums": 1,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subVersion": 0,
        },
        session=FakeSession(50_001),
    )
    assert isinstance(response, Response)
    assert response.code == ResponseCode.SUCCESS
