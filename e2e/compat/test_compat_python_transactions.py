"""Transactions of the Python client, received by RocketMQ's Java consumers and checked by either broker."""

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest
from compat.python_scenario import NewCluster, new_name, run, until
from delaymq.client import (
    Client,
    ClosedError,
    HalfMessage,
    LocalState,
    Message,
    NoSuchDelayError,
    ReceivedMessage,
    SendStatus,
    TransactionOptions,
    TransactionProducer,
)
from harness.brokers import Cluster
from harness.clients import PushConsumer as JavaConsumer
from harness.clients import Workbench

LIMIT_S = 90.0
CHECK_INTERVAL_MS = 1_000


@pytest.fixture(scope="module")
def checking_cluster(new_cluster: NewCluster) -> Iterator[Cluster]:
    """Provide a cluster that checks open transactions soon."""
    with new_cluster(transactionTimeOut="500", transactionCheckInterval=str(CHECK_INTERVAL_MS)) as cluster:
        yield cluster


@pytest.fixture
def java(checking_cluster: Cluster, new_workbench: Callable[[Cluster], Workbench]) -> Workbench:
    return new_workbench(checking_cluster)


class Told:
    """A listener with scripted results, a state or an error per message."""

    def __init__(self, **states: LocalState | Exception) -> None:
        self.states = states
        self.executed: list[tuple[HalfMessage, object]] = []
        self.checked: list[ReceivedMessage] = []

    async def execute(self, message: HalfMessage, arg: object) -> LocalState:
        self.executed.append((message, arg))
        return self._state(message.body)

    async def check(self, message: ReceivedMessage) -> LocalState:
        self.checked.append(message)
        return self._state(b"check_" + message.body)

    def _state(self, body: bytes) -> LocalState:
        state = self.states.get(body.decode(), LocalState.UNKNOWN)
        if isinstance(state, Exception):
            raise state
        return state


def test_only_committed_messages_become_visible(checking_cluster: Cluster, java: Workbench) -> None:
    topic = java.topic(queues=1)
    seen = java.push(topic, group=java.group(retry_topic=True), **{"from": "CONSUME_FROM_FIRST_OFFSET"})
    listener = Told(
        yes=LocalState.COMMIT, no=LocalState.ROLLBACK, later=LocalState.UNKNOWN, check_later=LocalState.COMMIT,
        failed=RuntimeError("the database is gone"), check_failed=LocalState.ROLLBACK, last=LocalState.COMMIT,
    )  # fmt: skip

    async def scenario(client: Client) -> None:
        async with TransactionProducer(client, new_name("Transactions"), listener) as producer:
            states = {}
            for body in ("yes", "no", "later", "failed"):
                result = await producer.send_in_transaction(
                    Message(topic=topic, body=body.encode(), tags="T", keys=(f"key-{body}",)), arg=body
                )
                assert result.sent.status is SendStatus.OK
                states[body] = result.state
                assert listener.executed[-1][0].message_id == result.sent.message_id
                assert listener.executed[-1][1] == body
            assert states == {
                "yes": LocalState.COMMIT, "no": LocalState.ROLLBACK,
                "later": LocalState.UNKNOWN, "failed": LocalState.UNKNOWN,
            }  # fmt: skip
            await until(lambda: {each.body for each in listener.checked} >= {b"later", b"failed"})
            (asked,) = {each.message_id: each for each in listener.checked if each.body == b"later"}.values()
            sent = next(message for message, arg in listener.executed if arg == "later")
            assert (asked.message_id, asked.topic, asked.tags, asked.keys) == (
                sent.message_id,
                topic,
                "T",
                ("key-later",),
            )
            await producer.send_in_transaction(Message(topic=topic, body=b"last"))
            await asyncio.to_thread(_wait_for, seen, 3)

    run(checking_cluster, scenario)
    messages = seen.inbox.messages()
    assert sorted(message.body for message in messages) == [b"last", b"later", b"yes"]
    assert {message.keys for message in messages if message.body == b"yes"} == {"key-yes"}


def test_check_is_sent_to_another_live_producer_of_the_group(checking_cluster: Cluster, java: Workbench) -> None:
    topic, group = java.topic(queues=1), new_name("Transactions")
    seen = java.push(topic, group=java.group(retry_topic=True), **{"from": "CONSUME_FROM_FIRST_OFFSET"})

    async def scenario(client: Client) -> None:
        other = Told(check_orphan=LocalState.COMMIT, own=LocalState.COMMIT)
        async with TransactionProducer(client, group, other) as living:
            await living.send_in_transaction(Message(topic=topic, body=b"own"))
            async with Client(checking_cluster.namesrv_address) as gone:
                async with TransactionProducer(gone, group, Told()) as producer:
                    result = await producer.send_in_transaction(Message(topic=topic, body=b"orphan"))
                    assert result.state is LocalState.UNKNOWN
                with pytest.raises(ClosedError):
                    await producer.send_in_transaction(Message(topic=topic, body=b"too late"))
            await asyncio.to_thread(_wait_for, seen, 2)
            assert {each.message_id for each in other.checked if each.body == b"orphan"} == {result.sent.message_id}

    run(checking_cluster, scenario)
    # The consumer passes messages of one pull to several threads, so only the queue shows their order.
    stored = sorted(seen.inbox.messages(), key=lambda message: message.queue_offset)
    assert [message.body for message in stored] == [b"own", b"orphan"]


