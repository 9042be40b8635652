"""Retries and dead letters in all variants: sent back, sent by the consumer itself, ordered, across a restart."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from harness.brokers import Cluster
from harness.clients import Producer, PullConsumer, Sent, Workbench
from harness.driver import ClientError, Received

FIRST = {"from": "CONSUME_FROM_FIRST_OFFSET"}
SUCCESS, SYSTEM_ERROR, NO_PERMISSION, GROUP_MISSING = 0, 1, 16, 26


def own_send(clients: Workbench, group: str, body: str, **fields: Any) -> Sent:
    """Send a message to the group's retry topic, as a consumer does itself."""
    producer = clients.producer
    fields = {"delayLevel": 1, "originTopic": "Orders", "reconsumeTimes": "1", **fields}
    answer = producer.call("retries.sendOwn", group=group, body=body, **fields)
    return Sent.from_json(answer)


def back(consumer: PullConsumer, clients: Workbench, group: str, offset: int, **fields: Any) -> tuple[int, str | None]:
    """Send a message back; return code and remark of the response."""
    request = {"address": clients.broker_address, "delayLevel": 0, **fields}
    answer = consumer.call("retries.sendBack", group=group, offset=offset, **request)
    return answer["code"], answer["remark"]


def dead_letters(clients: Workbench, group: str, reader: PullConsumer, count: int) -> list[Received]:
    """Wait for the group's first dead letters and return them."""
    topic = f"%DLQ%{group}"
    clients.wait_for_route(topic)
    deadline = time.monotonic() + 30
    while True:
        found = reader.pull(topic, 0, 0).messages
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline, f"{len(found)} of {count} dead letters"
        time.sleep(0.1)


def stored(clients: Workbench) -> tuple[Sent, PullConsumer, str]:
    """Return a message, a consumer, and its group, registered by a push consumer."""
    topic, group = clients.topic(queues=1), clients.group()
    clients.stop(clients.push(topic, group=group))
    sent = clients.producer.send(topic, "bad", keys="k")
    return sent, clients.pull(group=group), group


def offset_of(sent: Sent) -> int:
    return int(sent.offset_message_id[-16:], 16)


