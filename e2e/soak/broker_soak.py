"""A soak of the broker: mixed load while segments of the log are rolled and deleted and consumers come and go, then
many connections. Run as `python broker_soak.py --messages 3000000`; prints its figures as one JSON object.
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
    LitePullConsumer,
    LitePullOptions,
    Message,
    Outcome,
    Producer,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
)
from harness.brokers import OurCluster
from many_connections import Connections, connected

TOPIC, QUEUES = "Soak", 8
BODY_BYTES = 512
BATCH = 32
TAGS = ("TagA", "TagB", "TagC", "TagD")
GROUP_OF_BATCHES, GROUP_OF_TAG, GROUP_OF_POLLS = "soak-batches", "soak-tag", "soak-polls"
STAY_S = 3.0
"""How long a member that comes and goes stays, and stays away."""
LAG_LIMIT = 50_000
"""Producers wait while the slowest group is further behind: a soak is no test of the queues' length."""
WARM_UP_SHARE = 0.25
"""Pools, caches and tables fill in this part of the messages; only the rest counts."""
AGE_S = 2 * 3_600.0
"""Segments are made to look so old, since the shortest reservation time is an hour."""
NEWEST_SEGMENTS = 2
"""That are left as they are."""
SETTLE_LIMIT_S = 120.0
CONFIG = {
    "messageDelayLevel": "1s 2s 1s 1s 3s",
    "fileReservedTime": "1",
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
}
OPTIONS = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, rebalance_interval_ms=2_000, commit_interval_ms=500)
POLLS = LitePullOptions(consume_from=ConsumeFrom.FIRST, rebalance_interval_ms=2_000, commit_interval_ms=500)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What the broker holds when no client is connected."""

    tasks: int
    descriptors: int
    """But for those of the store's files, of which there are sometimes one more and sometimes one less."""
    deleted: int
    """Descriptors of files that are gone: a segment that was deleted is to be let go."""
    anonymous_kib: int


@dataclass(kw_only=True)
class Figures:
    """What came of a soak."""

    acknowledged: int
    received: dict[str, int]
    joins: int
    segments_rolled: int
    segments_deleted: int
    seconds: float
    before: Usage
    """After the warm-up, with all clients gone."""
    after: Usage
    """The same at the end."""
    mib_a_million: float
    """Slope of RssAnon over the messages after the warm-up, by least squares."""
    samples_mib: list[float] = field(default_factory=list)
    """RssAnon at 20 times, evenly spread."""
    connections: Connections | None = None


