"""Sends against scripted brokers: retries, wire contents, and local rejections."""

import asyncio
import zlib

import pytest
from delaymq.client import (
    Client,
    ClosedError,
    Message,
    NoRouteError,
    NoSuchDelayError,
    Producer,
    ProducerOptions,
    RefusedError,
    SendError,
    SendStatus,
)
from delaymq.message.errors import IllegalMessageError
from delaymq.message.properties import parse_properties
from delaymq.protocol.batch import decode_batch
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Response
from delaymq_testing.client.fake_peer import FakeBroker, run, running, until

MESSAGE = Message(topic="T", body=b"hello")


def refusing(code: int) -> Response:
    return Response(code, "because")


def test_send_carries_the_message_and_returns_its_position() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), Producer(client, "P") as producer:
            result = await producer.send(
                Message(topic="T", body=b"hello", tags="A", keys=("x", "y"), properties={"p": "q"}, flag=3)
            )
        [(body, fields)] = broker.sent()
        assert body == b"hello"
        assert (fields["a"], fields["b"], fields["e"], fields["h"]) == ("P", "T", "0", "3")
        properties = parse_properties(fields["i"])
        assert properties == {
            "p": "q", "TAGS": "A", "KEYS": "x y", "UNIQ_KEY": result.message_id, "WAIT": "true",
        }  # fmt: skip
        assert (result.status, result.offset_message_id, result.queue_offset) == (SendStatus.OK, "AA", 7)

    run(scenario)


@pytest.mark.parametrize("code", [17, 14, 1, 16, 204, 205])
def test_retriable_errors_lead_to_another_broker(code: int) -> None:
    async def scenario() -> None:
        brokers = FakeBroker("broker-a"), FakeBroker("broker-b")
        brokers[0].scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: refusing(code)
        async with running(*brokers) as (client, _), Producer(client) as producer:
            for _ in range(2):
                result = await producer.send(MESSAGE)
                assert result.queue.broker_name == "broker-b"
        refused = [parse_properties(fields["i"])["UNIQ_KEY"] for _, fields in brokers[0].sent()]
        ids = [parse_properties(fields["i"])["UNIQ_KEY"] for _, fields in brokers[1].sent()]
        # Where the round begins is not fixed: at least one of the two began at the broker that refuses.
        assert refused
        assert set(refused) <= set(ids)
        assert len(ids) == 2

    run(scenario)


@pytest.mark.parametrize("code", [2, 13, 26, 215])
def test_other_errors_are_raised_immediately(code: int) -> None:
    async def scenario() -> None:
        brokers = FakeBroker("broker-a"), FakeBroker("broker-b")
        for broker in brokers:
            broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: refusing(code)
        async with running(*brokers) as (client, _), Producer(client) as producer:
            with pytest.raises(RefusedError, match=f"because.*{code}") as caught:
                await producer.send(MESSAGE)
        assert caught.value.code == code
        assert sum(len(broker.sent()) for broker in brokers) == 1

    run(scenario)


@pytest.mark.parametrize("code", [10, 11, 12])
def test_stored_message_without_durability_is_not_resent(code: int) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda command: Response(
            code, fields=broker.send_answer(command).fields
        )
        async with running(broker) as (client, _), Producer(client) as producer:
            assert (await producer.send(MESSAGE)).status == SendStatus(code)
        assert len(broker.sent()) == 1

    run(scenario)


def test_failure_is_final_without_retries() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: refusing(ResponseCode.SYSTEM_ERROR)
        async with running(broker) as (client, _), Producer(client, options=ProducerOptions(retries=0)) as producer:
            with pytest.raises(SendError, match="after 1 attempt"):
                await producer.send(MESSAGE)
        assert len(broker.sent()) == 1

    run(scenario)


def test_silent_broker_costs_no_more_than_the_timeout() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: None
        async with running(broker) as (client, _), Producer(client) as producer:
            loop = asyncio.get_running_loop()
            began = loop.time()
            with pytest.raises(SendError, match="did not respond"):
                await producer.send(MESSAGE, timeout_ms=300)
            assert loop.time() - began > 0.25
        assert len(broker.sent()) == 1

    run(scenario)


@pytest.mark.parametrize("is_silent", [True, False])
def test_connection_ends_with_a_timeout_in_which_the_broker_sent_nothing(is_silent: bool) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), Producer(client) as producer:
            await producer.send(MESSAGE)
            broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: None
            sending = asyncio.create_task(producer.send(MESSAGE, timeout_ms=1_300))
            while not is_silent and not sending.done():
                broker.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "G"})
                await asyncio.sleep(0.05)
            with pytest.raises(SendError, match="did not respond"):
                await sending
            broker.scripts[RequestCode.SEND_MESSAGE_V2] = broker.send_answer
            await producer.send(MESSAGE)
            assert len(broker.connections) == (2 if is_silent else 1)

    run(scenario)


def test_producer_continues_after_its_broker_returns() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), Producer(client) as producer:
            await producer.send(MESSAGE)
            await broker.stop()
            with pytest.raises(SendError):
                await producer.send(MESSAGE, timeout_ms=500)
            await broker.start()
            await producer.send(MESSAGE)
        assert len(broker.sent()) == 2

    run(scenario)


def test_cancelled_send_keeps_the_connection_usable() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: None
        async with running(broker) as (client, _), Producer(client) as producer:
            pending = asyncio.ensure_future(producer.send(MESSAGE))
            await until(lambda: len(broker.sent()) == 1)
            pending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pending
            connection = await client.network.connection(broker.address)
            assert connection.open_requests == 0
            broker.scripts[RequestCode.SEND_MESSAGE_V2] = broker.send_answer
            assert (await producer.send(MESSAGE)).status is SendStatus.OK

    run(scenario)


