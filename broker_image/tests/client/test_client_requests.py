"""Request-reply of producers against a scripted broker: timely, late, duplicate and missing replies."""

import asyncio
import zlib

import pytest
from delaymq.client import (
    ClientError,
    ClosedError,
    Message,
    NoReplyError,
    Producer,
    ProducerOptions,
    ReceivedMessage,
    SendError,
    reply_to,
)
from delaymq.client.core import replies
from delaymq.message.properties import format_properties, parse_properties
from delaymq.protocol.bodies import HeartbeatData, MessageQueue
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response
from delaymq_testing.client.fake_peer import FakeBroker, run, running, until

QUESTION = Message(topic="T", body=b"?")


def pushed(correlation_id: str) -> dict[str, str]:
    """The fields of a reply that the broker forwards to the requester."""
    properties = format_properties({"CORRELATION_ID": correlation_id, "UNIQ_KEY": "R1", "MSG_TYPE": "reply"})
    return {
        "producerGroup": "g", "topic": "C_REPLY_TOPIC", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
        "queueId": "0", "sysFlag": "0", "bornTimestamp": "5", "flag": "3", "bornHost": "127.0.0.1:1",
        "storeHost": "127.0.0.1:2", "storeTimestamp": "6", "properties": properties,
    }  # fmt: skip


def asked(broker: FakeBroker, number: int = -1) -> dict[str, str]:
    """The properties of a request that was sent."""
    return parse_properties(broker.sent()[number][1]["i"])


def request_message(**properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic="T", body=b"?", queue=MessageQueue("b", 0, "T"), queue_offset=0, physical_offset=0, message_id="M",
        offset_message_id="O", properties=properties, born_timestamp_ms=0, store_timestamp_ms=0, reconsume_times=0,
    )  # fmt: skip


def test_first_reply_counts_and_others_are_dropped() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), Producer(client) as producer:
            asking = asyncio.ensure_future(producer.request(QUESTION, 15_000))
            await until(lambda: bool(broker.sent()))
            properties = asked(broker)
            assert properties["REPLY_TO_CLIENT"] == client.client_id
            assert properties["TTL"] == "15000"
            fields = pushed(properties["CORRELATION_ID"]) | {"sysFlag": "1"}
            answers = [
                await broker.ask(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, zlib.compress(body))
                for body in (b"first", b"second")
            ]
            assert [answer.code for answer in answers] == [0, 0]
            reply = await asking
            assert (reply.body, reply.topic, reply.flag, reply.message_id) == (b"first", "C_REPLY_TOPIC", 3, "R1")
            assert (reply.born_timestamp_ms, reply.store_timestamp_ms) == (5, 6)
            assert len(client.requests) == 0

    run(scenario)


def test_brokers_know_the_producer_before_the_first_request() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _):
            # Connected already, by one that said nothing of the second group.
            async with Producer(client, "first") as first:
                await first.send(QUESTION)
                async with Producer(client, "second") as second:
                    with pytest.raises(NoReplyError):
                        await second.request(QUESTION, 50)
            before = broker.requests.index(broker.asked(RequestCode.SEND_MESSAGE_V2)[1])
            beats = [each for each in broker.requests[:before] if each.code == RequestCode.HEART_BEAT]
            groups = {each.group_name for each in HeartbeatData.decode(beats[-1].body).producer_data_set}
            assert groups == {"first", "second"}

    run(scenario)


def test_request_without_a_reply_times_out_without_leaks() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), Producer(client) as producer:
            await producer.queues("T")
            await client.heartbeat_to([broker.address])  # connecting takes its time, which is not the reply's
            with pytest.raises(NoReplyError, match="no reply arrived within 1000 ms"):
                await producer.request(QUESTION, 1_000)
            cancelled = asyncio.ensure_future(producer.request(QUESTION, 15_000))
            await until(lambda: len(broker.sent()) == 2)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            assert len(client.requests) == 0
            late = await broker.ask(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed(asked(broker)["CORRELATION_ID"]))
            assert late.code == ResponseCode.SUCCESS
            with pytest.raises(ValueError, match="must be positive"):
                await producer.request(QUESTION, 0)

    run(scenario)


