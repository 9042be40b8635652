"""Send-backs: retries that wait longer each time, and the dead letters at the end."""

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


def test_a_message_sent_back_comes_again_in_the_retry_topic_one_level_later_each_time(harness: Harness) -> None:
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


def test_the_client_may_choose_the_level(harness: Harness) -> None:
    harness.send()
    assert send_back(harness, 0, delayLevel=7).code == ResponseCode.SUCCESS
    assert len(harness.pulled(names.SCHEDULE_TOPIC, queue_id=6)) == 1


def test_a_level_above_the_table_is_clamped_for_retries_even_when_producers_are_refused(
    open_harness: Callable[..., Harness],
) -> None:
    harness = open_harness(message_delay_level="1s 2s", delay_level_overflow="reject")
    harness.send()
    assert send_back(harness, 0).code == ResponseCode.SUCCESS
    assert len(harness.pulled(names.SCHEDULE_TOPIC, queue_id=1)) == 1


def test_after_the_last_try_a_message_goes_to_the_dead_letters(harness: Harness) -> None:
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


def test_a_negative_level_or_the_client_s_own_maximum_means_dead_letter_at_once(harness: Harness) -> None:
    harness.send()
    send_back(harness, 0, delayLevel=-1)
    send_back(harness, 0, maxReconsumeTimes=0)
    assert len(harness.pulled("%DLQ%readers")) == 2


def test_a_failed_send_back_states_the_reason(open_harness: Callable[..., Harness]) -> None:
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


def test_a_group_without_retry_queues_gets_an_answer_and_stores_nothing(harness: Harness) -> None:
    harness.broker.groups.put(SubscriptionGroupConfig("readers", retry_queue_nums=0))
    harness.send()
    end = harness.broker.store.end_offset
    assert send_back(harness, 0).code == ResponseCode.SUCCESS
    assert harness.broker.store.end_offset == end


def test_a_group_with_too_long_a_retry_topic_is_rejected(harness: Harness) -> None:
    harness.send()
    answer = send_back(harness, 0, group="g" * 125)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "127" in str(answer.remark)


