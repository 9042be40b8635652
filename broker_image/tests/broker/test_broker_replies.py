"""Replies: forwarding, the response to the sender, and storage."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delaymq.broker.requests.results import Deferred, RelayedRequests
from delaymq.message.properties import parse_properties
from delaymq.protocol.bodies import HeartbeatData, ProducerData
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq.protocol.headers import ReplyMessageRequestHeader
from delaymq.store.errors import StoreFullError
from delaymq_testing.broker.harness import FakeSession, Harness, send_fields

TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = {"REPLY_TO_CLIENT": "asker", "CORRELATION_ID": "id", "MSG_TYPE": "reply", "TTL": "3000"}
TAKEN, REFUSED = Command(0, flag=1), Command(1, flag=1)


def introduce(harness: Harness, client_id: str, *groups: str, port: int = 1) -> FakeSession:
    """A producer's first heartbeat."""
    session = FakeSession(port)
    body = HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group_name=each) for each in groups])
    assert harness.answer(RequestCode.HEART_BEAT, body=body.encode(), session=session).code == 0
    return session


def reply(harness: Harness, properties: dict[str, str] | None = None, body: bytes = b"yes", **fields: Any) -> Any:
    header = send_fields(TOPIC, PROPERTIES if properties is None else properties) | fields
    return harness.ask(RequestCode.SEND_REPLY_MESSAGE_V2, header, body)


def kept(harness: Harness) -> list[bytes]:
    return [record.body for record in harness.pulled(TOPIC)]


def test_reply_is_forwarded_to_the_requester_and_stored(harness: Harness) -> None:
    asker = introduce(harness, "asker", "g")
    introduce(harness, "other", "g", port=2)
    asked = reply(harness, f=1, h=7)
    assert isinstance(asked, RelayedRequests)
    [(session, question)] = asked.requests
    assert session is asker
    assert question.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    assert question.body == b"yes"
    header = ReplyMessageRequestHeader.from_fields(question.fields)
    assert (header.topic, header.queue_id, header.flag, header.sys_flag) == (TOPIC, 0, 7, 1)
    assert (header.born_host, header.store_host) == (harness.session.remote_address, harness.broker.address)
    assert header.store_timestamp == harness.clock.now_ms
    assert parse_properties(header.properties or "") == PROPERTIES | {"PUSH_REPLY_TIME": str(harness.clock.now_ms)}
    assert kept(harness) == []
    answer = asked.answer([TAKEN])
    assert isinstance(answer, Response)
    assert (answer.code, answer.fields["queueOffset"], answer.fields["MSG_REGION"]) == (0, "0", "DefaultRegion")
    [record] = harness.pulled(TOPIC)
    assert (record.body, record.flag, record.sys_flag) == (b"yes", 7, 1)
    assert answer.fields["msgId"].endswith(f"{record.physical_offset:016X}")
    assert "PUSH_REPLY_TIME" not in record.properties


def test_long_header_is_read(harness: Harness) -> None:
    introduce(harness, "asker", "g")
    names = ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp")
    short = send_fields(TOPIC, PROPERTIES)
    fields = dict(zip((*names, "flag", "properties"), [short[each] for each in "abcdefghi"], strict=True))
    assert isinstance(harness.ask(RequestCode.SEND_REPLY_MESSAGE, fields, b"yes"), RelayedRequests)


@pytest.mark.parametrize("told", [REFUSED, None])
def test_undelivered_reply_is_stored_and_reported(harness: Harness, told: Command | None) -> None:
    introduce(harness, "asker", "g")
    answer = reply(harness).answer([told])
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "push reply message to askerfail.")
    assert kept(harness) == [b"yes"]


