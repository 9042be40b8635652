"""Send-backs: retries with rising delays, and dead letters after the last."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delaymq.broker.requests.results import Deferred
from delaymq.message import names
from delaymq.message.flags import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_PREPARED
from delaymq.message.ids import offset_message_id
from delaymq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Response
from delaymq.store.model import NewRecord
from delaymq_testing.broker.harness import Harness, response_of, send_fields


def send_back(harness: Harness, offset: int, **fields: Any) -> Response:
    header = {"offset": offset, "group": "readers", "delayLevel": 0} | fields
    return response_of(harness.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header))


def deliver_all(harness: Harness) -> None:
    harness.clock.advance(2 * 3_600_000)
    while harness.broker.hand_over(harness.clock(), 100):
        pass


def test_each_send_back_retries_one_level_later(harness: Harness) -> None:
    harness.send(body=b"bad", properties={"UNIQ_KEY": "U", "TAGS": "A"}, h=9)
    (record,) = harness.pulled()
    origin = offset_message_id(record.store_host, record.physical_offset)
    for times, level in enumerate((3, 4, 5)):
        assert send_back(harness, record.physical_offset).code == ResponseCode.SUCCESS
        (waiting,) = harness.pulled(names.SCHEDULE_TOPIC, queue_id=level - 1)
        assert waiting.properties["REAL_TOPIC"] == "%RETRY%readers"
        assert harness.pulled("%RETRY%readers", offset=times) == []
        deliver_all(harness)
        (record,) = harness.pulled("%RETRY%readers", offset=times)
        assert record.reconsume_times == times + 1
        assert (record.body, record.flag, record.born_host) == (b"bad", 9, harness.session.remote_host)
        assert record.properties["RETRY_TOPIC"] == "Orders"
        assert record.properties["ORIGIN_MESSAGE_ID"] == origin
        assert (record.properties["UNIQ_KEY"], record.properties["WAIT"]) == ("U", "false")
    assert harness.broker.stats.sent_back == 3


def test_client_may_choose_the_level(harness: Harness) -> None:
    harness.send()
    assert send_back(harness, 0, delayLevel=7).code == ResponseCode.SUCCESS
    assert len(harness.pulled(names.SCHEDULE_TOPIC, queue_id=6)) == 1


def test_retry_level_is_clamped_even_when_producers_are_rejected(
    open_harness: Callable[..., Harness],
) -> None:
    harness = open_harness(message_delay_level="1s 2s", delay_level_overflow="reject")
    harness.send()
    assert send_back(harness, 0).code == ResponseCode.SUCCESS
    assert len(harness.pulled(names.SCHEDULE_TOPIC, queue_id=1)) == 1


def test_message_becomes_a_dead_letter_after_the_last_attempt(harness: Harness) -> None:
    harness.broker.groups.put(SubscriptionGroupConfig("readers", retry_max_times=1))
    harness.send(body=b"bad")
    send_back(harness, 0)
    deliver_all(harness)
    (retry,) = harness.pulled("%RETRY%readers")
    assert send_back(harness, retry.physical_offset).code == ResponseCode.SUCCESS
    (dead,) = harness.pulled("%DLQ%readers")
    assert (dead.body, dead.reconsume_times, dead.properties["DELAY"]) == (b"bad", 2, "0")
    assert names.MARK not in dead.properties
    topic = harness.broker.topics.get("%DLQ%readers")
    assert topic is not None
    assert (topic.read_queue_nums, topic.perm) == (1, 6)


def test_negative_level_or_clients_maximum_means_immediate_dead_letter(harness: Harness) -> None:
    harness.send()
    send_back(harness, 0, delayLevel=-1)
    send_back(harness, 0, maxReconsumeTimes=0)
    assert len(harness.pulled("%DLQ%readers")) == 2


def test_rejected_send_back_states_the_reason(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness()
    harness.send()
    end = harness.broker.store.end_offset
    for offset in (-1, 1, end, end + 10, 2**62):
        answer = send_back(harness, offset)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            f"look message by offset failed, {offset}",
        )
    assert harness.broker.store.end_offset == end
    closed = open_harness(auto_create_subscription_group=False)
    closed.send()
    assert send_back(closed, 0).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_group_without_retry_queues_gets_a_response_and_stores_nothing(harness: Harness) -> None:
    harness.broker.groups.put(SubscriptionGroupConfig("readers", retry_queue_nums=0))
    harness.send()
    end = harness.broker.store.end_offset
    assert send_back(harness, 0).code == ResponseCode.SUCCESS
    assert harness.broker.store.end_offset == end


def test_too_long_retry_topic_name_is_reported(harness: Harness) -> None:
    harness.send()
    answer = send_back(harness, 0, group="g" * 125)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "127" in str(answer.remark)


def test_send_back_response_waits_for_flush_with_synchronous_flush(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(flush_disk_type="SYNC_FLUSH")
    harness.send()
    harness.flush()
    result = harness.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": 0, "group": "readers", "delayLevel": 0})
    assert isinstance(result, Deferred)
    assert result.until == harness.broker.store.end_offset
    assert result.late.code == ResponseCode.SYSTEM_ERROR


def test_retry_drops_marks_and_due_times(harness: Harness) -> None:
    harness.send(properties={"DELAY": "1"})
    deliver_all(harness)
    (record,) = harness.pulled()
    assert names.MARK in record.properties
    send_back(harness, record.physical_offset, delayLevel=-1)
    (dead,) = harness.pulled("%DLQ%readers")
    assert not [name for name in dead.properties if name.startswith(names.OWN_PREFIX)]


def own_retry(harness: Harness, times: int, *, max_times: int | None = None, version: int = 409) -> Response:
    """What a consumer sends itself: ordered ones at their limit, others when a send-back failed."""
    properties = {"DELAY": str(3 + times), "RETRY_TOPIC": "Orders", "UNIQ_KEY": f"U{times}"}
    header = send_fields("%RETRY%readers", properties) | {"j": times}
    if max_times is not None:
        header["l"] = max_times
    return response_of(harness.ask(RequestCode.SEND_MESSAGE_V2, header, b"own", version=version))


def test_consumers_own_send_below_the_maximum_is_delayed_in_the_retry_topic(harness: Harness) -> None:
    assert own_retry(harness, 2, max_times=3).code == ResponseCode.SUCCESS
    (waiting,) = harness.pulled(names.SCHEDULE_TOPIC, queue_id=4)
    assert (waiting.properties["REAL_TOPIC"], waiting.reconsume_times) == ("%RETRY%readers", 2)


def test_consumers_own_send_at_the_maximum_becomes_a_dead_letter(harness: Harness) -> None:
    answer = own_retry(harness, 3, max_times=3)
    assert (answer.code, answer.fields["queueId"]) == (ResponseCode.SUCCESS, "0")
    (dead,) = harness.pulled("%DLQ%readers")
    assert (dead.body, dead.reconsume_times, dead.properties["DELAY"]) == (b"own", 3, "0")
    assert dead.properties["RETRY_TOPIC"] == "Orders"
    assert harness.broker.stats.stored["%DLQ%readers"] == 1


def test_groups_maximum_applies_without_the_clients(harness: Harness) -> None:
    harness.broker.groups.put(SubscriptionGroupConfig("readers", retry_max_times=2))
    own_retry(harness, 1)
    own_retry(harness, 2)
    own_retry(harness, 1, max_times=1, version=120)
    own_retry(harness, 1, max_times=1, version=121)
    assert len(harness.pulled("%DLQ%readers")) == 2
    harness.send()
    assert send_back(harness, harness.pulled()[0].physical_offset, maxReconsumeTimes=0).code == ResponseCode.SUCCESS
    assert len(harness.pulled("%DLQ%readers")) == 3


def test_consumers_own_send_for_an_unknown_group_gets_26(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(auto_create_subscription_group=False)
    assert own_retry(harness, 1).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert harness.broker.store.end_offset == 0


def test_group_without_retry_queues_accepts_its_own_sends(harness: Harness) -> None:
    harness.broker.groups.put(SubscriptionGroupConfig("readers", retry_queue_nums=0))
    assert own_retry(harness, 1, max_times=1).code == ResponseCode.SUCCESS
    assert len(harness.pulled("%DLQ%readers")) == 1


def test_read_only_broker_rejects_send_backs(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(broker_permission=4)
    harness.send()
    answer = send_back(harness, 0)
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "the broker[127.0.0.1] sending message is forbidden",
    )


def test_read_only_retry_topic_rejects_send_backs_but_accepts_dead_letters(
    harness: Harness,
) -> None:
    harness.broker.topics.put(TopicConfig("%RETRY%readers", 1, 1, 4))
    harness.broker.topics.put(TopicConfig("%DLQ%readers", 1, 1, 0))
    harness.send()
    answer = send_back(harness, 0)
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "the topic[%RETRY%readers] sending message is forbidden",
    )
    # What a consumer sends itself is not checked: it would have nowhere else to go.
    assert own_retry(harness, 9, max_times=1).code == ResponseCode.SUCCESS
    assert harness.broker.store.queue_bounds("%DLQ%readers", 0) == (0, 1)
    assert response_of(harness.pull("%DLQ%readers")).code == ResponseCode.NO_PERMISSION


def test_retries_are_stored_only_in_readable_queues(harness: Harness) -> None:
    harness.send()
    send_back(harness, 0, delayLevel=1)
    harness.broker.groups.put(SubscriptionGroupConfig("readers", retry_queue_nums=64))
    for _ in range(30):
        send_back(harness, 0, delayLevel=1)
    queues = {record.properties["REAL_QID"] for record in harness.pulled(names.SCHEDULE_TOPIC)}
    assert queues == {"0"}


def test_units_retry_topic_is_marked_and_its_dead_letter_topic_is_not(harness: Harness) -> None:
    harness.send()
    send_back(harness, 0, unitMode=True)
    send_back(harness, 0, unitMode=True, delayLevel=-1)
    retry, dead = (harness.broker.topics.get(name) for name in ("%RETRY%readers", "%DLQ%readers"))
    assert retry is not None
    assert dead is not None
    assert (retry.topic_sys_flag, dead.topic_sys_flag) == (2, 0)


def test_retry_of_a_committed_transaction_is_no_commit_proof(harness: Harness) -> None:
    offset = _append(harness, "Orders", TRANSACTION_COMMIT | 1, prepared=12_345)
    for level in (1, -1):
        assert send_back(harness, offset, delayLevel=level).code == ResponseCode.SUCCESS
    (retry,) = harness.pulled(names.SCHEDULE_TOPIC)
    (dead,) = harness.pulled("%DLQ%readers")
    for record in (retry, dead):
        assert (record.sys_flag & TRANSACTION_MASK, record.sys_flag & 1) == (0, 1)
        assert record.prepared_transaction_offset == 0


def test_record_outside_any_queue_cannot_be_sent_back(harness: Harness) -> None:
    offset = _append(harness, "Orders", TRANSACTION_PREPARED)
    answer = send_back(harness, offset, delayLevel=-1)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")


@pytest.mark.parametrize("topic", [names.HALF_TOPIC, names.OP_HALF_TOPIC, names.SCHEDULE_TOPIC, names.MARKS_TOPIC])
def test_undelivered_record_cannot_be_sent_back(harness: Harness, topic: str) -> None:
    offset = _append(harness, topic, 0)
    answer = send_back(harness, offset)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")


def _append(harness: Harness, topic: str, sys_flag: int, *, prepared: int = 0) -> int:
    host = harness.broker.store_host
    record = NewRecord(topic, 0, b"b", {"UNIQ_KEY": "U"}, 0, sys_flag, 0, host, host, 0, prepared)
    return harness.broker.store.append(record).physical_offset


def test_retry_continues_after_a_restart(harness: Harness) -> None:
    harness.send(body=b"bad", properties={"UNIQ_KEY": "U"})
    send_back(harness, 0)
    harness.restart()
    deliver_all(harness)
    (retry,) = harness.pulled("%RETRY%readers")
    harness.restart()
    assert send_back(harness, retry.physical_offset, maxReconsumeTimes=1).code == ResponseCode.SUCCESS
    harness.restart()
    (dead,) = harness.pulled("%DLQ%readers")
    assert (dead.body, dead.reconsume_times, dead.properties["UNIQ_KEY"]) == (b"bad", 2, "U")
    assert len(harness.pulled("%RETRY%readers")) == 1


def test_damaged_message_cannot_be_sent_back(harness: Harness) -> None:
    harness.send(body=b"intact")
    record = harness.pulled()[0]
    segment = next((Path(harness.broker.store.path) / "commitlog").iterdir())
    content = segment.read_bytes()
    at = content.index(b"intact")
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(b"broken")
    answer = send_back(harness, record.physical_offset)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "look message by offset failed, 0")


def test_consumers_own_send_waits_for_flush_despite_properties_of_an_earlier_retry(
    open_harness: Callable[..., Harness],
) -> None:
    harness = open_harness(flush_disk_type="SYNC_FLUSH")
    result = harness.send("%RETRY%readers", properties={"WAIT": "false", "DELAY": "3"}, j=1)
    assert isinstance(result, Deferred)
    assert result.until == harness.broker.store.end_offset


def test_retry_of_an_old_client_with_transaction_property_is_an_ordinary_message(
    harness: Harness,
) -> None:
    answer = response_of(harness.send("%RETRY%readers", properties={"TRAN_MSG": "true", "DELAY": "3"}, j=1, f=4))
    assert answer.code == ResponseCode.SUCCESS
    (waiting,) = harness.pulled(names.SCHEDULE_TOPIC, queue_id=2)
    assert "TRAN_MSG" not in waiting.properties


@pytest.mark.parametrize(
    ("stated", "topic", "queue_id", "then"),
    [
        (-(2**31), names.SCHEDULE_TOPIC, 2, 1),
        (-3, names.SCHEDULE_TOPIC, 2, 1),
        (2**31 - 1, "%DLQ%readers", 0, 2**31 - 1),
    ],
)
def test_forged_attempt_count_stops_no_retry(
    harness: Harness, stated: int, topic: str, queue_id: int, then: int
) -> None:
    harness.send(j=stated)
    assert send_back(harness, 0, maxReconsumeTimes=2**31 - 1).code == ResponseCode.SUCCESS
    (record,) = harness.pulled(topic, queue_id=queue_id)
    assert record.reconsume_times == then
