"""Soak test of the Python client: consumers of all kinds under load, members that join and leave, a broker that is
stopped and killed repeatedly. Run it as `python python_soak.py --seconds 600`; it prints its figures as a JSON object.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from compat.python_soak_ledger import Ledger, MemorySlope, Order, Usage
from delaymq.client import (
    Admin,
    BatchPushConsumer,
    Client,
    ClientError,
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

TOPIC, TOPIC_IN_ORDER = "Soak", "SoakInOrder"
GROUP, GROUP_OF_BATCHES, GROUP_OF_POLLS, GROUP_IN_ORDER = "soak", "soak-batches", "soak-polls", "soak-in-order"
QUEUES = 8
MESSAGES_PER_SECOND = 150
"""Rate of each topic."""
CAPACITY_PER_SECOND = 2 * MESSAGES_PER_SECOND
SETTLE_LIMIT_S = 60.0
LEVELS = "1s 2s 1s 1s 3s 4s 10s 1h"
OPTIONS = PushConsumerOptions(
    consume_from=ConsumeFrom.FIRST, rebalance_interval_ms=2_000, commit_interval_ms=500, lock_retry_ms=200,
    local_retry_ms=50, unsent_retry_ms=200,
)  # fmt: skip

POLL_OPTIONS = LitePullOptions(consume_from=ConsumeFrom.FIRST, rebalance_interval_ms=2_000, commit_interval_ms=500)


@dataclass(kw_only=True)
class Figures:
    """Results of a soak test."""

    seconds: float = 0.0
    acknowledged: int = 0
    sends_failed: int = 0
    consumed: dict[str, int]
    lost: dict[str, int]
    repeats: dict[str, int]
    jumps: list[str]
    overlaps: int = 0
    stops: int = 0
    kills: int = 0
    joins: int = 0
    unused: Usage
    """Before the first client."""
    before: Usage
    """With the permanent members, after the warm-up."""
    after: Usage
    """With the permanent members, at the end."""
    left: Usage
    """After everything was closed."""
    memory_slope_mib_a_minute: float = 0.0


class Soak:
    """One run against one broker."""

    def __init__(self, cluster: OurCluster, seconds: float, restart_s: float, *, leave_any_time: bool) -> None:
        self.cluster = cluster
        self.seconds = seconds
        self.restart_s = restart_s
        self.leave_any_time = leave_any_time
        self._is_up = asyncio.Event()
        self._is_up.set()
        capacity = int((seconds + SETTLE_LIMIT_S) * CAPACITY_PER_SECOND)
        self.plain = Ledger(capacity, [GROUP, GROUP_OF_BATCHES, GROUP_OF_POLLS])
        self.in_order = Ledger(capacity, [GROUP_IN_ORDER])
        self._ledgers = {
            GROUP: self.plain,
            GROUP_OF_BATCHES: self.plain,
            GROUP_OF_POLLS: self.plain,
            GROUP_IN_ORDER: self.in_order,
        }
        self.order = Order()
        self.slope = MemorySlope()
        self.stops = self.kills = self.joins = 0
        self._staying: list[Client] = []
        self._random = random.Random(7)

    # Handlers.

    async def handle(self, message: ReceivedMessage) -> Outcome | None:
        await asyncio.sleep(0.002)
        if message.reconsume_times == 0 and self._random.random() < 0.01:
            return Outcome.RETRY
        self.plain.handled(GROUP, int(message.body))
        return None

    async def handle_batch(self, messages: list[ReceivedMessage]) -> int:
        await asyncio.sleep(0.002)
        done = len(messages) - (self._random.random() < 0.02)
        for message in messages[:done]:
            self.plain.handled(GROUP_OF_BATCHES, int(message.body))
        return done

    async def handle_in_order(self, message: ReceivedMessage) -> Outcome | None:
        if message.queue.topic != TOPIC_IN_ORDER:
            return None
        done = self._random.random() > 0.005
        self.order.begin(message.queue.queue_id, message.queue_offset)
        try:
            await asyncio.sleep(0.002)
        finally:
            self.order.end(message.queue.queue_id, message.queue_offset, done=done)
        if done:
            self.in_order.handled(GROUP_IN_ORDER, int(message.body))
        return None if done else Outcome.RETRY

    async def take(self, consumer: LitePullConsumer) -> None:
        """Poll until cancelled."""
        async for message in consumer:
            self.plain.handled(GROUP_OF_POLLS, int(message.body))

    # Members.

    async def join(self, stack: AsyncExitStack, kind: str) -> Client:
        """Start one more member of a kind's group, with a client of its own, until the stack closes."""
        client = await stack.enter_async_context(Client(self.cluster.namesrv_address))
        consumer: PushConsumer | BatchPushConsumer | LitePullConsumer
        if kind == GROUP:
            consumer = PushConsumer(client, GROUP, self.handle, OPTIONS)
        elif kind == GROUP_OF_BATCHES:
            consumer = BatchPushConsumer(client, kind, self.handle_batch, replace(OPTIONS, batch=8))
        elif kind == GROUP_OF_POLLS:
            consumer = LitePullConsumer(client, kind, POLL_OPTIONS)
        else:
            consumer = PushConsumer(client, kind, self.handle_in_order, replace(OPTIONS, ordered=True))
        consumer.subscribe(TOPIC_IN_ORDER if kind == GROUP_IN_ORDER else TOPIC)
        await stack.enter_async_context(consumer)
        if isinstance(consumer, LitePullConsumer):
            stack.callback(asyncio.create_task(self.take(consumer)).cancel)
        self.joins += 1
        return client

    async def come_and_go(self, kind: str, stay_s: float) -> None:
        while True:
            async with AsyncExitStack() as stack:
                await self.join(stack, kind)
                await asyncio.sleep(stay_s)
                if not self.leave_any_time:
                    # A client that leaves while the broker is down counts as a member for 40 s after its start.
                    await self._is_up.wait()
            await asyncio.sleep(stay_s)

    async def send(self, producer: Producer, topic: str, ledger: Ledger) -> None:
        """Send at a constant rate; failed sends are not repeated."""
        while True:
            number = ledger.next_number()
            delay = "1s" if number % 10 == 0 and topic == TOPIC else None
            try:
                await producer.send(Message(topic=topic, body=b"%d" % number, keys=(f"k{number}",)), delay=delay)
            except ClientError:
                ledger.refused += 1
            else:
                ledger.acknowledged(number)
            await asyncio.sleep(1 / MESSAGES_PER_SECOND)

    async def restart(self, seconds: float) -> None:
        """Alternately stop and kill the broker for this time; it runs at the end."""
        end = time.monotonic() + seconds
        while (left_s := end - time.monotonic()) > 0:
            await asyncio.sleep(min(self.restart_s, left_s))
            clean = self.stops <= self.kills
            self._is_up.clear()
            await asyncio.to_thread(self.cluster.stop if clean else self.cluster.kill)
            await asyncio.sleep(self._random.uniform(0, 1))
            await asyncio.to_thread(self.cluster.start)
            self._is_up.set()
            self.stops, self.kills = self.stops + clean, self.kills + (not clean)

    async def watch(self) -> None:
        while True:
            self.slope.sample()
            await asyncio.sleep(1)

    # The run.

    async def run(self) -> Figures:
        unused = Usage.now()
        async with Client(self.cluster.namesrv_address) as client:
            self._staying.append(client)
            for topic in (TOPIC, TOPIC_IN_ORDER):
                await Admin(client).create_topic(topic, queues=QUEUES)
            async with Producer(client) as producer, AsyncExitStack() as staying:
                for kind in (GROUP, GROUP, GROUP_OF_BATCHES, GROUP_OF_POLLS, GROUP_IN_ORDER, GROUP_IN_ORDER):
                    self._staying.append(await self.join(staying, kind))
                # Caches fill and connections open during a first, shorter part; measurement starts after it.
                await self._disturb(producer, self.seconds / 4)
                await self._settle()
                before = await self._usage_as(None)
                await self._disturb(producer, self.seconds * 3 / 4)
                await self._settle()
                after = await self._usage_as(before)
        left = await self._usage_as(unused)
        return self._figures(unused, before, after, left)

    async def _disturb(self, producer: Producer, seconds: float) -> None:
        """Run load, members that join and leave, and restarts."""
        stay_s = self.restart_s * 0.7
        work: list[Awaitable[None]] = [
            self.send(producer, TOPIC, self.plain),
            self.send(producer, TOPIC_IN_ORDER, self.in_order),
            self.come_and_go(GROUP, stay_s),
            self.come_and_go(GROUP_OF_POLLS, stay_s * 1.1),
            self.come_and_go(GROUP_IN_ORDER, stay_s * 1.3),
            self.watch(),
        ]
        tasks = [asyncio.ensure_future(each) for each in work]
        await self.restart(seconds)
        for each in tasks:
            each.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [end for end in ends if isinstance(end, Exception)]
        if failures:
            raise ExceptionGroup("tasks of the soak test failed", failures)

    async def _settle(self) -> None:
        """Wait until every group has handled every acknowledged message, as long as there is progress."""
        await self._until(lambda: not any(self._lost().values()))
        await asyncio.sleep(1)

    def _lost(self) -> dict[str, int]:
        return {group: len(ledger.lost(group)) for group, ledger in self._ledgers.items()}

    async def _until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SETTLE_LIMIT_S
        while not is_so() and time.monotonic() < deadline:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.2)

    async def _usage_as(self, wanted: Usage | None) -> Usage:
        """Return the usage once it is at most `wanted`: rebalancing ends eventually, a leak never does."""
        deadline = time.monotonic() + SETTLE_LIMIT_S / 2
        for client in self._staying:
            # Connections broken by a restart are reopened on use: use all, to NameServers and brokers.
            if not client.closed:
                await client.route(TOPIC, fresh=True)
                await client.heartbeat()
        await asyncio.sleep(1)
        while wanted is not None and time.monotonic() < deadline:
            now = Usage.now()
            if now.tasks <= wanted.tasks and now.descriptors <= wanted.descriptors:
                break
            await asyncio.sleep(0.2)
        return Usage.now()

    def _figures(self, unused: Usage, before: Usage, after: Usage, left: Usage) -> Figures:
        return Figures(
            seconds=self.seconds,
            acknowledged=self.plain.acknowledged_count() + self.in_order.acknowledged_count(),
            sends_failed=self.plain.refused + self.in_order.refused,
            consumed={group: ledger.consumed(group) for group, ledger in self._ledgers.items()},
            lost=self._lost(),
            repeats={group: ledger.repeats(group) for group, ledger in self._ledgers.items()},
            jumps=self.order.jumps,
            overlaps=self.order.overlaps,
            stops=self.stops,
            kills=self.kills,
            joins=self.joins,
            unused=unused,
            before=before,
            after=after,
            left=left,
            memory_slope_mib_a_minute=round(self.slope.mib_a_minute(), 3),
        )


async def soaked(cluster: OurCluster, arguments: argparse.Namespace) -> Figures:
    """Run the soak test and return its figures."""
    soak = Soak(cluster, arguments.seconds, arguments.restart_s, leave_any_time=arguments.leave_any_time)
    return await soak.run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--restart-s", type=float, default=5, help="pause between restarts of the broker")
    parser.add_argument("--leave-any-time", action="store_true", help="also while the broker is down")
    arguments = parser.parse_args()
    with OurCluster(config={"messageDelayLevel": LEVELS}) as cluster:
        figures = asyncio.run(soaked(cluster, arguments))
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main()
