"""Consumer during a crash: it sends messages back and commits offsets sequentially, and records the responses.

It implements the protocol itself, so that no request is ever repeated implicitly.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from crash.load_thread import LoadThread
from delaymq.message.properties import format_properties
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, request_command
from delaymq.transport import RemotingConnection, TransportError

TOPIC, GROUP = "RetryTopic", "retry_readers"
QUEUES = 4
WORKERS = 8
SEND_BACKS_PER_SECOND = 400
COMMIT_PAUSE_S = 0.01
TIMEOUT_MS = 5_000


@dataclass(frozen=True)
class Stored:
    """A message that can be sent back."""

    key: str
    physical_offset: int
    is_hopeless: bool
    """Whether it is sent back directly to the dead-letter topic."""


@dataclass
class Told:
    """Responses to the consumer; times are monotonic seconds."""

    messages: list[Stored] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    """Without a response: the log may contain them or not."""
    commits: list[tuple[float, int, int]] = field(default_factory=list)
    """Acknowledged commits: time, queue id, offset."""
    highest_tried: dict[int, int] = field(default_factory=dict)
    found: list[tuple[float, dict[int, tuple[int, int]]]] = field(default_factory=list)
    """After each reconnect: time, queue id → (the group's offset, the queue's end)."""


class RetryLoad(LoadThread):
    """Sends everything back in its own thread; `told` may be read when it has ended."""

    def __init__(self, port: int, count: int) -> None:
        super().__init__("retry-load", port)
        self._count = count
        self.told = Told()

    async def _run(self) -> None:
        await self._store_messages()
        self.filled.set()
        waiting = iter(list(self.told.messages))
        began = time.monotonic()
        ending = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._commit(ending))
            await asyncio.gather(*(self._send_back(waiting, began, worker) for worker in range(WORKERS)))
            ending.set()

    async def _store_messages(self) -> None:
        connection = await self._connect()
        for number in range(self._count):
            key = f"K{number:06d}"
            answer = await _taken(connection, _send(key, number % QUEUES))
            assert answer.code == 0, answer.remark
            offset = int(answer.fields["msgId"][-16:], 16)
            self.told.messages.append(Stored(key, offset, number % 3 == 0))
        connection.close()

    async def _send_back(self, waiting: Iterator[Stored], began: float, worker: int) -> None:
        connection = await self._connect()
        for done, message in enumerate(waiting):
            due = began + (done * WORKERS + worker) / SEND_BACKS_PER_SECOND
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            level = -1 if message.is_hopeless else 1
            fields = {"group": GROUP, "offset": str(message.physical_offset), "delayLevel": str(level)}
            try:
                command = request_command(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
                answer = await _taken(connection, command)
            except TransportError:
                self.told.failed.add(message.key)
                connection = await self._connect()
                continue
            assert answer.code == 0, answer.remark
            self.told.acknowledged.add(message.key)

    async def _commit(self, ending: asyncio.Event) -> None:
        """Commit offsets until the end, but after a restart only once the broker's offsets were read."""
        connection = await self._connect()
        next_offsets = dict.fromkeys(range(QUEUES), 1)
        while not ending.is_set():
            for queue_id, offset in next_offsets.items():
                fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)}
                commit = request_command(RequestCode.UPDATE_CONSUMER_OFFSET, fields | {"commitOffset": str(offset)})
                self.told.highest_tried[queue_id] = offset
                try:
                    answer = await connection.request(commit, TIMEOUT_MS)
                except TransportError:
                    connection = await self._look()
                    break
                assert answer.code == 0, answer.remark
                self.told.commits.append((time.monotonic(), queue_id, offset))
                next_offsets[queue_id] = min(offset + 1, self._count // QUEUES)
            await asyncio.sleep(COMMIT_PAUSE_S)

    async def _look(self) -> RemotingConnection:
        """Record the offsets stored by the restarted broker; return the connection on which it responded."""
        while True:
            connection = await self._connect()
            with contextlib.suppress(TransportError):  # still the broker that is being killed
                self.told.found.append((time.monotonic(), await _offsets(connection)))
                return connection


async def _offsets(connection: RemotingConnection) -> dict[int, tuple[int, int]]:
    """Return queue id → (the group's offset, the queue's end)."""
    seen = {}
    for queue_id in range(QUEUES):
        fields = {"topic": TOPIC, "queueId": str(queue_id)}
        offset_of = request_command(RequestCode.QUERY_CONSUMER_OFFSET, fields | {"consumerGroup": GROUP})
        committed = await connection.request(offset_of, TIMEOUT_MS)
        end = await connection.request(request_command(RequestCode.GET_MAX_OFFSET, fields), TIMEOUT_MS)
        offset = int(committed.fields["offset"]) if committed.code == 0 else 0
        seen[queue_id] = (offset, int(end.fields["offset"]))
    return seen


async def _taken(connection: RemotingConnection, command: Command) -> Command:
    """Return the broker's response; busy rejections are repeated, since the broker stored nothing."""
    while True:
        answer = await connection.request(command, TIMEOUT_MS)
        if answer.code != ResponseCode.SYSTEM_BUSY:
            return answer


def _send(key: str, queue_id: int) -> Command:
    fields = {"a": "P", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(queue_id), "f": "0", "g": "0", "h": "0"}
    fields["i"] = format_properties({"UNIQ_KEY": key})
    return request_command(RequestCode.SEND_MESSAGE_V2, fields, key.encode() * 16)
