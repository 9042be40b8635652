"""Heartbeats, members, notifications, expiry, locks, and clients remembered across restarts."""

from typing import Any

import pytest
from delaymq.broker.groups.change_notifier import MAX_NOTIFIED_AT_ONCE
from delaymq.broker.groups.client_snapshot import BELIEVED_MS, REFRESH_MS, REMEMBER_MS
from delaymq.broker.opening import open_broker
from delaymq.protocol.bodies import (
    CheckClient,
    ConsumerConnection,
    ConsumerData,
    ConsumerIds,
    GroupList,
    HeartbeatData,
    LockRequest,
    LockResponse,
    MessageQueue,
    ProducerConnection,
    ProducerData,
    ProducerTable,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Response
from delaymq_testing.broker.harness import FakeSession, Harness


def beat(
    harness: Harness,
    session: FakeSession,
    client_id: str,
    *topics: str,
    group: str = "readers",
    producer: str | None = None,
    version: int = 1,
) -> Response:
    data = HeartbeatData(
        client_id,
        producer_data_set=[ProducerData(producer)] if producer else [],
        consumer_data_set=[
            ConsumerData(
                group, subscription_data_set=[SubscriptionData(topic, "*", sub_version=version) for topic in topics]
            )
        ]
        if topics
        else [],
    )
    return harness.answer(RequestCode.HEART_BEAT, body=data.encode(), session=session, language="JAVA", version=407)


def members(harness: Harness, group: str = "readers") -> list[str]:
    answer = harness.answer(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    if answer.code == ResponseCode.SYSTEM_ERROR:
        assert "no consumer for this group" in str(answer.remark)
        return []
    return ConsumerIds.decode(answer.body).consumer_id_list


def told(session: FakeSession) -> int:
    """Number of notifications of the session since the last call."""
    for command in session.notified:
        assert command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        assert command.fields == {"consumerGroup": "readers"}
        assert command.is_oneway
    count = len(session.notified)
    session.notified.clear()
    return count


def test_heartbeat_creates_group_and_retry_topic(harness: Harness) -> None:
    session = FakeSession()
    assert beat(harness, session, "c1", "Orders").code == ResponseCode.SUCCESS
    assert session.client_id == "c1"
    assert "readers" in harness.broker.groups.table
    retry = harness.broker.topics.get("%RETRY%readers")
    assert retry is not None
    assert (retry.read_queue_nums, retry.perm) == (1, 6)
    assert members(harness) == ["c1"]


def test_members_are_notified_of_joins_leaves_and_subscription_changes(harness: Harness) -> None:
    first, second = FakeSession(1), FakeSession(2)
    beat(harness, first, "c1", "Orders")
    assert told(first) == 1
    beat(harness, first, "c1", "Orders")
    assert told(first) == 0
    beat(harness, second, "c2", "Orders")
    assert (told(first), told(second)) == (1, 1)
    assert members(harness) == ["c1", "c2"]
    beat(harness, second, "c2", "Orders", "Refunds")
    assert (told(first), told(second)) == (1, 1)
    beat(harness, second, "c2", "Orders", "Refunds", version=2)
    assert (told(first), told(second)) == (0, 0), "a newer version of a subscription changes no member's share"
    harness.answer(RequestCode.UNREGISTER_CLIENT, {"clientID": "c2", "consumerGroup": "readers"}, session=second)
    assert (told(first), told(second)) == (1, 0)
    assert members(harness) == ["c1"]


def test_members_of_a_large_group_get_one_notification_per_round(harness: Harness) -> None:
    sessions = [FakeSession(port) for port in range(1, MAX_NOTIFIED_AT_ONCE + 40)]
    for number, session in enumerate(sessions):
        beat(harness, session, f"c{number}", "Orders")
    clients = harness.broker.clients
    for session in sessions:
        told(session)
    clients.notify_members(10)
    assert sum(map(told, sessions)) == 10
    # A member that leaves meanwhile is not notified any more; the others are notified in the next round.
    harness.broker.session_closed(sessions.pop())
    clients.notify_members(1_000)
    clients.notify_members(1_000)
    assert [told(session) for session in sessions] == [1] * 10 + [2] * (len(sessions) - 10)
    clients.notify_members(1_000)
    assert sum(map(told, sessions)) == 0
    harness.broker.session_closed(sessions.pop())
    clients.notify_members(1_000)
    assert [told(session) for session in sessions] == [1] * len(sessions)


def test_closed_connection_leaves_its_groups_and_the_last_one_removes_them(harness: Harness) -> None:
    first, second = FakeSession(1), FakeSession(2)
    beat(harness, first, "c1", "Orders", producer="writers")
    beat(harness, second, "c2", "Orders")
    told(second)
    harness.broker.session_closed(first)
    assert told(second) == 1
    assert members(harness) == ["c2"]
    assert harness.broker.clients.producers == {}
    harness.broker.session_closed(second)
    assert members(harness) == []


def test_groups_that_disable_notifications_get_none(harness: Harness) -> None:
    session = FakeSession()
    harness.broker.groups.put(SubscriptionGroupConfig("readers", notify_consumer_ids_changed_enable=False))
    beat(harness, session, "c1", "Orders")
    assert told(session) == 0


def test_client_without_heartbeat_for_two_minutes_expires(harness: Harness) -> None:
    silent, lively = FakeSession(1), FakeSession(2)
    beat(harness, silent, "c1", "Orders", producer="writers")
    beat(harness, lively, "c2", "Orders")
    harness.clock.advance(100_000)
    beat(harness, lively, "c2", "Orders")
    harness.clock.advance(20_000)
    assert harness.broker.expire_clients(harness.clock()) == []
    harness.clock.advance(1)
    told(lively)
    assert harness.broker.expire_clients(harness.clock()) == [silent]
    assert told(lively) == 1
    assert members(harness) == ["c2"]
    assert harness.broker.clients.producers == {}
    harness.broker.session_closed(silent)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"clientID":""}', b'{"clientID":"' + b"x" * 2_000 + b'"}'])
def test_heartbeat_without_client_id_is_rejected(harness: Harness, body: bytes) -> None:
    assert harness.answer(RequestCode.HEART_BEAT, body=body).code == ResponseCode.SYSTEM_ERROR


def test_groups_with_illegal_names_are_not_registered(harness: Harness) -> None:
    assert beat(harness, FakeSession(), "c1", "Orders", group="bad group").code == ResponseCode.SUCCESS
    assert members(harness, "bad group") == []
    assert "%RETRY%bad group" not in harness.broker.topics.table


def test_restarted_broker_expects_its_last_clients_for_40_seconds(harness: Harness) -> None:
    first, second = FakeSession(1), FakeSession(2)
    beat(harness, first, "c1", "Orders", version=3)
    beat(harness, second, "c2", "Orders", version=3)
    harness.send(body=b"x")
    harness.broker.freeze()
    harness.broker.session_closed(first)
    harness.broker.session_closed(second)
    harness.restart()
    assert members(harness) == ["c1", "c2"]
    assert [record.body for record in harness.pulled(sysFlag=0, subVersion=3)] == [b"x"]
    again = FakeSession(3)
    beat(harness, again, "c1", "Orders", version=3)
    assert told(again) == 1
    assert members(harness) == ["c1", "c2"]
    harness.clock.advance(REMEMBER_MS - 1)
    harness.broker.expire_clients(harness.clock())
    assert members(harness) == ["c1", "c2"]
    harness.clock.advance(1)
    harness.broker.expire_clients(harness.clock())
    assert members(harness) == ["c1"]
    assert told(again) == 1, "the queues of the client that did not come back are free"


def test_crashed_broker_remembers_the_clients_it_wrote(harness: Harness) -> None:
    beat(harness, FakeSession(), "c1", "Orders")
    task = harness.broker.persist_task(harness.clock())
    assert task is not None
    task.run()
    assert task.finish() is None
    assert harness.broker.persist_task(harness.clock()) is None
    stored = harness.broker.store.own_files.load("clients.json", bytes)
    assert stored is not None
    assert b'"clientIds":["c1"]' in stored


def test_clients_are_forgotten_after_a_long_pause(harness: Harness) -> None:
    beat(harness, FakeSession(), "c1", "Orders")
    harness.broker.freeze()
    harness.broker.close()
    harness.clock.advance(BELIEVED_MS + 1)
    harness.broker = open_broker(harness.config, harness.clock)
    assert members(harness) == []


def test_remembered_clients_are_refreshed_while_consumers_exist(harness: Harness) -> None:
    beat(harness, FakeSession(), "c1", "Orders")
    assert harness.broker.persist_task(harness.clock()) is not None
    harness.clock.advance(REFRESH_MS - 1)
    assert harness.broker.persist_task(harness.clock()) is None
    harness.clock.advance(1)
    assert harness.broker.persist_task(harness.clock()) is not None


def test_client_that_leaves_before_its_first_heartbeat_is_not_expected(harness: Harness) -> None:
    beat(harness, FakeSession(), "c1", "Orders")
    harness.broker.freeze()
    harness.restart()
    harness.answer(RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "readers"}, session=FakeSession())
    assert members(harness) == []