def test_reply_counts_despite_a_lost_send_response() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda command: None
        options = ProducerOptions(send_timeout_ms=2_000)
        async with running(broker) as (client, _), Producer(client, options=options) as producer:
            asking = asyncio.ensure_future(producer.request(QUESTION, 15_000))
            await until(lambda: bool(broker.sent()))
            await broker.ask(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed(asked(broker)["CORRELATION_ID"]), b"yes")
            assert (await asking).body == b"yes"
            with pytest.raises(SendError):
                await producer.request(QUESTION, 15_000)

    run(scenario)


def test_pending_requests_are_limited_and_end_with_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "MAX_OPEN_REQUESTS", 2)

    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), Producer(client) as producer:
            open_ones = [asyncio.ensure_future(producer.request(QUESTION, 15_000)) for _ in range(2)]
            await until(lambda: len(broker.sent()) == 2)
            with pytest.raises(ClientError, match="2 requests of this client are waiting for replies"):
                await producer.request(QUESTION, 15_000)
            await client.close()
            for each in open_ones:
                with pytest.raises(ClosedError, match="while the request waited"):
                    await each

    run(scenario)


def test_unreadable_reply_is_rejected_without_harm() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), Producer(client) as producer:
            asking = asyncio.ensure_future(producer.request(QUESTION, 15_000))
            await until(lambda: bool(broker.sent()))
            fields = pushed(asked(broker)["CORRELATION_ID"])
            for bad in ({}, fields | {"queueId": "x"}, fields | {"storeTimestamp": "1" * 99}):
                answer = await broker.ask(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, bad)
                assert answer.code == ResponseCode.SYSTEM_ERROR
            # A body that claims to be compressed and is not arrives unchanged.
            await broker.ask(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields | {"sysFlag": "1"}, b"plain")
            assert (await asking).body == b"plain"

    run(scenario)


def test_reply_is_marked_and_not_sent_twice_to_the_same_broker() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        gone = Response(ResponseCode.SYSTEM_ERROR, "push reply message fail, channel of <x> not found.")
        broker.scripts[RequestCode.SEND_REPLY_MESSAGE_V2] = lambda command: gone
        async with running(broker) as (client, name_server), Producer(client) as producer:
            name_server.topics["C_REPLY_TOPIC"] = 1
            request = request_message(CLUSTER="C", CORRELATION_ID="id", REPLY_TO_CLIENT="x", TTL="9")
            with pytest.raises(SendError, match="after 1 attempt"):
                await producer.reply(request, b"!")
            [sent] = broker.asked(RequestCode.SEND_REPLY_MESSAGE_V2)
            assert (sent.body, sent.fields["b"]) == (b"!", "C_REPLY_TOPIC")
            properties = parse_properties(sent.fields["i"])
            assert {name: properties[name] for name in ("MSG_TYPE", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")} == {
                "MSG_TYPE": "reply", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "x", "TTL": "9",
            }  # fmt: skip

    run(scenario)


def test_reply_that_one_broker_cannot_forward_goes_to_another() -> None:
    async def scenario() -> None:
        brokers = FakeBroker("broker-a"), FakeBroker("broker-b")
        refused: list[str] = []

        def answer(broker: FakeBroker, command: Command) -> Response:
            if not refused:
                refused.append(broker.name)
                return Response(ResponseCode.SYSTEM_ERROR, "push reply message fail, channel of <x> not found.")
            return broker.send_answer(command)

        for each in brokers:
            each.scripts[RequestCode.SEND_REPLY_MESSAGE_V2] = lambda command, each=each: answer(each, command)
        async with running(*brokers) as (client, name_server), Producer(client) as producer:
            name_server.topics["C_REPLY_TOPIC"] = 1
            request = request_message(CLUSTER="C", CORRELATION_ID="id", REPLY_TO_CLIENT="x")
            result = await producer.reply(request, b"!")
            assert result.queue.broker_name != refused[0]

    run(scenario)


@pytest.mark.parametrize("missing", ["CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT"])
def test_ordinary_message_cannot_be_replied_to(missing: str) -> None:
    properties = {"CLUSTER": "C", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "x"}
    assert reply_to(request_message(**properties), b"!").topic == "C_REPLY_TOPIC"
    del properties[missing]
    with pytest.raises(ValueError, match=f"is not a request, since it has no property {missing}:"):
        reply_to(request_message(**properties), b"!")
