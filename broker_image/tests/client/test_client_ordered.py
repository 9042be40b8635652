"""Ordered consumers against a scripted broker: lost, late and taken locks."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from delaymq.client import ConsumeFrom, MessageModel, Outcome, PushConsumer, PushConsumerOptions, ReceivedMessage
from delaymq.client.consumer.queues import assigned_queues
from delaymq.protocol.bodies import MessageQueue, ResetOffset
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Response
from delaymq_testing.client.consuming import subscribed
from delaymq_testing.client.fake_peer import FakeBroker, run, running, until

ORDERED = PushConsumerOptions(
    consume_from=ConsumeFrom.FIRST, ordered=True, commit_interval_ms=20, close_timeout_ms=200, local_retry_ms=20,
    lock_renewal_interval_ms=30, lock_retry_ms=30,
)  # fmt: skip
NOBODY = Response(body=b'{"lockOKMQSet":[]}')


class Stepwise:
    """A handler that waits before each message until it is let go."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.done: list[bytes] = []
        self.active = 0
        self.most = 0
        self.go = asyncio.Semaphore(0)

    async def __call__(self, message: ReceivedMessage) -> None:
        self.begun.append(message.body)
        self.active += 1
        self.most = max(self.most, self.active)
        await self.go.acquire()
        self.active -= 1
        self.done.append(message.body)


def reads_topic(consumer: PushConsumer) -> bool:
    return any(queue.topic == "T" for queue in consumer.assigned)


def test_queue_regained_after_a_lost_lock_starts_again() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        for number in range(4):
            broker.add("T", b"%d" % number)
        steps = Stepwise()
        lock = broker.scripts[RequestCode.LOCK_BATCH_MQ]
        async with running(broker) as (client, _), subscribed(client, steps, ORDERED) as consumer:
            await until(lambda: steps.begun == [b"0"])
            broker.scripts[RequestCode.LOCK_BATCH_MQ] = lambda _: NOBODY
            asked = len(broker.asked(RequestCode.LOCK_BATCH_MQ))
            await until(lambda: len(broker.asked(RequestCode.LOCK_BATCH_MQ)) > asked + 2)
            broker.committed = 2  # what the other member did
            steps.go.release()
            await until(lambda: steps.done == [b"0"])
            await asyncio.sleep(0.1)
            assert broker.committed == 2
            broker.scripts[RequestCode.LOCK_BATCH_MQ] = lock
            for _ in range(3):
                steps.go.release()
            await until(lambda: broker.committed == 4)
            assert reads_topic(consumer)
        assert steps.begun == [b"0", b"2", b"3"]
        assert steps.most == 1

    run(scenario)


def test_nothing_is_handled_under_an_expired_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assigned_queues, "LOCK_VALID_MS", 80)

    async def scenario() -> None:
        broker = FakeBroker()
        for number in range(3):
            broker.add("T", b"%d" % number)
        steps = Stepwise()
        lock = broker.scripts[RequestCode.LOCK_BATCH_MQ]
        async with running(broker) as (client, _), subscribed(client, steps, ORDERED):
            await until(lambda: steps.begun == [b"0"])
            broker.scripts[RequestCode.LOCK_BATCH_MQ] = lambda _: Response(ResponseCode.SYSTEM_BUSY, "no")
            await asyncio.sleep(0.3)
            steps.go.release()
            await until(lambda: steps.done == [b"0"])
            await asyncio.sleep(0.3)
            assert steps.begun == [b"0"]
            broker.scripts[RequestCode.LOCK_BATCH_MQ] = lock
            await until(lambda: len(steps.begun) == 2)
            for _ in range(2):
                steps.go.release()
            await until(lambda: broker.committed == 3)
        assert steps.done == [b"0", b"1", b"2"]

    run(scenario)


def test_queue_resumes_after_a_tag_change_only_when_its_handler_ended() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        for number in range(2):
            broker.add("T", b"%d" % number, TAGS="A")
        steps = Stepwise()
        async with running(broker) as (client, _), subscribed(client, steps, ORDERED) as consumer:
            await until(lambda: steps.begun == [b"0"])
            consumer.subscribe("T", "A")
            await until(lambda: not reads_topic(consumer))
            # Longer than a queue's former member is waited for.
            await asyncio.sleep(assigned_queues.RELEASE_MS / 1000 + 0.3)
            assert steps.begun == [b"0"]
            for _ in range(2):
                steps.go.release()
            await until(lambda: broker.committed == 2)
        assert steps.done == [b"0", b"1"]
        assert steps.most == 1

    run(scenario)


def test_administrators_offset_is_not_overwritten_by_a_late_handler() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        for number in range(4):
            broker.add("T", b"%d" % number)
        steps = Stepwise()
        for _ in range(3):
            steps.go.release()
        async with running(broker) as (client, _), subscribed(client, steps, ORDERED):
            await until(lambda: steps.begun == [b"0", b"1", b"2", b"3"])
            table = ResetOffset(offset_table={MessageQueue("broker-a", 0, "T"): 1})
            fields = {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true"}
            broker.tell(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, table.encode())
            await until(lambda: broker.committed == 1)
            steps.go.release()
            await until(lambda: len(steps.begun) == 5)
            for _ in range(3):
                steps.go.release()
            await until(lambda: broker.committed == 4)
        assert steps.begun == [b"0", b"1", b"2", b"3", b"1", b"2", b"3"]

    run(scenario)


def test_queue_waiting_for_a_retry_does_not_block_others() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        for number in range(3):
            broker.add("T", b"%d" % number)
        done: list[bytes] = []
        failed = 0

        async def handle(message: ReceivedMessage) -> Outcome | None:
            nonlocal failed
            if not failed:
                failed += 1
                return Outcome.RETRY
            done.append(message.body)
            return None

        # Both queues of the fake have the same messages.
        options = replace(ORDERED, concurrency=1, local_retry_ms=60_000)
        async with running(broker, queues=2) as (client, _), subscribed(client, handle, options):
            await until(lambda: len(done) == 3)
        assert done == [b"0", b"1", b"2"]

    run(scenario)


def test_ordered_broadcasting_needs_no_locks(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        for number in range(5):
            broker.add("T", b"%d" % number)
        steps = Stepwise()
        options = replace(ORDERED, model=MessageModel.BROADCASTING, offsets_path=tmp_path / "offsets.json")
        async with running(broker) as (client, _), subscribed(client, steps, options):
            for _ in range(5):
                steps.go.release()
            await until(lambda: len(steps.done) == 5)
        assert steps.done == [b"0", b"1", b"2", b"3", b"4"]
        assert steps.most == 1
        assert broker.asked(RequestCode.LOCK_BATCH_MQ) == []

    run(scenario)


def test_ordered_handler_sees_the_number_of_attempts() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.add("T", b"0")
        times: list[int] = []

        async def handle(message: ReceivedMessage) -> Outcome:
            times.append(message.reconsume_times)
            return Outcome.RETRY

        options = replace(ORDERED, max_reconsume_times=2)
        async with running(broker) as (client, _), subscribed(client, handle, options):
            await until(lambda: broker.committed == 1)
        assert times == [0, 1, 2]
        [back] = broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert back.fields["maxReconsumeTimes"] == "0"  # immediately to the dead-letter topic

    run(scenario)
