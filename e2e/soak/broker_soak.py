"""Soak test of the broker: mixed load while log segments are rolled and deleted and consumers join and leave, then
many connections.

Run it as `python broker_soak.py --messages 3000000`; it prints its figures as a JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from delaymq.client import (
    Admin,
    BatchPushConsumer,
    Client,
    ConsumeFrom,
    HalfMessage,
    LitePullConsumer,
    LitePullOptions,
    LocalState,
    Message,
    Outcome,
    Producer,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
    TransactionOptions,
    TransactionProducer,
)
from harness.brokers import OurCluster
from soak.many_connections import PATIENT, PATIENT_SENDS, Connections, connected

TOPIC, QUEUES = "Soak", 8
BODY_BYTES = 512
BATCH = 32
TAGS = ("TagA", "TagB", "TagC", "TagD")
GROUP_OF_BATCHES, GROUP_OF_TAG, GROUP_OF_POLLS = "soak-batches", "soak-tag", "soak-polls"
GROUP_OF_CONDITION = "soak-condition"
CONDITION = "TAGS IN ('TagA', 'TagB') AND number BETWEEN 0 AND 49"
"""True for a quarter of the messages: half of the tags, half of the numbers."""
TRANSACTIONS_GROUP = "soak-transactions"
WANTED: dict[str, Callable[[Message], bool]] = {
    GROUP_OF_BATCHES: lambda message: True,
    GROUP_OF_TAG: lambda message: message.tags == TAGS[0],
    GROUP_OF_CONDITION: lambda message: message.tags in TAGS[:2] and int(message.properties["number"]) < 50,
    GROUP_OF_POLLS: lambda message: message.tags == TAGS[0],
}
"""Filter of each group."""
STAY_S = 3.0
"""Time for which a temporary member stays, and then stays away."""
LAG_LIMIT = 10_000
"""Producers wait while the slowest group lags further, so that no segment that it still needs is deleted."""
LAG_BYTES = LAG_LIMIT * 4 * 1_024
"""Maximum of the lag in the log: a group that filters one of four tags lags further in the log."""
WARM_UP_SHARE = 0.25
"""Pools, caches and tables fill during this share of the messages; only the rest is measured."""
AGE_S = 2 * 3_600.0
"""Segments are made to look this old, since the shortest reserved time is an hour."""
NEWEST_SEGMENTS = 2
"""Number of segments whose age is never changed."""
SETTLE_LIMIT_S = 120.0
CONFIG = {
    "messageDelayLevel": "1s 2s 1s 1s 3s",
    "fileReservedTime": "1",
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    "enablePropertyFilter": "true",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
}
OPTIONS = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, rebalance_interval_ms=2_000, commit_interval_ms=500)
PATIENT_TRANSACTIONS = TransactionOptions(send_timeout_ms=60_000)
POLLS = LitePullOptions(consume_from=ConsumeFrom.FIRST, rebalance_interval_ms=2_000, commit_interval_ms=500)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Resources that the broker holds while no client is connected."""

    tasks: int
    descriptors: int
    """Except those of the store's files, whose number varies by one."""
    deleted: int
    """Descriptors of deleted files: the broker must release those of a deleted segment."""
    anonymous_kib: int


@dataclass(kw_only=True)
class Figures:
    """Results of a soak test."""

    acknowledged: int
    transactions: int
    received: dict[str, int]
    joins: int
    segments_rolled: int
    segments_deleted: int
    seconds: float
    before: Usage
    """After the warm-up, without clients."""
    after: Usage
    """At the end, without clients."""
    mib_a_million: float
    """Slope of RssAnon over the messages after the warm-up, by least squares."""
    samples_mib: list[float] = field(default_factory=list)
    """RssAnon at 20 evenly spaced times."""
    connections: Connections | None = None


class Local:
    """Local transactions that are rolled back, or whose outcome is sent only in response to a check."""

    async def execute(self, message: HalfMessage, arg: object) -> LocalState:
        return arg if isinstance(arg, LocalState) else LocalState.COMMIT

    async def check(self, message: ReceivedMessage) -> LocalState:
        return LocalState.ROLLBACK


