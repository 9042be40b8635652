"""Responses that the compiled kernel reads have the results of the usual path."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from delaymq import kernels
from delaymq.client import ClientError, Message, Producer, ProducerOptions
from delaymq.client.producer import plain_answers, plain_sends
from delaymq.client.producer.plain_answers import result_of, take_answers
from delaymq.client.sending.requests import send_result
from delaymq.protocol.bodies import MessageQueue
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, Response, decode_command
from delaymq.transport.open_requests import OpenRequests
from delaymq_testing.broker.plain_sends.sends import frame_at
from delaymq_testing.client.fake_peer import FakeBroker, run, running
from delaymq_testing.client.send_answers import random_answer, random_answers, split_send_answers
from delaymq_testing.compiled_kernels import NEEDS_KERNELS
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED

pytestmark = NEEDS_KERNELS
QUEUE = MessageQueue("broker-a", 3, "T")
USUAL = {"msgId": "0A", "queueOffset": "7", "MSG_REGION": "north", "TRACE_ON": "true"}


def test_kernel_returns_what_its_twin_returns_for_hostile_bytes() -> None:
    chance, kernel = Random(SEED), kernels.compiled("split_send_answers")
    found = 0
    for _ in range(FUZZ_INPUTS // 4):
        data = random_answers(chance)
        answers = kernel(data)
        assert answers == split_send_answers(data), data
        found += len(answers)
    assert found > FUZZ_INPUTS // 4


def test_result_is_that_of_the_usual_path() -> None:
    chance, plain = Random(SEED), 0
    for opaque in range(FUZZ_INPUTS // 40):
        data = random_answer(chance, opaque, 0.3)
        for answer in split_send_answers(data):
            plain += 1
            assert result_of(answer, "ID", QUEUE) == send_result(
                "host:1", decode_command(frame_at(data, 0)), "ID", QUEUE
            )
    assert plain > FUZZ_INPUTS // 80


@pytest.mark.parametrize(
    ("in_parts", "handled"), [((0, 1, 2, 3), 4), ((), 0), ((0, 1, 3), 2), ((1, 2, 3), 0), ((0, 1, 2, 3, 9), 4)]
)
def test_responses_from_the_first_one_of_another_request_on_are_left(in_parts: tuple[int, ...], handled: int) -> None:
    frames = [random_answer(Random(opaque), opaque, 0) for opaque in range(4)]

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        requests: Any = OpenRequests(loop, "host:1", 10)
        end = loop.time() + 1
        futures = [requests.add(opaque, 310, 1_000, end, takes_parts=opaque in in_parts) for opaque in range(4)]
        futures[-1].cancel()
        assert take_answers(requests, b"".join(frames) + frames[0][:20]) == sum(map(len, frames[:handled]))
        assert len(requests) == 4 - handled
        assert [each.done() for each in futures[:-1]] == [number < handled for number in range(3)]
        for opaque, future in enumerate(futures[: min(handled, 3)]):
            assert future.result()[0] == opaque
        for future in futures:
            future.cancel()
        requests.fail_all("end")

    run(scenario)


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the number of responses that the kernel reads in each call."""
    counts: list[int] = []
    usual = plain_answers._split_send_answers

    def split(data: bytes) -> Any:
        answers = usual(data)
        counts.append(len(answers))
        return answers

    monkeypatch.setattr(plain_answers, "_split_send_answers", split)
    return counts


async def _outcome(seed: str) -> list[object]:
    """Return what became of plain and other sends that wait together for random responses."""
    chance, broker = Random(seed), FakeBroker("broker-a")

    def answer(command: Command) -> Response | None:
        kind = chance.randrange(40)
        fields = USUAL | {"queueId": command.fields["e"]}
        if kind == 0:
            return Response(chance.choice([1, 13, 17]), "because")
        if kind == 1:
            return Response(fields=fields | {"queueOffset": chance.choice(["", "x", "-1", "9" * 19])})
        return Response(fields=fields | {"queueOffset": str(chance.randrange(100))})

    options = ProducerOptions(retries=0, send_timeout_ms=2_000)
    async with running(broker, queues=3) as (client, _), Producer(client, options=options) as producer:
        producer._sender.rounds("T").number = 0
        await producer.send(Message(topic="T", body=b"x"))  # with it, the route becomes known
        broker.scripts[RequestCode.SEND_MESSAGE_V2] = answer

        async def send(number: int, tags: str) -> object:
            try:
                result = await producer.send(Message(topic="T", body=b"%d" % number, tags=tags))
            except ClientError as error:
                return type(error), str(error).replace(broker.address, "…")
            return result.queue, result.queue_offset, result.region, result.trace_on, result.offset_message_id

        tags = ["A" if chance.random() < 0.04 else "" for _ in range(100)]
        found = await asyncio.gather(*(send(number, each) for number, each in enumerate(tags)))
        connection = client.network.ready(broker.address)
        assert connection is not None
        assert connection.open_requests == 0
        return [*found]


def test_plain_and_other_sends_on_one_connection_have_their_own_results(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = _counted(monkeypatch)

    async def scenario() -> None:
        for life in range(6):
            with_kernel = await _outcome(f"{SEED} {life}")
            before = len(counts)
            with monkeypatch.context() as patched:
                patched.setattr(plain_sends, "on_answers", None)
                assert await _outcome(f"{SEED} {life}") == with_kernel
            assert len(counts) == before

    run(scenario)
    assert sum(counts) > 20


def test_response_to_a_cancelled_send_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = _counted(monkeypatch)

    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), Producer(client) as producer:
            for _ in range(2):
                await producer.send(Message(topic="T", body=b"x"))
            task = asyncio.create_task(producer.send(Message(topic="T", body=b"x")))
            await asyncio.sleep(0)
            task.cancel()
            result = await producer.send(Message(topic="T", body=b"x"))
            assert result.queue_offset >= 0
            with pytest.raises(asyncio.CancelledError):
                await task
            connection = client.network.ready(broker.address)
            assert connection is not None
            assert connection.open_requests == 0

    run(scenario)
    assert counts
