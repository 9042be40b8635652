"""Message traces against a scripted broker: format, limits, and no effect on sends."""

import asyncio
import zlib

import pytest
from delaymq.client import (
    ConsumeFrom,
    Message,
    Outcome,
    Producer,
    ProducerOptions,
    PushConsumerOptions,
    ReceivedMessage,
    SendStatus,
)
from delaymq.client.trace import tracer
from delaymq.client.trace.format import Trace, batches
from delaymq.message.properties import parse_properties
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response, encode_response
from delaymq_testing.client.consuming import subscribed
from delaymq_testing.client.fake_peer import FakeBroker, run, running, until

TRACED = ProducerOptions(enable_trace=True)
TOPIC = "RMQ_SYS_TRACE_TOPIC"


def traces_of(broker: FakeBroker) -> list[tuple[list[str], str]]:
    """The traces that came: their fields, and the keys of the message that they came in."""
    found = []
    for body, fields in broker.sent():
        if fields["b"].startswith(TOPIC):
            text = (zlib.decompress(body) if int(fields["f"]) & 1 else body).decode()
            assert text.endswith("\x02")
            found += [(trace.split("\x01"), parse_properties(fields["i"])["KEYS"]) for trace in text[:-1].split("\x02")]
    return found


def test_send_is_traced_with_its_search_fields() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        own_id = "7F00000100002A9F" + "0" * 16

        def answer(command: Command) -> Response:
            fields = {"msgId": own_id, "queueId": "0", "queueOffset": "1", "MSG_REGION": "R", "TRACE_ON": "true"}
            return Response(fields=fields)

        broker.scripts[RequestCode.SEND_MESSAGE_V2] = answer
        async with running(broker) as (client, name_server):
            name_server.topics[TOPIC] = 1
            async with Producer(client, "G", TRACED) as producer:
                result = await producer.send(Message(topic="T", body=b"four", tags="A", keys=("k1", "k2")))
                await producer.send(Message(topic="T", body=b"-", delay_level=2))
            # Closing has sent what waited; the traces themselves are not traced.
            (first, keys), (second, _) = traces_of(broker)
        assert len(first) == 14
        assert [first[0], *first[2:10], *first[11:]] == [
            "Pub", "R", "G", "T", result.message_id, "A", "k1 k2", "127.0.0.1:10911", "4", "0", own_id, "true",
        ]  # fmt: skip
        assert [second[6], second[7], second[11]] == ["null", "null", "3"]
        assert {result.message_id, "k1", "k2", second[5]} == set(keys.split())

    run(scenario)


def test_broker_with_disabled_traces_gets_none() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        plain = broker.send_answer

        def answer(command: Command) -> Response:
            response = plain(command)
            response.fields["TRACE_ON"] = "false"
            return response

        broker.scripts[RequestCode.SEND_MESSAGE_V2] = answer
        async with running(broker) as (client, name_server):
            name_server.topics[TOPIC] = 1
            async with Producer(client, "G", TRACED) as producer:
                await producer.send(Message(topic="T", body=b"x"))
        assert traces_of(broker) == []

    run(scenario)