def test_with_synchronous_flush_a_send_back_is_acknowledged_from_the_disk(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(flush_disk_type="SYNC_FLUSH")
    harness.send()
    harness.flush()
    result = harness.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": 0, "group": "readers", "delayLevel": 0})
    assert isinstance(result, Deferred)
    assert result.until == harness.broker.store.end_offset
    assert result.late.code == ResponseCode.SYSTEM_ERROR


def test_marks_and_due_times_are_not_carried_into_a_retry(harness: Harness) -> None:
    harness.send(properties={"DELAY": "1"})
    deliver_all(harness)
    (record,) = harness.pulled()
    assert names.MARK in record.properties
    send_back(harness, record.physical_offset, delayLevel=-1)
    (dead,) = harness.pulled("%DLQ%readers")
    assert not [name for name in dead.properties if name.startswith(names.OWN_PREFIX)]


def own_retry(harness: Harness, times: int, *, max_times: int | None = None, version: int = 409) -> Response:
    """What a consumer sends itself: orderly ones at their limit, others when a send-back failed."""
    properties = {"DELAY": str(3 + times), "RETRY_TOPIC": "Orders", "UNIQ_KEY": f"U{times}"}
    header = send_fields("%RETRY%readers", properties) | {"j": times}
    if max_times is not None:
        header["l"] = max_times
    return response_of(harness.ask(RequestCode.SEND_MESSAGE_V2, header, b"own", version=version))


def test_a_consumer_s_own_send_below_the_maximum_waits_for_its_level_in_the_retry_topic(harness: Harness) -> None:
    assert own_retry(harness, 2, max_times=3).code == ResponseCode.SUCCESS
    (waiting,) = harness.pulled(names.SCHEDULE_TOPIC, queue_id=4)
    assert (waiting.properties["REAL_TOPIC"], waiting.reconsume_times) == ("%RETRY%readers", 2)


def test_a_consumer_s_own_send_at_the_maximum_is_a_dead_letter_at_once(harness: Harness) -> None:
    answer = own_retry(harness, 3, max_times=3)
    assert (answer.code, answer.fields["queueId"]) == (ResponseCode.SUCCESS, "0")
    (dead,) = harness.pulled("%DLQ%readers")
    assert (dead.body, dead.reconsume_times, dead.properties["DELAY"]) == (b"own", 3, "0")
    assert dead.properties["RETRY_TOPIC"] == "Orders"
    assert harness.broker.stats.stored["%DLQ%readers"] == 1


def test_without_a_client_s_own_maximum_the_group_s_counts_and_old_clients_state_none(harness: Harness) -> None:
    harness.broker.groups.put(SubscriptionGroupConfig("readers", retry_max_times=2))
    own_retry(harness, 1)
    own_retry(harness, 2)
    own_retry(harness, 1, max_times=1, version=120)
    own_retry(harness, 1, max_times=1, version=121)
    assert len(harness.pulled("%DLQ%readers")) == 2
    harness.send()
    assert send_back(harness, harness.pulled()[0].physical_offset, maxReconsumeTimes=0).code == ResponseCode.SUCCESS
    assert len(harness.pulled("%DLQ%readers")) == 3


def test_a_consumer_s_own_send_for_an_unknown_group_is_refused_with_26(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(auto_create_subscription_group=False)
    assert own_retry(harness, 1).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert harness.broker.store.end_offset == 0


def test_a_group_without_retry_queues_may_still_send_for_itself(harness: Harness) -> None:
    harness.broker.groups.put(SubscriptionGroupConfig("readers", retry_queue_nums=0))
    assert own_retry(harness, 1, max_times=1).code == ResponseCode.SUCCESS
    assert len(harness.pulled("%DLQ%readers")) == 1


def test_a_broker_that_may_not_be_written_to_takes_nothing_back(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(broker_permission=4)
    harness.send()
    answer = send_back(harness, 0)
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "the broker[127.0.0.1] sending message is forbidden",
    )


def test_a_retry_topic_that_may_not_be_written_to_takes_nothing_back_but_dead_letters_are_kept(
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


def test_retries_lie_only_in_queues_that_members_read(harness: Harness) -> None:
    harness.send()
    send_back(harness, 0, delayLevel=1)
    harness.broker.groups.put(SubscriptionGroupConfig("readers", retry_queue_nums=64))
    for _ in range(30):
        send_back(harness, 0, delayLevel=1)
    queues = {record.properties["REAL_QID"] for record in harness.pulled(names.SCHEDULE_TOPIC)}
    assert queues == {"0"}


def test_a_units_retry_topic_has_the_unit_flag_and_its_dead_letter_queue_has_not(harness: Harness) -> None:
    harness.send()
    send_back(harness, 0, unitMode=True)
    send_back(harness, 0, unitMode=True, delayLevel=-1)
    retry, dead = (harness.broker.topics.get(name) for name in ("%RETRY%readers", "%DLQ%readers"))
    assert retry is not None
    assert dead is not None
    assert (retry.topic_sys_flag, dead.topic_sys_flag) == (2, 0)


def test_a_retry_of_a_committed_transaction_is_no_proof_of_a_commit(harness: Harness) -> None:
    offset = _append(harness, "Orders", TRANSACTION_COMMIT | 1, prepared=12_345)
    for level in (1, -1):
        assert send_back(harness, offset, delayLevel=level).code == ResponseCode.SUCCESS
    (retry,) = harness.pulled(names.SCHEDULE_TOPIC)
    (dead,) = harness.pulled("%DLQ%readers")
    for record in (retry, dead):
        assert (record.sys_flag & TRANSACTION_MASK, record.sys_flag & 1) == (0, 1)
        assert record.prepared_transaction_offset == 0


def test_a_record_that_no_queue_names_cannot_be_sent_back(harness: Harness) -> None:
    offset = _append(harness, "Orders", TRANSACTION_PREPARED)
    answer = send_back(harness, offset, delayLevel=-1)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")


@pytest.mark.parametrize("topic", [names.HALF_TOPIC, names.OP_HALF_TOPIC, names.SCHEDULE_TOPIC, names.MARKS_TOPIC])
def test_a_message_that_no_consumer_received_cannot_be_sent_back(harness: Harness, topic: str) -> None:
    offset = _append(harness, topic, 0)
    answer = send_back(harness, offset)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")


def _append(harness: Harness, topic: str, sys_flag: int, *, prepared: int = 0) -> int:
    host = harness.broker.store_host
    record = NewRecord(topic, 0, b"b", {"UNIQ_KEY": "U"}, 0, sys_flag, 0, host, host, 0, prepared)
    return harness.broker.store.append(record).physical_offset


def test_a_retry_keeps_its_level_and_count_after_a_restart(harness: Harness) -> None:
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


def test_a_damaged_message_cannot_be_sent_back(harness: Harness) -> None:
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


def test_a_consumer_s_own_send_is_acknowledged_from_the_disk_whatever_an_earlier_retry_left_in_it(
    open_harness: Callable[..., Harness],
) -> None:
    harness = open_harness(flush_disk_type="SYNC_FLUSH")
    result = harness.send("%RETRY%readers", properties={"WAIT": "false", "DELAY": "3"}, j=1)
    assert isinstance(result, Deferred)
    assert result.until == harness.broker.store.end_offset


def test_a_retry_from_an_old_client_that_left_the_transaction_s_property_is_an_ordinary_message(
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
def test_a_number_of_tries_that_a_producer_made_up_stops_no_retry(
    harness: Harness, stated: int, topic: str, queue_id: int, then: int
) -> None:
    harness.send(j=stated)
    assert send_back(harness, 0, maxReconsumeTimes=2**31 - 1).code == ResponseCode.SUCCESS
    (record,) = harness.pulled(topic, queue_id=queue_id)
    assert record.reconsume_times == then
