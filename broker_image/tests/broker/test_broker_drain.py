"""Drains: routes, responses to sends, and what continues."""

import pytest
from delaymq.broker.admin.drain import DrainMode
from delaymq.protocol.batch import BatchMessage, encode_batch
from delaymq.protocol.bodies import RegisterBody, TopicConfig
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq_testing.broker.harness import Harness, response_of, send_fields

LEASE_MS = 30_000


def registered(harness: Harness) -> dict[str, int]:
    """Permissions by topic, as registered with NameServers."""
    body = RegisterBody.decode_request(harness.broker.register_body(), compressed=False)
    return {name: topic.perm for name, topic in body.topic_config_serialize_wrapper.topic_config_table.items()}


def send_batch(harness: Harness) -> int:
    body = encode_batch([BatchMessage(0, b"a", b""), BatchMessage(0, b"b", b"")])
    return response_of(harness.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields("Orders"), body)).code


def test_withdrawn_broker_is_read_only_in_routes_and_accepts_sends(harness: Harness) -> None:
    harness.send()
    harness.broker.topics.put(TopicConfig("WriteOnly", 1, 1, 2))
    told: list[TopicConfig] = []
    harness.broker.topics.changed = told.append
    assert harness.broker.set_drain(DrainMode.WITHDRAW, LEASE_MS)
    permissions = registered(harness)
    assert (permissions["Orders"], permissions["TBW102"], permissions["WriteOnly"]) == (4, 5, 0)
    assert {topic.topic_name for topic in told} == set(permissions)
    assert response_of(harness.send()).code == ResponseCode.SUCCESS
    assert response_of(harness.send("NewTopic")).code == ResponseCode.SUCCESS
    assert registered(harness)["NewTopic"] == 4
    assert harness.broker.topics.table["Orders"].perm == 6


def test_refusing_broker_rejects_sends_with_14_and_serves_everything_else(harness: Harness) -> None:
    harness.send()
    harness.send(properties={"DELAY": "1"})
    harness.broker.set_drain(DrainMode.REFUSE, LEASE_MS)
    assert registered(harness)["Orders"] == 4
    refused = response_of(harness.send())
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "send to another one" in str(refused.remark)
    assert send_batch(harness) == ResponseCode.SERVICE_NOT_AVAILABLE
    (record,) = harness.pulled()
    back = {"offset": record.physical_offset, "group": "readers", "delayLevel": 1}
    assert response_of(harness.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == ResponseCode.SUCCESS
    harness.clock.advance(2_000)
    assert harness.broker.hand_over(harness.clock(), 10) == 2
    assert len(harness.pulled("%RETRY%readers")) == 1
    assert len(harness.pulled()) == 2


def test_end_of_a_drain_restores_writes(harness: Harness) -> None:
    harness.send()
    harness.broker.set_drain(DrainMode.REFUSE, LEASE_MS)
    assert harness.broker.set_drain(DrainMode.NONE)
    assert registered(harness)["Orders"] == 6
    assert response_of(harness.send()).code == ResponseCode.SUCCESS


def test_renewal_extends_the_lease_without_registration(harness: Harness) -> None:
    began_ms = harness.clock()
    harness.broker.set_drain(DrainMode.WITHDRAW, LEASE_MS)
    version = harness.broker.topics.version
    harness.clock.advance(1_000)
    assert not harness.broker.set_drain(DrainMode.WITHDRAW, LEASE_MS)
    drain = harness.broker.drain
    assert (drain.since_ms, drain.lease_ends_ms) == (began_ms, began_ms + 1_000 + LEASE_MS)
    assert not harness.broker.set_drain(DrainMode.REFUSE, LEASE_MS)
    assert drain.since_ms == began_ms + 1_000
    assert harness.broker.topics.version == version


@pytest.mark.parametrize(("permission", "expected"), [(6, 4), (4, 4), (2, 0)])
def test_broker_permission_and_drain_are_combined(harness: Harness, permission: int, expected: int) -> None:
    harness.send()
    harness.broker.set_drain(DrainMode.WITHDRAW, LEASE_MS)
    harness.answer(RequestCode.UPDATE_BROKER_CONFIG, body=f"brokerPermission={permission}\n".encode())
    assert registered(harness)["Orders"] == expected


def test_drain_ends_with_the_process_and_registration_restores_permissions(harness: Harness) -> None:
    harness.send()
    harness.broker.set_drain(DrainMode.WITHDRAW, LEASE_MS)
    drained = harness.broker.topics.version
    harness.restart()
    assert registered(harness)["Orders"] == 6
    assert harness.broker.topics.version != drained


def test_producer_sends_are_counted_and_send_backs_are_not(harness: Harness) -> None:
    stats = harness.broker.stats
    assert (stats.sends, stats.last_send_ms) == (0, None)
    harness.send()
    harness.clock.advance(5)
    assert send_batch(harness) == ResponseCode.SUCCESS
    assert (stats.sends, stats.last_send_ms) == (3, harness.clock())
    harness.clock.advance(5)
    harness.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": 0, "group": "readers", "delayLevel": 1})
    harness.broker.drain.take(DrainMode.REFUSE, LEASE_MS, harness.clock())
    harness.send()
    harness.clock.advance(2_000)
    assert harness.broker.hand_over(harness.clock(), 10) == 1
    assert (stats.sends, stats.last_send_ms) == (3, harness.clock() - 2_005)