def queues(*ids: int) -> list[MessageQueue]:
    return [MessageQueue("broker-a", queue_id, "Orders") for queue_id in ids]


def lock(harness: Harness, client_id: str, *ids: int) -> list[int]:
    body = LockRequest("readers", client_id, queues(*ids)).encode()
    answer = harness.answer(RequestCode.LOCK_BATCH_MQ, body=body)
    return [queue.queue_id for queue in LockResponse.decode(answer.body).lock_ok_mq_set]


def test_queue_lock_is_exclusive_until_released_or_expired(harness: Harness) -> None:
    assert lock(harness, "c1", 0, 1) == [0, 1]
    assert lock(harness, "c2", 1, 2) == [2]
    harness.clock.advance(60_000)
    assert lock(harness, "c1", 0) == [0]
    harness.clock.advance(1)
    assert lock(harness, "c2", 0, 1) == [1]
    body = LockRequest("readers", "c2", queues(0, 1)).encode()
    assert harness.answer(RequestCode.UNLOCK_BATCH_MQ, body=body).code == ResponseCode.SUCCESS
    assert lock(harness, "c1", 1) == [1]
    assert lock(harness, "c2", 0) == []
    harness.clock.advance(60_001)
    harness.broker.expire_clients(harness.clock())
    assert lock(harness, "c2", 0) == [0]


