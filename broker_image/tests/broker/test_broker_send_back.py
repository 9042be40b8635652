"""Send-backs: retries that wait longer each time, and the dead letters at the end."""

from collections.abc import Callable
from typing import Any

from broker_harness import Harness, response_of
from delaymq.broker.results import Deferred
from delaymq.message import names
from delaymq.message.ids import offset_message_id
from delaymq.protocol.bodies import SubscriptionGroupConfig
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Response


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


def test_a_send_back_that_cannot_be_done_says_why(open_harness: Callable[..., Harness]) -> None:
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


def test_a_group_whose_retry_topic_would_be_too_long_is_told_so(harness: Harness) -> None:
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
