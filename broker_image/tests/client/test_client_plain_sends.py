"""Plain sends have the requests, results, attempts and errors of the usual path."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from delaymq.client import (
    Client,
    ClientError,
    Credentials,
    Message,
    Producer,
    ProducerOptions,
    SendError,
    SendResult,
)
from delaymq.client.core.routes import QueueRound
from delaymq.client.producer import plain_sends
from delaymq.client.producer.plain_sends import batch_request, plain_request
from delaymq.client.sending import requests
from delaymq.client.sending.outgoing import Outgoing
from delaymq.client.sending.properties import plain_text
from delaymq.client.sending.requests import send_result
from delaymq.message.errors import IllegalMessageError
from delaymq.protocol.batch import decode_batch
from delaymq.protocol.bodies import MessageQueue
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, Response, decode_command, encode_command
from delaymq_testing.client.fake_peer import FakeBroker, run, running, until
from delaymq_testing.repetitions import SEED

MESSAGE = Message(topic="T", body=b"hello")
ANSWERS = 400
"""Responses of random content."""
LIVES = 5
"""Random sequences of responses for each combination of options."""
FIELDS = {"msgId": "0A", "queueId": "3", "queueOffset": "7", "MSG_REGION": "north", "TRACE_ON": "true"}
UNUSUAL = (None, "", "0", "3", "03", " 3", "-1", "1.5", "٣", "true", "false", "999999999999999999", "9" * 19, "9" * 30)


@pytest.mark.parametrize(
    ("group", "topic", "broker", "queue_id"),
    [
        ("G", "T", "broker-a", 0), ("%g|_-", "%RETRY%x", 'größe "\\<id><born> 1234567890', 2**31 - 1),
        ("g" * 255, "t" * 127, "", 7),
    ],
)  # fmt: skip
def test_frame_is_that_of_the_usual_request(
    monkeypatch: pytest.MonkeyPatch, group: str, topic: str, broker: str, queue_id: int
) -> None:
    born_ms = 1_700_000_000_123
    monkeypatch.setattr(requests, "now_ms", lambda: born_ms)
    queue, body, message_id = MessageQueue(broker, queue_id, topic), b"\x00body", "7F" * 16
    text = plain_text(Message(topic=topic, body=body), message_id)
    command = Outgoing(topic, message_id, "", body, text).request(group, queue, 4)
    command.opaque = 77
    assert plain_request(group, queue, 4).frame(message_id, born_ms, 77, body) == encode_command(command)
    for properties in ("WAIT\x01true", "WAIT\x01false"):
        command = Outgoing(topic, message_id, "", body, properties, is_batch=True).request(group, queue, 4)
        command.opaque = 77
        assert batch_request(group, queue, 4, properties).frame("", born_ms, 77, body) == encode_command(command)


def _result(answer: Command) -> SendResult | str:
    try:
        return send_result("host:1", answer, "ID", MessageQueue("a", 3, "T"))
    except ClientError as error:
        return repr(error)


def test_usual_response_is_converted_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Random(SEED)
    plain = 0
    for _ in range(ANSWERS):
        fields = dict(FIELDS)
        for name in chance.sample([*FIELDS, "recallHandle", "delayKept", "other"], chance.choice([0, 1, 1, 2])):
            value = chance.choice(UNUSUAL)
            fields.pop(name, None)
            fields |= {} if value is None else {name: value}
        answer = Command(chance.choice([0, 0, 0, 1, 10, 12]), 1, fields=fields)
        found = _result(answer)
        plain += requests._plain_result(fields, "ID", MessageQueue("a", 3, "T")) is not None
        with monkeypatch.context() as patched:
            patched.setattr(requests, "_PLAIN_FIELDS", -1)
            assert _result(answer) == found, answer
    assert ANSWERS / 10 < plain < ANSWERS


class Life:
    """Two brokers whose responses to sends are drawn at random."""

    def __init__(self, seed: str) -> None:
        self._chance = Random(seed)
        self.brokers = FakeBroker("broker-a"), FakeBroker("broker-b")
        for broker in self.brokers:
            broker.scripts[RequestCode.SEND_MESSAGE_V2] = self._answers_of(broker)
            broker.scripts[RequestCode.SEND_BATCH_MESSAGE] = self._answers_of(broker)
        self.sent: list[tuple[int, str, str, object]] = []

    def _answers_of(self, broker: FakeBroker) -> Callable[[Command], Response | None]:
        def answer(command: Command) -> Response | None:
            is_batch = command.code == RequestCode.SEND_BATCH_MESSAGE
            bodies = [each.body for each in decode_batch(command.body)] if is_batch else [command.body]
            self.sent.append((command.code, broker.name, command.fields["e"], bodies))
            kind = self._chance.choice(["usual"] * 5 + ["code"] * 3 + ["status", "fields", "end", "none"])
            fields = FIELDS | {"queueId": command.fields["e"]}
            if kind == "code":
                return Response(self._chance.choice([1, 2, 13, 14, 16, 17, 204]), "because")
            if kind == "status":
                return Response(self._chance.choice([10, 11, 12]), fields=fields)
            if kind == "fields":
                return Response(fields=fields | {self._chance.choice([*FIELDS]): self._chance.choice(UNUSUAL) or ""})
            if kind == "end":
                for connection in broker.connections:
                    connection.abort()
            return Response(fields=fields) if kind == "usual" else None

        return answer

    async def outcome(self, options: ProducerOptions, *, has_lane: bool) -> list[object]:
        """Return what became of sends, and the requests."""
        async with running(*self.brokers, queues=3) as (client, _), Producer(client, options=options) as producer:
            if not has_lane:
                producer._plain = None
            producer._sender._rounds["T"] = QueueRound()
            found: list[object] = []
            for number in range(14):
                try:
                    message = Message(topic="T", body=b"%d" % number)
                    if number % 3 == 2:
                        result = await producer.send_batch([message, message])
                    else:
                        result = await producer.send(message)
                    found.append((result.status, result.offset_message_id, result.queue, result.queue_offset))
                except ClientError as error:
                    text = re.sub(r":\d+|\d+ ms", "…", str(error))
                    found.append((type(error), text, type(error.__cause__), producer._in_flight._count))
            return [*found, self.sent]


@pytest.mark.parametrize("retry_unsafe", [False, True])
@pytest.mark.parametrize("retries", [0, 2])
def test_attempts_and_errors_are_those_of_the_usual_path(retries: int, retry_unsafe: bool) -> None:
    options = ProducerOptions(retries=retries, retry_unsafe=retry_unsafe, send_timeout_ms=150)

    async def scenario() -> None:
        for life in range(LIVES):
            seed = f"{SEED} {life} {retries} {retry_unsafe}"
            outcomes = await asyncio.gather(*(Life(seed).outcome(options, has_lane=each) for each in (False, True)))
            assert outcomes[0] == outcomes[1]

    run(scenario)


def _taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that receives, for each send, whether it left the usual path."""
    taken: list[bool] = []
    for name in ("of_message", "of_batch"):
        usual = getattr(plain_sends.PlainSends, name)

        def counted(lane: Any, content: Any, usual: Any = usual) -> Any:
            attempt = usual(lane, content)
            taken.append(attempt is not None)
            return attempt

        monkeypatch.setattr(plain_sends.PlainSends, name, counted)
    return taken