class Soak:
    """One run against one broker."""

    def __init__(self, cluster: OurCluster, messages: int) -> None:
        self.cluster = cluster
        self.messages = messages
        self.acknowledged = 0
        self.joins = 0
        self.transactions = 0
        self.expected = dict.fromkeys(WANTED, 0)
        self.received = dict.fromkeys(WANTED, 0)
        self._numbers = itertools.count()
        self._samples: list[tuple[int, int]] = []
        self._wanted = 0

    # Handlers.

    async def handle_batch(self, messages: Sequence[ReceivedMessage]) -> None:
        self.received[GROUP_OF_BATCHES] += len(messages)

    async def handle(self, message: ReceivedMessage) -> Outcome | None:
        self.received[GROUP_OF_TAG] += 1
        again = message.reconsume_times == 0 and self.received[GROUP_OF_TAG] % 200 == 0
        return Outcome.RETRY if again else None

    async def handle_chosen(self, message: ReceivedMessage) -> None:
        self.received[GROUP_OF_CONDITION] += 1

    async def poll(self, consumer: LitePullConsumer) -> None:
        async for _ in consumer:
            self.received[GROUP_OF_POLLS] += 1

    # Members.

    async def join(self, stack: AsyncExitStack, group: str) -> None:
        """Start one more member of a group, with a client of its own, until the stack closes."""
        client = await stack.enter_async_context(Client(self.cluster.namesrv_address, PATIENT))
        consumer: PushConsumer | BatchPushConsumer | LitePullConsumer
        if group == GROUP_OF_BATCHES:
            consumer = BatchPushConsumer(client, group, self.handle_batch, OPTIONS)
        elif group == GROUP_OF_TAG:
            consumer = PushConsumer(client, group, self.handle, OPTIONS)
        elif group == GROUP_OF_CONDITION:
            consumer = PushConsumer(client, group, self.handle_chosen, OPTIONS)
        else:
            consumer = LitePullConsumer(client, group, POLLS)
        if group == GROUP_OF_CONDITION:
            consumer.subscribe(TOPIC, sql=CONDITION)
        else:
            consumer.subscribe(TOPIC, "*" if group == GROUP_OF_BATCHES else TAGS[0])
        await stack.enter_async_context(consumer)
        if isinstance(consumer, LitePullConsumer):
            stack.callback(asyncio.create_task(self.poll(consumer)).cancel)
        self.joins += 1

    async def come_and_go(self, group: str) -> None:
        while True:
            async with AsyncExitStack() as stack:
                await self.join(stack, group)
                await asyncio.sleep(STAY_S)
            await asyncio.sleep(STAY_S)

    # Load.

    def _message(self) -> Message:
        number = next(self._numbers)
        tags, properties = TAGS[number % len(TAGS)], {"number": str(number // len(TAGS) % 100)}
        body = b"%0*d" % (BODY_BYTES, number)
        return Message(topic=TOPIC, body=body, tags=tags, keys=(f"k{number}",), properties=properties)

    def _stored(self, *messages: Message) -> None:
        """Count what consumers will receive, by group."""
        self.acknowledged += len(messages)
        for message in messages:
            for group, wants in WANTED.items():
                self.expected[group] += wants(message)

    async def send_batches(self, producer: Producer) -> None:
        while self.acknowledged < self._wanted:
            messages = [self._message() for _ in range(BATCH)]
            await producer.send_batch(messages)
            self._stored(*messages)
            await self._keep_near()

    async def send_singly(self, producer: Producer) -> None:
        """Send messages one at a time; every tenth is delayed."""
        for number in itertools.count():
            if self.acknowledged >= self._wanted:
                return
            message = self._message()
            await producer.send(message, delay="1s" if number % 10 == 0 else None)
            self._stored(message)
            await self._keep_near()

    async def transact(self, producer: TransactionProducer) -> None:
        """Commit three of five transactions, roll back one, and commit one only when the broker checks it."""
        for number in itertools.count():
            if self.acknowledged >= self._wanted:
                return
            state = {3: LocalState.ROLLBACK, 4: LocalState.UNKNOWN}.get(number % 5, LocalState.COMMIT)
            message = self._message()
            result = await producer.send_in_transaction(message, state)
            if result.state is LocalState.COMMIT:
                self._stored(message)
            self.transactions += 1
            await self._keep_near()

    async def _keep_near(self) -> None:
        while self._lag() > LAG_LIMIT:  # noqa: ASYNC110 - counts are no event
            await asyncio.sleep(0.05)

    def _lag(self) -> int:
        """Return the lag of the slowest group; below 0 if messages were redelivered."""
        return max(self.expected[group] - received for group, received in self.received.items())

    async def age(self) -> None:
        """Make segments look old that no group needs any more."""
        needed = NEWEST_SEGMENTS + -(-LAG_BYTES // int(self.cluster.config["mappedFileSizeCommitLog"]))
        while True:
            self._make_old(needed)
            await asyncio.sleep(1)

    def _make_old(self, newest: int) -> None:
        """Make all but the `newest` newest segments look old, so that the broker's retention deletes them."""
        for path in self._segments()[:-newest]:
            then = path.stat().st_mtime
            if time.time() - then < AGE_S:
                os.utime(path, (then - AGE_S, then - AGE_S))

    async def sample(self) -> None:
        while True:
            self._samples.append((self.acknowledged, anonymous_kib(self.cluster.broker.pid)))
            await asyncio.sleep(1)

    async def load(self, messages: int) -> None:
        """Send `messages` more, with consumers that stay and others that come and go, until all were received."""
        self._wanted = self.acknowledged + messages
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(Client(self.cluster.namesrv_address, PATIENT))
            producer = await stack.enter_async_context(Producer(client, options=PATIENT_SENDS))
            transactions = TransactionProducer(client, TRANSACTIONS_GROUP, Local(), options=PATIENT_TRANSACTIONS)
            await stack.enter_async_context(transactions)
            for group in self.received:
                await self.join(stack, group)
            others = [asyncio.create_task(self.come_and_go(group)) for group in self.received]
            others += [asyncio.create_task(self.age()), asyncio.create_task(self.sample())]
            async with asyncio.TaskGroup() as senders:
                for _ in range(4):
                    senders.create_task(self.send_batches(producer))
                for _ in range(32):
                    senders.create_task(self.send_singly(producer))
                for _ in range(2):
                    senders.create_task(self.transact(transactions))
            await until(lambda: self._lag() <= 0, "all messages were received")
            await self._no_open_transactions()
            self._make_old(NEWEST_SEGMENTS)
            for each in others:
                each.cancel()
            ends = await asyncio.gather(*others, return_exceptions=True)
            failures = [end for end in ends if isinstance(end, Exception)]
            if failures:
                raise ExceptionGroup("tasks of the soak test failed", failures)

    async def _no_open_transactions(self) -> None:
        """Wait while the broker still has to check transactions: without producers, nobody could respond."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        while time.monotonic() < deadline:
            values = await asyncio.to_thread(metrics, self.cluster.http_address)
            if values["delaymq_transactions_pending"] == 0:
                return
            await asyncio.sleep(0.2)
        raise TimeoutError(f"transactions were still open after {SETTLE_LIMIT_S:g} s")

    # The run.

    async def run(self, idle: int, active: int) -> Figures:
        began = time.monotonic()
        async with Client(self.cluster.namesrv_address, PATIENT) as client:
            await Admin(client).create_topic(TOPIC, queues=QUEUES)
        await self.load(int(self.messages * WARM_UP_SHARE))
        before = await self.usage()
        first = len(self._samples)
        await self.load(self.messages - self.acknowledged)
        samples = self._samples[first:]
        after = await self.usage(before)
        segments = self._segments()
        segment_bytes = int(self.cluster.config["mappedFileSizeCommitLog"])
        deleted = int(segments[0].name) // segment_bytes
        figures = Figures(
            acknowledged=self.acknowledged,
            transactions=self.transactions,
            received=self.received,
            joins=self.joins,
            segments_rolled=deleted + len(segments) - 1,
            segments_deleted=deleted,
            seconds=round(time.monotonic() - began, 1),
            before=before,
            after=after,
            mib_a_million=round(slope(samples) * 1e6 / 1024, 3),
            samples_mib=[round(kib / 1024, 1) for _, kib in samples[:: max(len(samples) // 20, 1)]],
        )
        if idle or active:
            figures.connections = await connected(
                self.cluster, idle, active, lambda: anonymous_kib(self.cluster.broker.pid)
            )
        return figures

    async def usage(self, wanted: Usage | None = None) -> Usage:
        """Return the broker's usage once all clients are gone, and once it is at most `wanted`.

        Connections, files and tasks are released eventually; a leak never is.
        """
        deadline = time.monotonic() + SETTLE_LIMIT_S
        while True:
            await asyncio.sleep(0.5)
            values = await asyncio.to_thread(metrics, self.cluster.http_address)
            files = open_files(self.cluster.broker.pid)
            usage = Usage(
                tasks=int(values["delaymq_event_loop_tasks"]),
                descriptors=sum(not name.startswith(str(self.cluster.store_path)) for name in files),
                deleted=sum(name.endswith(" (deleted)") for name in files),
                anonymous_kib=anonymous_kib(self.cluster.broker.pid),
            )
            quiet = values["delaymq_connections"] == 0 and len(self._segments()) <= NEWEST_SEGMENTS + 1
            no_more = wanted is None or (usage.tasks <= wanted.tasks and usage.descriptors <= wanted.descriptors)
            if (quiet and no_more) or time.monotonic() > deadline:
                return usage
            await asyncio.sleep(0.5)

    def _segments(self) -> list[Path]:
        return sorted((self.cluster.store_path / "commitlog").iterdir())


async def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for `is_so`; TimeoutError that names `what`."""
    deadline = time.monotonic() + SETTLE_LIMIT_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {SETTLE_LIMIT_S:g} s: {what}")
        await asyncio.sleep(0.1)


def anonymous_kib(pid: int) -> int:
    """Return RssAnon of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise KeyError("RssAnon")


def open_files(pid: int) -> list[str]:
    """Return what a process has open: paths, sockets, pipes."""
    found = []
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed in the meantime
            found.append(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return found


def metrics(address: str) -> dict[str, float]:
    """Return the broker's metrics without labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def slope(samples: Sequence[tuple[int, int]]) -> float:
    """Return KiB per message, by least squares."""
    if len(samples) < 2:
        return 0.0
    mean_x = sum(x for x, _ in samples) / len(samples)
    mean_y = sum(y for _, y in samples) / len(samples)
    under = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / under if under else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--segment-bytes", type=int, default=16 << 20)
    parser.add_argument("--idle", type=int, default=0, help="connections that only heartbeat, opened at the end")
    parser.add_argument("--active", type=int, default=0, help="clients that send and consume, opened at the end")
    arguments = parser.parse_args()
    config = {**CONFIG, "mappedFileSizeCommitLog": str(arguments.segment_bytes)}
    with OurCluster(config=config) as cluster:
        figures = asyncio.run(Soak(cluster, arguments.messages).run(arguments.idle, arguments.active))
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main()