def test_each_handler_outcome_has_its_code() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        for body in (b"done", b"retry", b"failed"):
            broker.add("T", body, KEYS=f"key-{body.decode()}")
        broker.add("T", b"not traced", TRACE_ON="false")

        async def handle(message: ReceivedMessage) -> Outcome | None:
            if message.body == b"failed":
                raise RuntimeError("no")
            return Outcome.RETRY if message.body == b"retry" else None

        options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, enable_trace=True, concurrency=1)
        async with running(broker) as (client, name_server):
            name_server.topics[TOPIC] = 1
            consumer = subscribed(client, handle, options)
            async with consumer:
                await until(lambda: len(broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 2)
                await until(lambda: consumer.stats().topics["T"].consumed == 2)
        found = [fields for fields, _ in traces_of(broker)]
        before = {fields[5]: fields for fields in found if fields[0] == "SubBefore"}
        after = {fields[2]: fields for fields in found if fields[0] == "SubAfter"}
        assert before.keys() == after.keys() == {"ID0", "ID1", "ID2"}
        assert [after[each][4:7] for each in sorted(after)] == [
            ["true", "key-done", "0"], ["false", "key-retry", "4"], ["false", "key-failed", "2"],
        ]  # fmt: skip
        assert all(before[each][4] == after[each][1] for each in before)  # the id that joins the two
        assert all(len(before[each]) == 8 and len(after[each]) == 9 and after[each][8] == "G" for each in before)

    run(scenario)


@pytest.mark.parametrize("problem", ["no topic", "refused", "silent"])
def test_failing_traces_neither_fail_nor_delay_sends(problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer, "FINAL_SEND_TIMEOUT_S", 0.1)
    monkeypatch.setattr(tracer, "GATHERED_MS", 1)

    async def scenario() -> None:
        broker = FakeBroker()
        plain = broker.send_answer

        def answer(command: Command) -> Response | None:
            if not command.fields["b"].startswith(TOPIC):
                return plain(command)
            return Response(ResponseCode.NO_PERMISSION, "no") if problem == "refused" else None

        broker.scripts[RequestCode.SEND_MESSAGE_V2] = answer
        async with running(broker) as (client, name_server):
            if problem == "no topic":
                del name_server.topics["TBW102"]
            else:
                name_server.topics[TOPIC] = 1
            async with Producer(client, "G", TRACED) as producer:
                for _ in range(3):
                    assert (await producer.send(Message(topic="T", body=b"x"))).status is SendStatus.OK

    run(scenario)


def test_pending_traces_are_limited(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(tracer, "MAX_WAITING", 5)
    monkeypatch.setattr(tracer, "GATHERED_MS", 60_000)

    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, name_server):
            name_server.topics[TOPIC] = 1
            async with Producer(client, "G", TRACED) as producer:
                await asyncio.gather(*(producer.send(Message(topic="T", body=b"x")) for _ in range(20)))
        assert len(traces_of(broker)) == 5

    run(scenario)
    assert caplog.text.count("traces to RMQ_SYS_TRACE_TOPIC are dropped (5 are already waiting)") == 1


def test_close_waits_for_traces_in_flight_and_sends_queued_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracer, "GATHERED_MS", 1)
    monkeypatch.setattr(tracer, "FINAL_SEND_TIMEOUT_S", 15.0)
    monkeypatch.setattr(tracer, "MAX_KEY_CHARACTERS", 1)

    async def scenario() -> None:
        broker = FakeBroker()
        held: list[Command] = []
        plain = broker.send_answer

        def answer(command: Command) -> Response | None:
            if command.fields["b"].startswith(TOPIC) and not held:
                held.append(command)
                return None
            return plain(command)

        broker.scripts[RequestCode.SEND_MESSAGE_V2] = answer
        async with running(broker) as (client, name_server):
            name_server.topics[TOPIC] = 1
            async with Producer(client, "G", TRACED) as producer:
                await asyncio.gather(*(producer.send(Message(topic="T", body=b"x")) for _ in range(3)))
                await until(lambda: bool(held))
                closing = asyncio.ensure_future(producer.close())
                await asyncio.sleep(0)
                [connection] = [each for each in broker.connections if not each.closing]
                connection.send(encode_response(held[0], plain(held[0])))
                await closing
        assert len(traces_of(broker)) == 3

    run(scenario)


def test_cancelled_close_leaves_no_task() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.add("T", b"x")
        broker.scripts[RequestCode.SEND_MESSAGE_V2] = lambda command: None
        seen = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            seen.set()
            await asyncio.Event().wait()

        async with running(broker) as (client, _):
            options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, enable_trace=True)
            consumer = subscribed(client, handle, options)
            await consumer.start()
            producer = Producer(client, "G", TRACED)
            await producer.start()
            sending = asyncio.ensure_future(producer.send(Message(topic="T", body=b"x")))
            await seen.wait()
            await until(lambda: bool(broker.sent()))
            closing = [asyncio.ensure_future(each.close()) for each in (consumer, producer)]
            await asyncio.sleep(0)
            for each in (*closing, sending):
                each.cancel()
            await asyncio.wait([*closing, sending])
            # `run` counts the tasks that are left.

    run(scenario)


def test_traces_are_split_into_fitting_messages() -> None:
    traces = [Trace(f"{number:03}" * 10, (f"id{number}", "same")) for number in range(10)]
    whole = batches(traces, 1_000, 1_000)
    assert [(len(text), len(keys)) for text, keys in whole] == [(300, 11)]
    by_text = batches(traces, 100, 1_000)
    assert [len(text) for text, _ in by_text] == [90, 90, 90, 30]
    by_keys = batches(traces, 1_000, 12)
    assert [keys for _, keys in by_keys] == [(f"id{n}", "same") for n in range(10)]
    assert batches([Trace("x" * 500, ("a",)), Trace("y", ("b",))], 100, 100) == [("x" * 500, ("a",)), ("y", ("b",))]
    assert "".join(text for text, _ in by_text) == "".join(trace.text for trace in traces)
    assert batches([], 1, 1) == []