@pytest.mark.parametrize(
    "changes",
    [
        {"tags": "A"}, {"keys": ("k",)}, {"properties": {"p": "q"}}, {"delay_level": 1}, {"wait_stored": False},
        {"flag": 1}, {"delay": "1s"}, {"at": datetime(2000, 1, 1, tzinfo=UTC)}, {"body": bytes(5_000)},
    ],
)  # fmt: skip
def test_other_messages_take_the_usual_path(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    taken = _taken(monkeypatch)

    async def scenario() -> None:
        broker = FakeBroker()
        broker.settings += "httpPort=8080\ntimerMaxDelaySec=1000\n"
        async with running(broker) as (client, _), Producer(client) as producer:
            for message in (MESSAGE, MESSAGE, Message(**{"topic": "T", "body": b"x"} | changes)):
                await producer.send(message)
        assert taken == [False, True, False]
        assert len(broker.sent()) == 3

    run(scenario)


def test_batches_take_the_short_path_unless_they_need_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = _taken(monkeypatch)
    sent = (
        [MESSAGE], [MESSAGE, MESSAGE], [Message(topic="T", body=b"x", wait_stored=False)],
        [MESSAGE, Message(topic="T", body=bytes(9_000), keys=("k",))], [Message(topic="T", body=b"x", delay="1s")],
    )  # fmt: skip

    async def scenario() -> None:
        broker = FakeBroker()
        broker.settings += "httpPort=8080\ntimerMaxDelaySec=1000\n"
        async with running(broker) as (client, _), Producer(client) as producer:
            for batch in sent:
                result = await producer.send_batch(batch)
                assert result.message_id.count(",") == len(batch) - 1
            await producer.send_batch([MESSAGE], ordering_key="k")
            await producer.send_batch([MESSAGE], timeout_ms=1_000)
        assert taken == [False, True, True, True, False]
        assert len(broker.sent()) == 7

    run(scenario)


def test_sends_that_have_to_wait_take_the_usual_path(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = _taken(monkeypatch)

    async def scenario() -> None:
        broker = FakeBroker()
        options = ProducerOptions(max_unanswered_sends=1)
        async with running(broker) as (client, _), Producer(client, options=options) as producer:
            await producer.send(MESSAGE)
            await asyncio.gather(*(producer.send(MESSAGE) for _ in range(3)))
        assert sorted(taken) == [False, False, False, True]
        assert len(producer._in_flight) == 0

    run(scenario)


def test_signed_sends_take_the_usual_path(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = _taken(monkeypatch)
    signed: list[int] = []

    async def sign_requests(_: Credentials, connection: Any, timeout_ms: int) -> None:
        connection.sign = lambda command: signed.append(command.code)

    monkeypatch.setattr(Credentials, "sign_requests", sign_requests)

    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), Producer(client) as producer:
            client.network._credentials = Credentials("ann", "secret12")
            for _ in range(2):
                await producer.send(MESSAGE)
        assert taken == [False, False]
        assert signed.count(RequestCode.SEND_MESSAGE_V2) == 2

    run(scenario)


@pytest.mark.parametrize("option", ["enable_trace", "latency_faults"])
def test_producers_that_observe_their_sends_have_no_plain_sends(option: str) -> None:
    options = ProducerOptions(**{option: True})  # type: ignore[arg-type]
    assert Producer(Client("127.0.0.1:1"), options=options)._plain is None


def test_new_route_applies_to_the_next_send() -> None:
    async def scenario() -> None:
        brokers = FakeBroker("broker-a"), FakeBroker("broker-b")
        async with running(*brokers) as (client, name_server), Producer(client) as producer:
            for _ in range(4):
                await producer.send(MESSAGE)
            name_server.brokers = brokers[1:]
            await client.route("T", fresh=True)
            before = len(brokers[0].sent())
            for _ in range(4):
                assert (await producer.send(MESSAGE)).queue.broker_name == "broker-b"
            assert len(brokers[0].sent()) == before

    run(scenario)


def test_cancelled_send_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), Producer(client) as producer:
            await producer.send(MESSAGE)
            broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: None
            task = asyncio.create_task(producer.send(MESSAGE))
            await until(lambda: len(broker.sent()) == 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            connection = client.network.ready(broker.address)
            assert connection is not None
            assert connection.open_requests == 0
            assert len(producer._in_flight) == 0

    run(scenario)


def test_invalid_topic_with_a_known_route_is_rejected() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, name_server), Producer(client) as producer:
            await producer.send(MESSAGE)
            name_server.topics["a b"] = 1
            await client.route("a b")
            with pytest.raises(IllegalMessageError, match="illegal characters"):
                await producer.send(Message(topic="a b", body=b"x"))
            assert len(producer._in_flight) == 0

    run(scenario)


def test_silent_broker_is_disconnected_after_a_timeout() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        options = ProducerOptions(retries=0, send_timeout_ms=1_100)
        async with running(broker) as (client, _), Producer(client, options=options) as producer:
            await producer.send(MESSAGE)
            broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda _: None
            with pytest.raises(SendError, match="did not respond within 1100 ms"):
                await producer.send(MESSAGE)
            assert client.network.ready(broker.address) is None

    run(scenario)


def test_frame_can_be_decoded() -> None:
    request = plain_request("G", MessageQueue("a", 1, "T"), 4)
    command = decode_command(request.frame("ID", 1, 5, b"body")[4:])
    assert (command.code, command.opaque, command.body) == (RequestCode.SEND_MESSAGE_V2, 5, b"body")
    assert command.fields["i"] == "UNIQ_KEY\x01ID\x02WAIT\x01true"