def test_administrators_can_list_connected_clients(harness: Harness) -> None:
    session = FakeSession(4_711)
    beat(harness, session, "c1", "Orders", producer="writers")
    consumers = ConsumerConnection.decode(
        harness.answer(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "readers"}).body
    )
    (connection,) = consumers.connection_set
    assert (connection.client_id, connection.client_addr) == ("c1", "10.0.0.2:4711")
    assert (connection.language, connection.version) == ("JAVA", 407)
    assert consumers.subscription_table["Orders"].sub_string == "*"
    assert consumers.message_model == "CLUSTERING"
    producers = ProducerConnection.decode(
        harness.answer(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "writers"}).body
    )
    assert [each.client_id for each in producers.connection_set] == ["c1"]
    table = ProducerTable.decode(harness.answer(RequestCode.GET_ALL_PRODUCER_INFO).body).data
    assert [(each.client_id, each.remote_ip) for each in table["writers"]] == [("c1", "10.0.0.2")]
    listed = harness.answer(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "Orders"})
    assert GroupList.decode(listed.body).group_list == ["readers"]


@pytest.mark.parametrize(
    ("code", "fields", "answer"),
    [
        (RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "none"}, ResponseCode.CONSUMER_NOT_ONLINE),
        (RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "none"}, ResponseCode.SYSTEM_ERROR),
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_queries_about_unknown_groups_return_an_error(
    harness: Harness, code: int, fields: dict[str, Any], answer: int
) -> None:
    assert harness.answer(code, fields).code == answer


@pytest.mark.parametrize(
    ("kind", "expression", "code"),
    [
        ("TAG", "A || B", ResponseCode.SUCCESS),
        ("TAG", "||", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("SQL92", "a > 1", ResponseCode.SYSTEM_ERROR),
    ],
)
def test_subscription_can_be_checked_before_use(harness: Harness, kind: str, expression: str, code: int) -> None:
    body = CheckClient("c1", "readers", SubscriptionData("Orders", expression, expression_type=kind)).encode()
    assert harness.answer(RequestCode.CHECK_CLIENT_CONFIG, body=body).code == code


def test_member_list_follows_joins_leaves_and_changed_ids(harness: Harness) -> None:
    sessions = [FakeSession(port) for port in (1, 2, 3)]
    for number, session in enumerate(sessions):
        beat(harness, session, f"c{number}", "Orders")
        assert members(harness) == [f"c{each}" for each in range(number + 1)]
    beat(harness, sessions[1], "another", "Orders")
    assert members(harness) == ["another", "c0", "c2"]
    harness.broker.session_closed(sessions[0])
    assert members(harness) == ["another", "c2"]
    assert members(harness) == ["another", "c2"]