def test_consumer_own_retry_send_is_redelivered_and_becomes_dead_letter_at_maximum(clients: Workbench) -> None:
    topic, group = clients.topic(queues=1), clients.group(retry_topic=True)
    consumer = clients.push(topic, group=group, **FIRST)
    own_send(clients, group, "again", reconsumeTimes="1", maxReconsumeTimes="2")
    sent = own_send(clients, group, "dead", reconsumeTimes="2", maxReconsumeTimes="2")
    assert (sent.status, sent.queue_id) == ("SEND_OK", 0)
    (again,) = consumer.inbox.wait_count(1)
    # The client shows the original topic.
    assert (again.body, again.reconsume_times, again.topic) == (b"again", 1, "Orders")
    (dead,) = dead_letters(clients, group, clients.pull(group=clients.group()), 1)
    assert (dead.body, dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (b"dead", 2, "Orders")
    assert len(consumer.inbox.messages()) == 1


def test_maximum_of_the_group_applies_if_the_client_sends_none(clients: Workbench) -> None:
    _, reader, group = stored(clients)
    clients.mqadmin("updateSubGroup", "-b", clients.broker_address, "-g", group, "-r", "2")
    own_send(clients, group, "below", reconsumeTimes="1")
    own_send(clients, group, "at", reconsumeTimes="2")
    assert [dead.body for dead in dead_letters(clients, group, reader, 1)] == [b"at"]


def test_consumer_own_retry_send_for_unknown_group_is_rejected(
    strict_cluster: Cluster, new_workbench: Callable[[Cluster], Workbench]
) -> None:
    clients = new_workbench(strict_cluster)
    clients.admin.update_topic("%RETRY%nobody", broker=clients.broker_address, queues=1)
    clients.wait_for_route("%RETRY%nobody")
    producer = clients.new_producer(retries=0)
    with pytest.raises(ClientError) as refused:
        _send_own_by(producer, "nobody")
    assert refused.value.code == GROUP_MISSING


def _send_own_by(producer: Producer, group: str) -> None:
    fields = {"group": group, "body": "x", "reconsumeTimes": "1", "delayLevel": 1, "originTopic": "Orders"}
    producer.call("retries.sendOwn", **fields)


def all_of(consumer: PullConsumer, topic: str, queue_id: int) -> list[Received]:
    """Return all messages of a queue: it contains those of other tests too, and a pull returns at most 32."""
    pulled = consumer.pull(topic, queue_id, 0)
    found = pulled.messages
    while pulled.next_begin_offset < pulled.max_offset:
        pulled = consumer.pull(topic, queue_id, pulled.next_begin_offset)
        found = found + pulled.messages
    return found


def test_retry_level_comes_from_client_or_count_and_is_clamped_to_the_highest(
    clients: Workbench,
) -> None:
    sent, consumer, group = stored(clients)
    for level in (0, 2, 18):
        assert back(consumer, clients, group, offset_of(sent), delayLevel=level) == (SUCCESS, None)
    # These tests use a table of eight levels.
    waiting = clients.pull(group=clients.group())
    for level in (3, 2, 8):
        mine = [
            message
            for message in all_of(waiting, "SCHEDULE_TOPIC_XXXX", level - 1)
            if message.properties["REAL_TOPIC"] == f"%RETRY%{group}"
        ]
        assert [(message.body, message.reconsume_times) for message in mine] == [(b"bad", 1)], level


def test_negative_level_or_reached_maximum_makes_a_dead_letter_immediately(clients: Workbench) -> None:
    sent, consumer, group = stored(clients)
    assert back(consumer, clients, group, offset_of(sent), delayLevel=-1) == (SUCCESS, None)
    assert back(consumer, clients, group, offset_of(sent), maxReconsumeTimes=0) == (SUCCESS, None)
    dead = dead_letters(clients, group, clients.pull(group=clients.group()), 2)
    assert [message.reconsume_times for message in dead] == [1, 1]
    assert {message.properties["ORIGIN_MESSAGE_ID"] for message in dead} == {sent.offset_message_id}
    assert {message.properties["DELAY"] for message in dead} == {"0"}


def test_group_without_retry_queues_discards_send_backs(clients: Workbench) -> None:
    sent, consumer, group = stored(clients)
    clients.mqadmin("updateSubGroup", "-b", clients.broker_address, "-g", group, "-q", "0")
    assert back(consumer, clients, group, offset_of(sent), delayLevel=-1) == (SUCCESS, None)
    # The group has queues again, and the next dead letter is its first.
    clients.mqadmin("updateSubGroup", "-b", clients.broker_address, "-g", group, "-q", "1")
    assert back(consumer, clients, group, offset_of(sent), delayLevel=-1) == (SUCCESS, None)
    reader = clients.pull(group=clients.group())
    dead_letters(clients, group, reader, 1)
    assert reader.pull(f"%DLQ%{group}", 0, 0).max_offset == 1


def test_send_backs_that_cannot_be_executed_return_error_codes(
    strict_cluster: Cluster, new_workbench: Callable[[Cluster], Workbench]
) -> None:
    clients = new_workbench(strict_cluster)
    consumer = clients.pull(group=clients.group())
    code, remark = back(consumer, clients, "nobody", 0)
    assert (code, "subscription group" in str(remark)) == (GROUP_MISSING, True)


def test_missing_message_cannot_be_sent_back(clients: Workbench) -> None:
    _, consumer, group = stored(clients)
    gone = 1 << 40
    assert back(consumer, clients, group, gone) == (SYSTEM_ERROR, f"look message by offset failed, {gone}")


def test_send_back_is_rejected_if_retry_topic_has_no_write_permission(clients: Workbench) -> None:
    sent, consumer, group = stored(clients)
    assert back(consumer, clients, group, offset_of(sent)) == (SUCCESS, None)
    clients.admin.update_topic(f"%RETRY%{group}", broker=clients.broker_address, queues=1, permission=4)
    remark = f"the topic[%RETRY%{group}] sending message is forbidden"
    assert back(consumer, clients, group, offset_of(sent)) == (NO_PERMISSION, remark)


def test_dead_letters_are_stored_without_topic_permission_and_read_once_permitted(clients: Workbench) -> None:
    sent, consumer, group = stored(clients)
    topic = f"%DLQ%{group}"
    clients.admin.update_topic(topic, broker=clients.broker_address, queues=1, permission=2)
    assert back(consumer, clients, group, offset_of(sent), delayLevel=-1) == (SUCCESS, None)
    reader = clients.pull(group=clients.group())
    with pytest.raises(ClientError) as refused:
        reader.pull(topic, 0, 0)
    # The client itself reports it if the route has no readable queue, otherwise the broker does.
    assert refused.value.code in (NO_PERMISSION, None)
    clients.admin.update_topic(topic, broker=clients.broker_address, queues=1, permission=6)
    (dead,) = dead_letters(clients, group, clients.pull(group=clients.group()), 1)
    assert dead.body == b"bad"


def test_send_backs_need_broker_write_permission_and_survive_a_restart(
    new_cluster: Callable[..., Cluster], new_workbench: Callable[[Cluster], Workbench]
) -> None:
    with new_cluster() as cluster:
        clients = new_workbench(cluster)
        sent, consumer, group = stored(clients)
        clients.mqadmin("updateBrokerConfig", "-b", clients.broker_address, "-k", "brokerPermission", "-v", "4")
        assert back(consumer, clients, group, offset_of(sent)) == (
            NO_PERMISSION,
            "the broker[127.0.0.1] sending message is forbidden",
        )
        clients.mqadmin("updateBrokerConfig", "-b", clients.broker_address, "-k", "brokerPermission", "-v", "6")
        # Send-backs from before a restart are delivered after it, once each.
        assert back(consumer, clients, group, offset_of(sent), delayLevel=5) == (SUCCESS, None)
        consumer.stop()  # as a member it would keep its assigned queues
        cluster.restart(clean=True)
        again = clients.push(sent.topic, group=group, **FIRST)
        seen = sorted((m.reconsume_times, m.body) for m in again.inbox.wait_count(2))
        assert seen == [(0, b"bad"), (1, b"bad")]


def test_orderly_consumer_sends_message_at_maximum_to_dead_letter_topic_and_continues(
    clients: Workbench,
) -> None:
    topic, group = clients.topic(queues=1), clients.group(retry_topic=True)
    options: dict[str, Any] = {"orderly": True, "failTimes": 99, "suspendMs": 50, "maxReconsumeTimes": 2}
    consumer = clients.push(topic, group=group, **options, **FIRST)
    for body in ("first", "second"):
        clients.producer.send(topic, body)
    seen = consumer.inbox.wait_count(6)
    assert [(m.body, m.reconsume_times) for m in seen] == [
        (body, times) for body in (b"first", b"second") for times in (0, 1, 2)
    ]
    dead = dead_letters(clients, group, clients.pull(group=clients.group()), 2)
    assert [message.body for message in dead] == [b"first", b"second"]
    assert {message.properties["RETRY_TOPIC"] for message in dead} == {topic}


def test_suspended_queue_of_orderly_consumer_does_not_block_other_queues(clients: Workbench) -> None:
    topic = clients.topic(queues=2)
    options: dict[str, Any] = {"orderly": True, "failTimes": 3, "suspendMs": 300}
    consumer = clients.push(topic, group=clients.group(), **options, **FIRST)
    for queue_id in (0, 1):
        for number in range(2):
            clients.producer.send(topic, f"{queue_id}-{number}", queue_id=queue_id)
    seen = consumer.inbox.wait_count(16)
    for queue_id in (0, 1):
        mine = [(m.body.decode(), m.reconsume_times) for m in seen if m.queue_id == queue_id]
        assert mine == [(f"{queue_id}-{number}", times) for number in range(2) for times in range(4)]


def test_suspended_consumer_receives_nothing_until_resumed(clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    for orderly in (False, True):
        consumer = clients.push(topic, group=clients.group(), orderly=orderly, **FIRST)
        before = len(consumer.inbox.wait_count(2 * orderly)) if orderly else 0
        clients.producer.send(topic, "before")
        consumer.inbox.wait_count(before + 1)
        consumer.call("push.suspend")
        # The pull in progress may still return one message; further pulls wait.
        clients.producer.send(topic, "between")
        time.sleep(1.5)
        between = len(consumer.inbox.messages())
        assert between <= before + 2
        consumer.call("push.resume")
        bodies = [m.body for m in consumer.inbox.wait_count(before + 2)]
        assert bodies[-2:] == [b"before", b"between"]
        clients.stop(consumer)
