"""Producers of timed messages during crashes: a large number at first, then a steady stream until `stop`.

Meanwhile, they cancel, move, fire and touch messages, and replace them by others with the same key.

It implements the protocol itself, so that no request is ever repeated implicitly.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from crash.load_thread import LoadThread
from delaymq.message.properties import encode_properties
from delaymq.protocol.batch import BatchMessage, encode_batch
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, request_command
from delaymq.transport import RemotingConnection, TransportError

TOPIC, QUEUES = "TimedTopic", 4
WORKERS = 4
IN_BATCH = 20
FILL_S = 8.0
"""Duration of sending the first messages, without outages."""
FIRST_DUE_S, LAST_DUE_S, FAR_DUE_S = 16.0, 27.0, 42.0
"""Due times of the first messages after the start of the load; those of one in ten are between the last two, so that
they are carried forward."""
LONG_LEVEL = 4
"""A delay level that outlasts the retention time; in the first messages, one for each batch."""
STREAM_DELAYS_MS = (300, 6_000)
STREAM_PER_SECOND = 150
KEYS = 40
"""Number of different keys of messages."""
CHANGED_SHARE = 0.5
"""Share of the requests of the stream that are followed by a change."""
MOVED_MS = 4_000
"""Maximum delay of a move, counted from then."""
TIMEOUT_MS = 5_000


@dataclass(frozen=True, slots=True)
class Request:
    """A message as its producer sent it."""

    properties: dict[str, str]
    born_ms: int
    queue_id: int


@dataclass(frozen=True, slots=True)
class Change:
    """A requested change of a message, and the broker's response."""

    action: str
    code: int | None
    """Code of the response; None without one."""
    asked_ms: int
    answered_ms: int
    due_ms: int | None
    """New due time in the response."""
    fate: str
    """End of the message in the response, if it was not changed."""


@dataclass
class Sent:
    """Requests by unique key, by the broker's response."""

    acknowledged: dict[str, Request] = field(default_factory=dict)
    failed: dict[str, Request] = field(default_factory=dict)
    """Without a response: the log may contain them or not."""
    changes: dict[str, list[Change]] = field(default_factory=dict)
    """Requested changes of messages that were acknowledged, in order."""