class Soak:
    """One run against one broker."""

    def __init__(self, cluster: OurCluster, messages: int) -> None:
        self.cluster = cluster
        self.messages = messages
        self.acknowledged = 0
        self.joins = 0
        self.received = {GROUP_OF_BATCHES: 0, GROUP_OF_TAG: 0, GROUP_OF_POLLS: 0}
        self._names = itertools.count()
        self._samples: list[tuple[int, int]] = []
        self._wanted = 0

    # Handlers.

    async def handle_batch(self, messages: Sequence[ReceivedMessage]) -> None:
        self.received[GROUP_OF_BATCHES] += len(messages)

    async def handle(self, message: ReceivedMessage) -> Outcome | None:
        self.received[GROUP_OF_TAG] += 1
        again = message.reconsume_times == 0 and self.received[GROUP_OF_TAG] % 200 == 0
        return Outcome.RETRY if again else None

    async def poll(self, consumer: LitePullConsumer) -> None:
        async for _ in consumer:
            self.received[GROUP_OF_POLLS] += 1

    # Members.

    async def join(self, stack: AsyncExitStack, group: str) -> None:
        """One more member of a group, with a client of its own, until the stack ends."""
        client = await stack.enter_async_context(Client(self.cluster.namesrv_address))
        consumer: PushConsumer | BatchPushConsumer | LitePullConsumer
        if group == GROUP_OF_BATCHES:
            consumer = BatchPushConsumer(client, group, self.handle_batch, OPTIONS)
        elif group == GROUP_OF_TAG:
            consumer = PushConsumer(client, group, self.handle, OPTIONS)
        else:
            consumer = LitePullConsumer(client, group, POLLS)
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

    def _body(self) -> bytes:
        return b"%0*d" % (BODY_BYTES, next(self._names))

    def _message(self) -> Message:
        number = next(self._names)
        return Message(topic=TOPIC, body=self._body(), tags=TAGS[number % len(TAGS)], keys=(f"k{number}",))

    async def send_batches(self, producer: Producer) -> None:
        while self.acknowledged < self._wanted:
            await producer.send_batch([self._message() for _ in range(BATCH)])
            self.acknowledged += BATCH
            await self._keep_near()

    async def send_singly(self, producer: Producer) -> None:
        """Every tenth message is delayed."""
        for number in itertools.count():
            if self.acknowledged >= self._wanted:
                return
            await producer.send(self._message(), delay="1s" if number % 10 == 0 else None)
            self.acknowledged += 1
            await self._keep_near()

    async def _keep_near(self) -> None:
        while self.acknowledged - self.received[GROUP_OF_BATCHES] > LAG_LIMIT:  # noqa: ASYNC110 - counts are no event
            await asyncio.sleep(0.05)

    async def age(self) -> None:
        """Makes all but the newest segments look old, so that the broker's own pass deletes them."""
        while True:
            for path in self._segments()[:-NEWEST_SEGMENTS]:
                then = path.stat().st_mtime
                if time.time() - then < AGE_S:
                    os.utime(path, (then - AGE_S, then - AGE_S))
            await asyncio.sleep(1)

    async def sample(self) -> None:
        while True:
            self._samples.append((self.acknowledged, anonymous_kib(self.cluster.broker.pid)))
            await asyncio.sleep(1)

    async def load(self, messages: int) -> None:
        """Sends so many more, with consumers that stay and others that come and go, until all were received."""
        self._wanted = self.acknowledged + messages
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(Client(self.cluster.namesrv_address))
            producer = await stack.enter_async_context(Producer(client))
            for group in self.received:
                await self.join(stack, group)
            others = [asyncio.create_task(self.come_and_go(group)) for group in self.received]
            others += [asyncio.create_task(self.age()), asyncio.create_task(self.sample())]
            async with asyncio.TaskGroup() as senders:
                for _ in range(4):
                    senders.create_task(self.send_batches(producer))
                for _ in range(32):
                    senders.create_task(self.send_singly(producer))
            await until(lambda: self.received[GROUP_OF_BATCHES] >= self.acknowledged, "all messages were received")
            for each in others:
                each.cancel()
            ends = await asyncio.gather(*others, return_exceptions=True)
            failures = [end for end in ends if isinstance(end, Exception)]
            if failures:
                raise ExceptionGroup("the soak's own tasks failed", failures)

    # The run.

    async def run(self, idle: int, active: int) -> Figures:
        began = time.monotonic()
        async with Client(self.cluster.namesrv_address) as client:
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
        """What the broker holds once it has noticed that all clients are gone, and once it is no more than `wanted`.

        Connections, files and tasks end in their own time; a leak never does.
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
    """Waits for `is_so`; TimeoutError that names `what`."""
    deadline = time.monotonic() + SETTLE_LIMIT_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {SETTLE_LIMIT_S:g} s: {what}")
        await asyncio.sleep(0.1)


def anonymous_kib(pid: int) -> int:
    """RssAnon of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise KeyError("RssAnon")


def open_files(pid: int) -> list[str]:
    """What a process has open: paths, sockets, pipes."""
    found = []
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return found


def metrics(address: str) -> dict[str, float]:
    """The broker's metrics that have no labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def slope(samples: Sequence[tuple[int, int]]) -> float:
    """KiB a message, by least squares."""
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
