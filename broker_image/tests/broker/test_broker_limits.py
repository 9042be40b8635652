"""Limits on everything that clients can create, and tables that cannot be written."""

import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
from delaymq.broker import topics
from delaymq.broker.groups import consumer_offsets, heartbeat_limits, queue_locks, subscription_groups
from delaymq.broker.groups.client_registry import EXPIRE_MS
from delaymq.broker.processors import admin
from delaymq.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockRequest,
    LockResponse,
    MessageQueue,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Response
from delaymq_testing.broker.harness import FakeSession, Harness, response_of, send_fields

PULL = {
    "topic": "A", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4, "commitOffset": 0,
    "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, "expressionType": "TAG",
}  # fmt: skip


def topic_fields(name: str) -> dict[str, Any]:
    """Fields of 17."""
    return {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip


def heartbeat_body(group: str) -> bytes:
    return f'{{"clientID":"c","consumerDataSet":[{{"groupName":"{group}","subscriptionDataSet":[]}}]}}'.encode()


def test_topics_are_limited_with_a_reserve_for_groups_and_administrators(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = harness.broker.topics.table
    monkeypatch.setattr(topics, "MAX_TOPICS", 40)

    def create(name: str) -> Response:
        return harness.answer(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(name))

    def heartbeat(group: str) -> Response:
        return harness.answer(RequestCode.HEART_BEAT, body=heartbeat_body(group))

    while len(table) < 32:
        assert response_of(harness.send(f"T{len(table)}")).code == ResponseCode.SUCCESS
    refused = response_of(harness.send("T32"))
    assert (refused.code, "are reserved for administrators and for groups" in str(refused.remark)) == (1, True)
    assert response_of(harness.send("T31")).code == ResponseCode.SUCCESS
    while len(table) < 38:
        assert heartbeat(f"g{len(table)}").code == ResponseCode.SUCCESS
    assert "are reserved for administrators:" in str(heartbeat("g38").remark)
    assert [create(f"A{number}").code for number in (38, 39)] == [ResponseCode.SUCCESS] * 2
    assert "already has 40 topics: delete some" in str(create("A40").remark)
    # A dead letter is stored nevertheless.
    harness.broker.delivery.on_dead_letter("%DLQ%SCHEDULE_CONSUMER")
    assert len(table) == 41


def test_topics_and_groups_are_limited_per_connection_and_account(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(auto_create_max_per_connection=3, auto_create_max_per_account=5)

    def makes(session: FakeSession, *topics: str) -> list[int]:
        return [
            response_of(harness.ask(RequestCode.SEND_MESSAGE_V2, send_fields(topic), session=session)).code
            for topic in topics
        ]

    first, second, elsewhere = FakeSession(1), FakeSession(2), FakeSession(3, "10.0.0.9")
    assert makes(first, "A", "A", "B", "C", "D", "A") == [0, 0, 0, 0, 1, 0]
    # A group and its retry topic.
    assert harness.answer(RequestCode.HEART_BEAT, body=heartbeat_body("g"), session=second).code == 0
    answer = harness.ask(RequestCode.PULL_MESSAGE, PULL | {"consumerGroup": "h"}, session=second)
    assert "[10.0.0.2] has already created 5 topics and groups" in str(answer.remark)
    assert makes(second, "E", "illegal name") == [1, 1]
    assert makes(elsewhere, "E") == [0]
    harness.broker.session_closed(first)
    assert makes(FakeSession(4), "F") == [1]


def test_groups_are_limited(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_groups, "MAX_GROUPS", 20)
    table = harness.broker.groups.table
    while len(table) < 18:
        assert harness.broker.groups.find(f"g{len(table)}") is not None
    assert harness.broker.groups.find("first") is not None
    assert harness.broker.groups.find("second") is None
    for_administrators = SubscriptionGroupConfig("third").encode()
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    assert harness.answer(code, body=for_administrators).code == ResponseCode.SUCCESS
    body = SubscriptionGroupConfig("second").encode()
    answer = harness.answer(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert (answer.code, "the broker already has 20 groups" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
    again = SubscriptionGroupConfig("first", retry_max_times=3).encode()
    assert harness.answer(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=again).code == ResponseCode.SUCCESS


def test_offsets_are_limited_in_topics_groups_and_name_length(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_offsets, "MAX_KEYS", 1)
    harness.send("Orders")

    def commit(topic: str, group: str) -> int:
        fields = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": 1}
        return harness.answer(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code

    assert commit("Orders", "g" * 1_000) == ResponseCode.SYSTEM_ERROR
    assert commit("Orders", "a") == ResponseCode.SUCCESS
    assert commit("Orders", "b") == ResponseCode.SYSTEM_ERROR
    assert commit("Orders", "a") == ResponseCode.SUCCESS
    assert harness.broker.offsets.table == {"Orders@a": {0: 1}}


def test_locks_of_all_groups_are_limited(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_locks, "MAX_LOCKS", 3)

    def lock(group: str, *queue_ids: int) -> list[int]:
        request = LockRequest(group, "c", [MessageQueue("b", queue_id, "Orders") for queue_id in queue_ids])
        answer = harness.answer(RequestCode.LOCK_BATCH_MQ, body=request.encode())
        return [queue.queue_id for queue in LockResponse.decode(answer.body).lock_ok_mq_set]

    assert lock("g", 0, 1) == [0, 1]
    assert lock("h", 0, 1) == [0]
    assert lock("g", 0, 1) == [0, 1]
    harness.clock.advance(60_001)
    harness.broker.expire_clients(harness.clock())
    assert lock("h", 0, 1, 2, 3) == [0, 1, 2]


def test_nonexistent_topics_are_not_remembered_as_deleted(harness: Harness) -> None:
    for name in ("Gone", "x" * 10_000, "illegal name"):
        harness.answer(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
    assert dict(harness.broker.store.deleted_topics) == {}


def test_remembered_deleted_topics_are_limited(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "MAX_DELETED_TOPICS", 2)

    def send_and_delete(topic: str) -> Response:
        harness.send(topic)
        return harness.answer(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})

    assert [send_and_delete(topic).code for topic in ("A", "B", "A")] == [ResponseCode.SUCCESS] * 3
    refused = send_and_delete("C")
    assert (refused.code, "2 deleted topics still have messages" in str(refused.remark)) == (1, True)
    assert set(harness.broker.store.deleted_topics) == {"A", "B"}
    assert "C" in harness.broker.topics.table


def test_names_in_locks_are_limited_in_length(harness: Harness) -> None:
    def lock(group: str, client_id: str, topic: str) -> int:
        request = LockRequest(group, client_id, [MessageQueue("b", 0, topic)])
        return harness.answer(RequestCode.LOCK_BATCH_MQ, body=request.encode()).code

    assert lock("g" * 255, "c" * 1_024, "t" * 127) == ResponseCode.SUCCESS
    assert [lock("g" * 256, "c", "t"), lock("g", "c" * 1_025, "t"), lock("g", "c", "t" * 256)] == [1, 1, 1]


def test_cost_of_client_data_equals_that_of_retained_data(harness: Harness) -> None:
    clients = harness.broker.clients
    sessions = [FakeSession(number) for number in range(3)]
    chosen = random.Random(15)

    def kept() -> int:
        cost = 0
        for group in clients.consumers.values():
            cost += heartbeat_limits.cost_of(group.name, group.subscriptions.values())
            cost += sum(heartbeat_limits.cost_of_member(client.client_id) for client in group.members.values())
        for name, members in clients.producers.items():
            cost += sum(
                sys.getsizeof(name) + heartbeat_limits.cost_of_member(client.client_id) for client in members.values()
            )
        return cost

    for _ in range(300):
        session, group = chosen.choice(sessions), chosen.choice("abc")
        step = chosen.random()
        if step < 0.1:
            harness.broker.session_closed(session)
        elif step < 0.3:
            fields = {"clientID": "c", "producerGroup": group, "consumerGroup": chosen.choice(["", group])}
            harness.answer(RequestCode.UNREGISTER_CLIENT, fields, session=session)
        elif step < 0.4:
            harness.clock.advance(chosen.choice([1, EXPIRE_MS]))
            harness.broker.expire_clients(harness.clock())
        else:
            subscriptions = [
                SubscriptionData(topic, "x" * chosen.randrange(50), sub_version=chosen.randrange(5))
                for topic in chosen.sample("TUVW", chosen.randrange(4))
            ]
            data = HeartbeatData(
                "c" * chosen.randrange(1, 300),
                [ProducerData(group)],
                [ConsumerData(group, "A", "B", "C", subscriptions)],
            )
            assert harness.answer(RequestCode.HEART_BEAT, body=data.encode(), session=session).code == 0
        assert clients.stated_bytes == kept()
    for session in sessions:
        harness.broker.session_closed(session)
    assert clients.stated_bytes == 0


def test_failed_table_write_is_reported_and_retried(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    files = harness.broker.store.config_files
    with monkeypatch.context() as context:
        context.setattr(type(files), "save", refuse)
        answer = harness.answer(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("Orders"))
        assert (answer.code, "No space left" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
        harness.broker.offsets.commit("Orders", "readers", 0, 1)
        task = harness.broker.persist_task(harness.clock())
        assert task is not None
        task.run()
        assert isinstance(task.finish(), OSError)
    task = harness.broker.persist_task(harness.clock())
    assert task is not None
    task.run()
    assert task.finish() is None
    assert files.load("topics.json", topics.parse_table).topic_config_table["Orders"].perm == 6  # type: ignore[union-attr]
    stored = files.load("consumerOffset.json", consumer_offsets.parse_table)
    assert stored is not None
    assert stored.offset_table == {"Orders@readers": {0: 1}}


def test_failed_table_writes_are_logged_once_a_minute_with_a_count(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    broker = harness.broker
    monkeypatch.setattr(type(broker.store.config_files), "save", refuse)
    for _ in range(121):
        broker.topics.dirty = True
        broker.offsets.commit("Orders", "readers", 0, 1)
        for task in (broker.persist_task(harness.clock()), broker.delivery.save_task()):
            if task is not None:
                task.run()
                assert isinstance(task.finish(), OSError)
        harness.clock.advance(1_000)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    for subject in ("topics, groups or delay settings", "offsets or clients", "delayOffset.json"):
        about = [line for line in lines if line.startswith(f"{subject} could not be written")]
        assert len(about) == 3, subject
        assert "more since the last time" in about[1]