def test_java_and_python_producers_of_a_group_respond_to_checks_for_each_other(
    checking_cluster: Cluster, java: Workbench
) -> None:
    topic, group = java.topic(queues=1), new_name("Transactions")
    seen = java.push(topic, group=java.group(retry_topic=True), **{"from": "CONSUME_FROM_FIRST_OFFSET"})

    async def scenario(client: Client) -> None:
        # The transaction that Python left open is committed by Java, according to the message's script.
        half = Message(topic=topic, body=b"of Python", properties={"script": "C"})
        async with TransactionProducer(client, group, Told()) as gone:
            await gone.send_in_transaction(half)
        living = await asyncio.to_thread(java.transactions, group=group)
        await asyncio.to_thread(_wait_for, seen, 1)
        # And vice versa.
        await asyncio.to_thread(living.send, topic, "of Java", "U")
        await asyncio.to_thread(java.stop, living)
        listener = Told(**{"check_of Java": LocalState.COMMIT}, own=LocalState.COMMIT)
        async with TransactionProducer(client, group, listener) as producer:
            await producer.send_in_transaction(Message(topic=topic, body=b"own"))
            await asyncio.to_thread(_wait_for, seen, 3)

    run(checking_cluster, scenario)
    bodies = [message.body for message in seen.inbox.messages()]
    assert bodies[0] == b"of Python"
    assert sorted(bodies[1:]) == [b"of Java", b"own"]


def test_close_waits_for_a_check_in_progress(checking_cluster: Cluster, java: Workbench) -> None:
    topic = java.topic(queues=1)
    seen = java.push(topic, group=java.group(retry_topic=True), **{"from": "CONSUME_FROM_FIRST_OFFSET"})

    class Slow(Told):
        def __init__(self) -> None:
            super().__init__()
            self.asked, self.go_on = asyncio.Event(), asyncio.Event()

        async def check(self, message: ReceivedMessage) -> LocalState:
            self.asked.set()
            await self.go_on.wait()
            return LocalState.COMMIT

    async def scenario(client: Client) -> None:
        listener = Slow()
        producer = TransactionProducer(
            client, new_name("Transactions"), listener, TransactionOptions(close_timeout_ms=60_000)
        )
        async with producer:
            await producer.send_in_transaction(Message(topic=topic, body=b"slow"))
            await listener.asked.wait()
            closing = asyncio.ensure_future(producer.close())
            await asyncio.sleep(0.2)
            assert not closing.done()
            listener.go_on.set()
            await closing
        await asyncio.to_thread(_wait_for, seen, 1)

    run(checking_cluster, scenario)


@pytest.mark.ours_only
def test_delay_starts_at_the_commit(checking_cluster: Cluster, java: Workbench) -> None:
    topic = java.topic(queues=1)
    seen = java.push(topic, group=java.group(retry_topic=True), **{"from": "CONSUME_FROM_FIRST_OFFSET"})
    committed_ms = 0

    class Slow(Told):
        async def execute(self, message: HalfMessage, arg: object) -> LocalState:
            nonlocal committed_ms
            await asyncio.sleep(1)
            committed_ms = time.time_ns() // 1_000_000
            return LocalState.COMMIT

    async def scenario(client: Client) -> None:
        async with TransactionProducer(client, new_name("Transactions"), Slow()) as producer:
            await producer.send_in_transaction(Message(topic=topic, body=b"delayed"), delay="2s")
            await asyncio.to_thread(_wait_for, seen, 1)

    run(checking_cluster, scenario)
    (message,) = seen.inbox.messages()
    assert message.store_timestamp_ms >= committed_ms + 2_000


def test_delay_is_rejected_if_the_broker_would_lose_the_message(
    checking_cluster: Cluster, java: Workbench, against: str
) -> None:
    topic = java.topic(queues=1)

    async def scenario(client: Client) -> None:
        listener = Told(delayed=LocalState.ROLLBACK)
        async with TransactionProducer(client, new_name("Transactions"), listener) as producer:
            for message, delay in ((Message(topic=topic, body=b"delayed"), "1s"), (
                Message(topic=topic, body=b"delayed", delay_level=1), None)):  # fmt: skip
                if against == "real":
                    with pytest.raises(NoSuchDelayError, match="is not DelayMQ"):
                        await producer.send_in_transaction(message, delay=delay)
                else:
                    assert (await producer.send_in_transaction(message, delay=delay)).state is LocalState.ROLLBACK
            assert len(listener.executed) == (0 if against == "real" else 2)

    run(checking_cluster, scenario)


def _wait_for(consumer: JavaConsumer, count: int) -> None:
    consumer.inbox.wait_for(lambda messages: len(messages) >= count, timeout_s=LIMIT_S)