def test_reply_without_requester_is_stored_and_reported(harness: Harness) -> None:
    gone = reply(harness)
    assert gone.remark == "push reply message fail, channel of <asker> not found."
    nobody = reply(harness, {"CORRELATION_ID": "id"}, b"whose?")
    assert nobody.remark == "reply message properties[REPLY_TO_CLIENT] is null"
    assert gone.code == nobody.code == ResponseCode.SYSTEM_ERROR
    assert kept(harness) == [b"yes", b"whose?"]


def test_replies_are_not_stored_when_disabled(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(store_reply_message_enable=False)
    introduce(harness, "asker", "g")
    answer = reply(harness).answer([TAKEN])
    assert (answer.code, answer.fields["msgId"], answer.fields["queueOffset"]) == (0, "0", "0")
    assert kept(harness) == []


def test_response_waits_for_flush_as_for_sends(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(flush_disk_type="SYNC_FLUSH")
    introduce(harness, "asker", "g")
    answer = reply(harness).answer([TAKEN])
    assert isinstance(answer, Deferred)
    # The reply has arrived whatever the disk does.
    assert answer.response.code == answer.late.code == 0


def test_invalid_reply_is_rejected_before_forwarding(harness: Harness) -> None:
    introduce(harness, "asker", "g")
    large = reply(harness, body=b"x" * (harness.broker.max_message_size + 1))
    assert large.code == ResponseCode.MESSAGE_ILLEGAL
    many = reply(harness, PROPERTIES | {"p": "x" * 32_700})
    assert many.code == ResponseCode.MESSAGE_ILLEGAL
    assert reply(harness, e=99).code == ResponseCode.SYSTEM_ERROR
    assert reply(harness, b="SCHEDULE_TOPIC_XXXX").code == ResponseCode.NO_PERMISSION
    harness.broker.writable = False
    assert reply(harness).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_forwarded_reply_succeeds_even_when_not_stored(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    introduce(harness, "asker", "g")

    def full(record: object) -> None:
        raise StoreFullError("the disk is full")

    asked = reply(harness)
    monkeypatch.setattr(harness.broker.store, "append", full)
    answer = asked.answer([TAKEN])
    assert (answer.code, answer.fields["msgId"]) == (0, "0")


def test_client_id_belongs_to_the_latest_producer(harness: Harness) -> None:
    clients = harness.broker.clients
    first = introduce(harness, "asker", "g", "h")
    second = introduce(harness, "asker", "g", port=2)
    found = clients.producer("asker")
    assert found is not None
    assert found.session is second
    clients.session_closed(second)
    found = clients.producer("asker")
    assert found is not None
    assert found.session is first
    clients.unregister(first, "asker", "g", None)
    assert clients.producer("asker") is not None
    clients.unregister(first, "asker", "h", None)
    assert clients.producer("asker") is None


def test_client_that_changes_its_id_leaves_no_state(harness: Harness) -> None:
    session = FakeSession()
    for number in range(100):
        body = HeartbeatData(client_id=f"c{number}", producer_data_set=[ProducerData(group_name="g")])
        harness.answer(RequestCode.HEART_BEAT, body=body.encode(), session=session)
    clients = harness.broker.clients
    assert clients.producer("c98") is None
    assert clients.producer("c99") is not None
    clients.session_closed(session)
    assert clients.producer("c99") is None
    assert clients._producing == {}


def test_expired_producer_gets_no_replies(harness: Harness) -> None:
    introduce(harness, "asker", "g")
    harness.clock.advance(121_000)
    harness.broker.expire_clients(harness.clock())
    assert "not found" in reply(harness).remark


def test_delayed_reply_larger_than_a_segment_is_not_stored(tmp_path: Path) -> None:
    harness = Harness(tmp_path, mapped_file_size_commit_log=4_096, message_delay_level="1s")
    for size in range(3_400, 3_900, 3):
        reply(harness, {"DELAY": "1"}, bytes(size))
    harness.clock.advance(1_000)
    while harness.broker.hand_over(harness.clock(), 64):
        pass
    assert harness.broker.delivery.counters.failed == 0
    assert kept(harness)
    harness.broker.close()