class TimedLoad(LoadThread):
    """Sends in its own thread until `stop`; `sent` may be read when it has ended."""

    def __init__(self, port: int, seed: int, count: int, stretch: float) -> None:
        """Send `count` messages first. `stretch` is a factor of the durations and due times of these."""
        super().__init__("timed-load", port)
        self.sent = Sent()
        self._count = count
        self._stretch = stretch
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._stopping = threading.Event()
        self._busy: set[str] = set()
        """Keys of messages that a worker is changing."""

    def stop(self) -> None:
        """Stop the stream."""
        self._stopping.set()

    async def _run(self) -> None:
        start_ms = _now_ms()
        left = iter(range(self._count // IN_BATCH))
        await asyncio.gather(*(self._fill(left, start_ms) for _ in range(WORKERS)))
        self.filled.set()
        await asyncio.gather(*(self._stream() for _ in range(WORKERS)))

    async def _fill(self, left: Iterator[int], start_ms: int) -> None:
        connection = await self._connect()
        for _ in left:
            connection = await self._send([self._first(start_ms) for _ in range(IN_BATCH)], connection)
            connection = await self._send([{"DELAY": str(LONG_LEVEL)}], connection)
            await asyncio.sleep(WORKERS * IN_BATCH * FILL_S * self._stretch / self._count)

    async def _stream(self) -> None:
        """Send messages with short delays, alone and in batches."""
        connection = await self._connect()
        while not self._stopping.is_set():
            count = self._random.choice((1, 1, 1, 8))
            schedules = [self._schedule(self._random.randint(*STREAM_DELAYS_MS)) for _ in range(count)]
            if count == 1 and self._random.random() < 0.3:
                schedules = [{"DELAY": str(self._random.randint(1, 3))}]  # batches cannot have levels
                if self._random.random() < 0.3:
                    schedules[0] |= {"DELAY_KEY": f"key{self._random.randrange(KEYS)}"}
            connection = await self._send(schedules, connection)
            if self._random.random() < CHANGED_SHARE:
                connection = await self._change(connection)
            await asyncio.sleep(WORKERS * count / STREAM_PER_SECOND)

    async def _change(self, connection: RemotingConnection) -> RemotingConnection:
        """Change one of the newest or of the first messages; return the connection for the next request."""
        acknowledged = list(self.sent.acknowledged)
        candidates = acknowledged[-300:] if self._random.random() < 0.5 else acknowledged[: self._count]
        key = self._random.choice(candidates)
        if key in self._busy:
            return connection
        self._busy.add(key)
        action = self._random.choice(("cancel", "move", "move", "fire", "touch"))
        properties = {"DELAY_ACTION": action, "TIMER_DEL_UNIQKEY": key}
        if action == "move":
            properties["TIMER_DELAY_MS"] = str(self._random.randint(0, MOVED_MS))
        asked_ms = _now_ms()
        fields = _fields(Request(properties, asked_ms, 0)) | {"i": encode_properties(properties).decode()}
        code, answered, following = None, {}, connection
        try:
            answer = await connection.request(request_command(RequestCode.SEND_MESSAGE_V2, fields, b""), TIMEOUT_MS)
            code, answered = answer.code, answer.fields
        except TransportError:
            following = await self._connect()
        finally:
            self._busy.discard(key)
        due = answered.get("delayDueMs")
        change = Change(
            action, code, asked_ms, _now_ms(), None if due is None else int(due), answered.get("delayFate", "")
        )
        assert code in (None, 0, ResponseCode.SYSTEM_BUSY, ResponseCode.ILLEGAL_OPERATION), code
        if code != ResponseCode.SYSTEM_BUSY:
            self.sent.changes.setdefault(key, []).append(change)
        return following

    def _first(self, start_ms: int) -> dict[str, str]:
        earliest_s, latest_s = (LAST_DUE_S, FAR_DUE_S) if self._random.random() < 0.1 else (FIRST_DUE_S, LAST_DUE_S)
        return self._schedule(
            start_ms + int(self._random.uniform(earliest_s, latest_s) * self._stretch * 1000) - _now_ms()
        )

    def _schedule(self, delay_ms: int) -> dict[str, str]:
        """Return a property that requests a delay, in one of the forms; those in seconds are rounded up."""
        delay_ms = max(delay_ms, 100)
        form = self._random.randrange(4)
        if form == 0:
            return {"TIMER_DELAY_SEC": str(-(-delay_ms // 1000))}
        if form == 1:
            return {"TIMER_DELAY_MS": str(delay_ms)}
        return {("TIMER_DELIVER_MS", "__STARTDELIVERTIME")[form - 2]: str(_now_ms() + delay_ms)}

    async def _send(self, schedules: list[dict[str, str]], connection: RemotingConnection) -> RemotingConnection:
        """Send messages in one request; return the connection for the next one."""
        queue_id, born_ms = self._random.randrange(QUEUES), _now_ms()
        requests = {}
        for schedule in schedules:
            key = f"T{next(self._numbers):07d}"
            requests[key] = Request({"UNIQ_KEY": key, **schedule}, born_ms, queue_id)
        command = _single(*requests.items()) if len(requests) == 1 else _batch(requests)
        try:
            answer = await connection.request(command, TIMEOUT_MS)
            while answer.code == ResponseCode.SYSTEM_BUSY:  # nothing was stored
                answer = await connection.request(command, TIMEOUT_MS)
        except TransportError:
            self.sent.failed.update(requests)
            return await self._connect()
        assert answer.code == 0, answer.remark
        self.sent.acknowledged.update(requests)
        return connection


def _single(sent: tuple[str, Request]) -> Command:
    key, request = sent
    fields = _fields(request) | {"i": encode_properties(request.properties).decode()}
    return request_command(RequestCode.SEND_MESSAGE_V2, fields, body_of(key))


def _batch(requests: dict[str, Request]) -> Command:
    body = encode_batch(
        BatchMessage(0, body_of(key), encode_properties(request.properties)) for key, request in requests.items()
    )
    fields = _fields(next(iter(requests.values()))) | {"m": "true", "i": ""}
    return request_command(RequestCode.SEND_BATCH_MESSAGE, fields, body)


def _fields(request: Request) -> dict[str, str]:
    return {
        "a": "P", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(request.queue_id), "f": "0",
        "g": str(request.born_ms), "h": "0",
    }  # fmt: skip


def body_of(key: str) -> bytes:
    """Return the body of a message."""
    return key.encode() * 8


def _now_ms() -> int:
    return int(time.time() * 1000)
