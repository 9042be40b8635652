"""A thousand members of one group in a topic of a thousand queues, over a thousand connections.

The members implement the protocol themselves, in the same way as RocketMQ's clients; RocketMQ's producer sends to them.
"""

import asyncio
import math
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from delaymq.message.record import Record, decode_record
from delaymq.protocol.bodies import ConsumerData, ConsumerIds, HeartbeatData, SubscriptionData
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, request_command
from delaymq.transport import RemotingConnection, connect
from harness.brokers import HOST, Cluster
from harness.clients import Workbench
from harness.driver import ClientError
from harness.waiting import until

MEMBERS = QUEUES = 1_000
OFFLINE = 206
LIMIT_MS = 120_000
HELD_MS = 100_000
AT_ONCE = 50
"""Number of connections opened, or messages sent, concurrently."""
TOLD_AT_ONCE, TELL_INTERVAL_S = 16, 0.2
"""Number of members notified of each change immediately; further members are notified at this interval."""
HELD_LIMIT_KIB = 32
"""Maximum memory of a held pull; it needs a tenth of that, and the rest is the allocator's tolerance."""


class Member:
    """One connection of the group; reads a queue from its beginning."""

    def __init__(self, number: int) -> None:
        self.client_id = f"127.0.0.1@{number:04}"
        self.told = 0
        """Number of notifications that the group changed."""
        self.received: list[Record] = []
        self.queue_id = -1
        self.offset = 0
        self._connection: RemotingConnection | None = None

    async def join(self, port: int, group: str, topic: str) -> None:
        self._connection = await connect(HOST, port, self._take)
        wanted = [SubscriptionData(topic, "*", sub_version=1)]
        member = ConsumerData(group, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", wanted)
        body = HeartbeatData(self.client_id, consumer_data_set=[member]).encode()
        assert (await self.ask(RequestCode.HEART_BEAT, {}, body)).code == 0

    async def allocate(self, group: str) -> None:
        """Select its queue from the group's members, according to RocketMQ's averaging strategy."""
        answer = await self.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
        self.queue_id = sorted(ConsumerIds.decode(answer.body).consumer_id_list).index(self.client_id)

    async def pull(self, group: str, topic: str, *, wait_ms: int = 0) -> Command:
        """Send one pull; its messages are recorded."""
        fields = {
            "consumerGroup": group, "topic": topic, "queueId": str(self.queue_id), "queueOffset": str(self.offset),
            "maxMsgNums": "32", "sysFlag": "2" if wait_ms else "0", "commitOffset": "0",
            "suspendTimeoutMillis": str(wait_ms), "subVersion": "1",
        }  # fmt: skip
        answer = await self.ask(RequestCode.PULL_MESSAGE, fields)
        position = 0
        while position < len(answer.body):
            record = decode_record(answer.body, position)
            self.received.append(record)
            position += record.size
        self.offset = int(answer.fields["nextBeginOffset"])
        return answer

    async def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        assert self._connection is not None
        return await self._connection.request(request_command(code, fields, body), LIMIT_MS)

    def leave(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _take(self, _: RemotingConnection, commands: Sequence[Command]) -> None:
        self.told += sum(command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED for command in commands)


@contextmanager
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, MEMBERS * 2 + 500), hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.timeout(300)
def test_a_thousand_members_read_a_thousand_queues_each_message_once(
    against: str, new_cluster: Callable[..., Cluster], new_workbench: Callable[[Cluster], Workbench]
) -> None:
    with many_files(), new_cluster() as cluster:
        clients = new_workbench(cluster)
        topic, group = clients.topic(queues=QUEUES), clients.group()
        fan_out = FanOut(cluster, clients, topic, group)
        asyncio.run(fan_out.run())
        if against == "ours":
            fan_out.judge_costs()
        until(lambda: is_offline(clients, group), "the end of the group")


def is_offline(clients: Workbench, group: str) -> bool:
    try:
        return not clients.admin.consumers(group)
    except ClientError as error:
        return error.code == OFFLINE


class FanOut:
    """Life cycle of the group; `judge_costs` checks the documented costs of DelayMQ's broker."""

    def __init__(self, cluster: Cluster, clients: Workbench, topic: str, group: str) -> None:
        self._cluster = cluster
        self._clients = clients
        self._topic = topic
        self._group = group
        self._members = [Member(number) for number in range(MEMBERS)]
        self._joining_s = self._held_kib = 0.0

    async def run(self) -> None:
        topic, group, members = self._topic, self._group, self._members
        await asyncio.to_thread(self._send_each)
        async with self._joined():
            await self._all(member.allocate(group) for member in members)
            assert sorted(member.queue_id for member in members) == list(range(QUEUES))
            await self._all(member.pull(group, topic) for member in members)
            before_kib = self._memory_kib()
            held = [asyncio.create_task(member.pull(group, topic, wait_ms=HELD_MS)) for member in members]
            # Responses on a connection are in order of the requests, so the broker now holds the pull.
            await self._all(member.allocate(group) for member in members)
            assert not any(pull.done() for pull in held)
            self._held_kib = (self._memory_kib() - before_kib) / MEMBERS
            await asyncio.to_thread(self._send_each)
            assert {answer.code for answer in await asyncio.gather(*held)} == {0}
            received = Counter(each.properties["UNIQ_KEY"] for member in members for each in member.received)
            assert set(received.values()) == {1}
            assert Counter(len(member.received) for member in members) == {2: MEMBERS}
            await self._share_a_queue()

    def judge_costs(self) -> None:
        told = sum(member.told for member in self._members)
        print(f"{told} notices in {self._joining_s:.1f} s; {self._held_kib:.2f} KiB for each held pull")
        intervals = math.ceil(self._joining_s / TELL_INTERVAL_S) + 1
        assert told <= TOLD_AT_ONCE**2 + MEMBERS * intervals
        assert self._held_kib < HELD_LIMIT_KIB

    async def _share_a_queue(self) -> None:
        """Send one message for which all members wait."""
        for member in self._members:
            member.queue_id, member.offset = 0, 2
            member.received.clear()
        held = [asyncio.create_task(member.pull(self._group, self._topic, wait_ms=HELD_MS)) for member in self._members]
        await asyncio.to_thread(self._clients.producer.send, self._topic, "for all", queue_id=0)
        await asyncio.gather(*held)
        assert [[each.body for each in member.received] for member in self._members] == [[b"for all"]] * MEMBERS

    def _send_each(self) -> None:
        """Send a message to each queue with RocketMQ's producer."""
        producer = self._clients.producer
        for at in range(0, QUEUES, AT_ONCE):
            sends = [producer.submit(self._topic, 100, queue_id=queue_id) for queue_id in range(at, at + AT_ONCE)]
            assert {producer.driver.result(send)["status"] for send in sends} == {"SEND_OK"}

    @asynccontextmanager
    async def _joined(self) -> AsyncIterator[None]:
        """With all members, most of which have been notified of others."""
        members, port = self._members, self._cluster.listen_port
        began = time.monotonic()
        try:
            for at in range(0, MEMBERS, AT_ONCE):
                await self._all(member.join(port, self._group, self._topic) for member in members[at : at + AT_ONCE])
            self._joining_s = time.monotonic() - began
            first = members[: MEMBERS // 2]
            await asyncio.to_thread(until, lambda: all(member.told for member in first), "notices of new members")
            yield
        finally:
            for member in members:
                member.leave()

    def _memory_kib(self) -> float:
        status = Path(f"/proc/{self._cluster.broker.pid}/status").read_text()
        return float(status.partition("RssAnon:")[2].split()[0])

    @staticmethod
    async def _all(questions: Iterable[Awaitable[object]]) -> None:
        await asyncio.gather(*questions)
