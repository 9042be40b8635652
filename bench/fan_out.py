"""Many consumers of one broker: costs of held pulls, arrivals, a message to all, and a simultaneous reconnect.

    PYTHONPATH=e2e .venv/bin/python bench/fan_out.py [consumers]

Each consumer is a connection with a heartbeat and a held pull on a separate queue. The broker is a separate process,
and all consumers share this one. Rates therefore depend on both; memory and processor time are those of the broker.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import proc
from delaymq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, request_command
from delaymq.transport import RemotingConnection, connect
from harness.brokers import HOST, OurCluster

TOPIC = "FanOut"
WAIT_MS = 110_000
LIMIT_S = 120
STORMS = 4
GROUP = "one_group"
SQL = "kind = 'wanted' AND number >= 5"


@dataclass(slots=True)
class Consumer:
    """A connection with its held pull."""

    number: int
    connection: RemotingConnection
    told: list[Command]
    answer: asyncio.Future[Command] | None = None

    async def heartbeat(self, group: str) -> None:
        data = ConsumerData(group, subscription_data_set=[SubscriptionData(TOPIC, "*", sub_version=1)])
        body = HeartbeatData(f"10.0.0.1@{self.number}", consumer_data_set=[data]).encode()
        await self.connection.request(request_command(RequestCode.HEART_BEAT, {}, body), LIMIT_S * 1000)

    def pull(self, group: str, queue_id: int, offset: int, *, sql: bool = False) -> None:
        fields = {
            "consumerGroup": group, "topic": TOPIC, "queueId": str(queue_id), "queueOffset": str(offset),
            "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": str(WAIT_MS),
            "subscription": SQL if sql else "*", "subVersion": "1", "expressionType": "SQL92" if sql else "TAG",
        }  # fmt: skip
        command = request_command(RequestCode.PULL_MESSAGE, fields)
        self.answer = self.connection.start_request(command, WAIT_MS + 10_000)


class FanOut:
    """The measurements, run sequentially."""

    def __init__(self, cluster: OurCluster, count: int) -> None:
        self._cluster = cluster
        self._count = count
        self._pid = cluster.broker.pid
        self._offsets = [0] * count

    async def run(self) -> None:
        async with self._connections(1) as (producer,):
            await self._make_topic(producer)
            async with self._timed("connecting"), self._connections(self._count) as consumers:
                async with self._timed("concurrent heartbeats of one group"):
                    await asyncio.gather(*(each.heartbeat(GROUP) for each in consumers))
                told = sum(len(each.told) for each in consumers)
                print(f"{'':44}{told:10,} notifications to members about changes of the group")
                await self._hold("held pulls", consumers, GROUP)
                async with self._timed("a message for each of them"):
                    await self._send_each(producer, consumers)
                await self._hold("held pulls with an expression", consumers, GROUP, sql=True)
                async with self._timed("messages that match no pull"):
                    await self._send_each(producer, consumers, wakes=False)
                async with self._timed("a matching message for each of them"):
                    await self._send_each(producer, consumers, kind="wanted")
                for each in consumers:
                    each.pull(f"group_{each.number}", 0, self._offsets[0])
                await self._settle(consumers)
                async with self._timed("one message for all, in one queue"):
                    await self._send(producer, 0)
                    await asyncio.gather(*(each.answer for each in consumers if each.answer))
                self._offsets[0] += 1
                await self._hold("held pulls again", consumers, GROUP)
            for _ in range(STORMS):
                await self._storm()

    async def _storm(self) -> None:
        back = "reconnection of all: heartbeat, pull"
        async with self._timed(back), self._connections(self._count) as consumers:
            await asyncio.gather(*(each.heartbeat(GROUP) for each in consumers))
            for each in consumers:
                each.pull(GROUP, each.number, self._offsets[each.number])
            await self._settle(consumers)

    async def _make_topic(self, producer: Consumer) -> None:
        fields = {
            "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(self._count), "perm": "6",
            "writeQueueNums": str(self._count), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        await producer.connection.request(request_command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields), LIMIT_S * 1000)
        for queue_id in range(self._count):
            await self._send(producer, queue_id)
            self._offsets[queue_id] = 1

    async def _send(self, producer: Consumer, queue_id: int, kind: str = "other") -> None:
        properties = f"kind\x01{kind}\x02number\x017\x02UNIQ_KEY\x017F000001{queue_id:024X}"
        fields = {
            "a": "P", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
            "g": str(int(time.time() * 1e3)), "h": "0", "i": properties,
        }  # fmt: skip
        await producer.connection.request(request_command(RequestCode.SEND_MESSAGE_V2, fields, bytes(100)), 10_000)

    async def _send_each(
        self, producer: Consumer, consumers: Iterable[Consumer], *, wakes: bool = True, kind: str = "other"
    ) -> None:
        for each in consumers:
            await self._send(producer, each.number, kind)
            self._offsets[each.number] += 1
        if wakes:
            await asyncio.gather(*(each.answer for each in consumers if each.answer))

    async def _hold(self, what: str, consumers: list[Consumer], group: str, *, sql: bool = False) -> None:
        before = proc.memory_mib(self._pid, "RssAnon")
        async with self._timed(what):
            for each in consumers:
                each.pull(group, each.number, self._offsets[each.number], sql=sql)
            await self._settle(consumers)
        grown = (proc.memory_mib(self._pid, "RssAnon") - before) * 1024 / len(consumers)
        print(f"{'':44}{grown:10.2f} KiB more per consumer")

    async def _settle(self, consumers: list[Consumer]) -> None:
        """Wait until the broker has processed all requests: it responds in order on each connection."""
        names = request_command(RequestCode.GET_BROKER_RUNTIME_INFO, {})
        await asyncio.gather(*(each.connection.request(names, LIMIT_S * 1000) for each in consumers[:1]))
        heartbeat = HeartbeatData("10.0.0.1@settle").encode()
        for each in consumers:
            await each.connection.request(request_command(RequestCode.HEART_BEAT, {}, heartbeat), LIMIT_S * 1000)

    @asynccontextmanager
    async def _connections(self, count: int) -> AsyncIterator[list[Consumer]]:
        consumers = []
        for number in range(count):
            told: list[Command] = []
            connection = await connect(
                HOST, self._cluster.listen_port, lambda _, commands, told=told: told.extend(commands)
            )
            consumers.append(Consumer(number, connection, told))
        try:
            yield consumers
        finally:
            for each in consumers:
                if each.answer is not None:
                    each.answer.cancel()
                each.connection.close()

    @asynccontextmanager
    async def _timed(self, what: str) -> AsyncIterator[None]:
        began, used = time.monotonic(), proc.processor_s(self._pid)
        yield
        seconds, processor_s = time.monotonic() - began, proc.processor_s(self._pid) - used
        memory = proc.memory_mib(self._pid, "RssAnon")
        each_us = processor_s / self._count * 1e6
        print(
            f"{what:44}{seconds:8.2f} s  {each_us:8.0f} µs of processor time each  {memory:7.1f} MiB RssAnon",
            flush=True,
        )


def main(words: list[str]) -> int:
    """Print the figures."""
    count = int(words[0]) if words else 1_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, count * 2 + 100), hard), hard))
    cluster = OurCluster(config={"enablePropertyFilter": "true"})
    with cluster:
        memory = proc.memory_mib(cluster.broker.pid, "RssAnon")
        print(f"{count:,} consumers, {count:,} queues; at the start {memory:.1f} MiB RssAnon")
        asyncio.run(FanOut(cluster, count).run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