def test_sends_rotate_among_queues() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker, queues=4) as (client, _), Producer(client) as producer:
            for _ in range(8):
                await producer.send(MESSAGE)
        queues = [fields["e"] for _, fields in broker.sent()]
        assert sorted(queues[:4]) == ["0", "1", "2", "3"]
        assert queues[4:] == queues[:4]

    run(scenario)


def test_delay_maps_to_the_exact_level_without_timed_messages() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), Producer(client) as producer:
            await producer.send(MESSAGE, delay="5s")
            await producer.send(MESSAGE, delay="10s")
            assert len(broker.asked(RequestCode.GET_BROKER_CONFIG)) == 1
            # A level that was added meanwhile is found although the table is remembered.
            broker.settings = "messageDelayLevel=1s 5s 10s 7m\n"
            await producer.send(MESSAGE, delay="7m")
            with pytest.raises(
                NoSuchDelayError,
                match=r"broker-a does not support .* has no delay level of exactly 3s; its levels are: 1s 5s 10s 7m",
            ):
                await producer.send(MESSAGE, delay="3s")
            with pytest.raises(NoSuchDelayError, match="is not a delay"):
                await producer.send(MESSAGE, delay="soon")
        assert [parse_properties(fields["i"])["DELAY"] for _, fields in broker.sent()] == ["2", "3", "4"]

    run(scenario)


def test_bodies_above_four_kibibytes_are_compressed() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        bodies = b"x" * 4096, b"y" * 4097
        async with running(broker) as (client, _), Producer(client) as producer:
            for body in bodies:
                await producer.send(Message(topic="T", body=body))
        [plain, packed] = broker.sent()
        assert (plain[0], plain[1]["f"]) == (bodies[0], "0")
        assert (zlib.decompress(packed[0]), packed[1]["f"]) == (bodies[1], "1")

    run(scenario)


def test_unknown_topic_is_sent_by_the_template_route() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), Producer(client) as producer:
            assert len(await producer.queues("New")) == 4
            await producer.send(Message(topic="New", body=b"x"))
        assert broker.sent()[0][1]["b"] == "New"

    run(scenario)


def test_missing_template_route_error_says_what_to_do() -> None:
    async def scenario() -> None:
        async with running(FakeBroker()) as (client, name_server), Producer(client) as producer:
            del name_server.topics["TBW102"]
            with pytest.raises(NoRouteError, match="no broker serves topic New: create it"):
                await producer.send(Message(topic="New", body=b"x"))

    run(scenario)


def test_oneway_sends_are_marked_and_do_not_wait() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: None
        async with running(broker) as (client, _), Producer(client) as producer:
            unique_id = await producer.send_oneway(MESSAGE)
            await until(lambda: bool(broker.sent()))
        [command] = broker.asked(RequestCode.SEND_MESSAGE_V2)
        assert command.is_oneway
        assert parse_properties(command.fields["i"])["UNIQ_KEY"] == unique_id

    run(scenario)


def test_batch_is_one_request() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), Producer(client) as producer:
            result = await producer.send_batch([Message(topic="T", body=b"1", tags="A"), Message(topic="T", body=b"2")])
        [(body, fields)] = broker.sent()
        assert fields["m"] == "true"
        messages = decode_batch(body)
        assert [message.body for message in messages] == [b"1", b"2"]
        ids = [parse_properties(message.properties.decode())["UNIQ_KEY"] for message in messages]
        assert result.message_id == ",".join(ids)

    run(scenario)


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "at least one"),
        ([MESSAGE, Message(topic="U", body=b"")], "the same topic"),
        ([Message(topic="T", body=b"", delay_level=1)], "messages with a delay level cannot be in a batch"),
        ([Message(topic="%RETRY%G", body=b"")], "retry topic"),
        ([Message(topic="T", body=b"x" * 5_000_000)], "smaller batches"),
    ],
)
def test_invalid_batch_is_rejected_locally(messages: list[Message], why: str) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), Producer(client) as producer:
            with pytest.raises(IllegalMessageError, match=why):
                await producer.send_batch(messages)
        assert broker.sent() == []

    run(scenario)


def test_second_nameserver_is_queried_when_the_first_is_gone() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (_, name_server):
            client = Client(["127.0.0.1:1", name_server.address])
            async with client, Producer(client) as producer:
                assert (await producer.send(MESSAGE)).status is SendStatus.OK

    run(scenario)


def test_closed_producer_rejects_sends_and_has_unregistered() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _):
            producer = Producer(client, "P")
            with pytest.raises(ClosedError, match="not been started"):
                await producer.send(MESSAGE)
            await producer.start()
            await producer.send(MESSAGE)
            await producer.close()
            with pytest.raises(ClosedError):
                await producer.send(MESSAGE)
        [goodbye] = broker.asked(RequestCode.UNREGISTER_CLIENT)
        assert goodbye.fields == {"clientID": client.client_id, "producerGroup": "P"}

    run(scenario)


def test_silent_peer_costs_no_more_than_the_timeout() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.scripts[RequestCode.HEART_BEAT] = lambda _: None
        async with running(broker) as (client, _), Producer(client) as producer:
            with pytest.raises(SendError, match=r"did not respond within \d+ ms"):
                await producer.send(MESSAGE, timeout_ms=200)
        assert broker.sent() == []

    run(scenario)
