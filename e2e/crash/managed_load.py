"""Producers during crashes that schedule messages in groups and repeating messages, and change and pause them.

A large number of messages is sent first. A steady stream of sends, changes and pauses follows until `finish`.

It implements the protocol itself, so that no request is ever repeated implicitly.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from crash.load_thread import LoadThread
from crash.timed_load import body_of
from delaymq.message.properties import encode_properties
from delaymq.protocol.batch import BatchMessage, encode_batch
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, request_command
from delaymq.transport import RemotingConnection, TransportError

TOPICS, QUEUES = ("ManagedA", "ManagedB"), 4
WORKERS = 4
IN_BATCH = 40
FILL_S = 5.0
"""Duration of sending the first messages, without outages."""
FIRST_DUE_S, LAST_DUE_S = 8.0, 33.0
"""Due times of the first messages after the start of the load."""
LARGE_GROUPS, LARGE = 6, 1_000
"""Number of large groups of each topic, and of their messages; the rest of the messages are in small groups."""
SCHEDULES, SCHEDULE_GROUPS = 200, 10
RUNS = (3, 8)
LATE_MS = 1_500
"""DELAY_EXPIRE_MS of repeating messages with DELAY_MISSED=none."""
CRON, CRON_MS = "*/2 * * * * *", 2_000
STREAM_DELAYS_MS = (300, 5_000)
MOVED_MS = 5_000
"""Maximum delay of a move, counted from then."""
OPERATIONS_PER_SECOND = 120
GROUP_PAUSE_S, TOPIC_PAUSE_S = (0.5, 8.0), (0.3, 1.5)
"""Durations of pauses; those of groups may be longer than the retention time, so that their marks are carried."""
MISSING_PAUSE_S = (4.0, 8.0)
"""Durations of pauses of repeating messages, of which each misses some runs."""
LONG_PAUSED = ((TOPICS[0], "large0"), (TOPICS[1], "large1"), (TOPICS[1], "schedules1"))
"""Groups that are paused from before their messages are sent to the end: the segments with these marks are deleted."""
MAX_PAUSED = 12
CATCH_UP_S = 3.0
TIMEOUT_MS = 5_000


@dataclass(frozen=True, slots=True)
class Request:
    """A message as its producer sent it."""

    topic: str
    properties: dict[str, str]
    born_ms: int
    queue_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A requested change of a message, a group or a topic, and the broker's response."""

    action: str
    topic: str
    group: str = ""
    key: str = ""
    """Unique key of a message; without it and without a group, the topic is meant."""
    delay_ms: int | None = None
    """Requested delay of a move."""
    asked_ms: int
    answered_ms: int
    code: int | None = None
    """Code of the response; None without one."""
    place: int = 0
    """Physical offset of the mark in the response; 0 without one."""
    changed: int = 0
    """Number of messages in the response."""
    due_ms: int | None = None
    """New due time in the response."""
    fate: str = ""
    """End of the message in the response, if it was not changed."""
    fate_ms: int | None = None
    is_final: bool = False
    """Whether overdue messages had been delivered before, because nothing was paused, moved or killed any more."""

    @property
    def target(self) -> tuple[str, str, str]:
        return self.topic, self.group, self.key


@dataclass
class Sent:
    """Requests and responses."""

    messages: dict[str, Request] = field(default_factory=dict)
    """By unique key; the log may contain those that were not acknowledged, or not."""
    places: dict[str, int] = field(default_factory=dict)
    """Physical offsets in the responses, by unique key of acknowledged messages."""
    changes: list[Change] = field(default_factory=list)


class ManagedLoad(LoadThread):
    """Sends in its own thread until `finish`; `sent` may be read when it has ended."""

    def __init__(self, port: int, seed: int, count: int, stretch: float = 1.0) -> None:
        """Send `count` messages first. `stretch` is a factor of the durations and due times of these."""
        super().__init__("managed-load", port)
        self.sent = Sent()
        self._count = count
        self._stretch = stretch
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._finishing = threading.Event()
        self._small: list[tuple[str, str]] = []
        """Topics and names of small groups."""
        self._changed: list[tuple[str, str]] = []
        """Groups that were changed, in order."""
        self._paused: dict[tuple[str, str], float] = {}
        """Paused topics and groups, and the times at which to resume them."""
        self._schedules: list[str] = []

    def finish(self) -> None:
        """End the stream, then resume everything, and cancel the repeating messages."""
        self._finishing.set()

    async def _run(self) -> None:
        start_ms = _now_ms()
        repeating = ([self._repeating(number)] for number in range(SCHEDULES))
        await asyncio.gather(*(self._send_all(repeating, 0.0) for _ in range(WORKERS)))
        await self._pause_long()
        first = self._first_messages(start_ms)
        interval_s = WORKERS * IN_BATCH * FILL_S * self._stretch / self._count
        await asyncio.gather(*(self._send_all(first, interval_s) for _ in range(WORKERS)))
        self.filled.set()
        await asyncio.gather(*(self._stream() for _ in range(WORKERS)))
        await self._wind_up()

    # Messages.

    async def _send_all(self, requests: Iterator[list[Request]], interval_s: float) -> None:
        connection = await self._connect()
        for batch in requests:
            connection = await self._send(batch, connection)
            await asyncio.sleep(interval_s)

    def _repeating(self, number: int) -> Request:
        if number % 4:
            properties = {"DELAY_EVERY_MS": str(self._random.randint(1_000, 3_000))}
        else:
            properties = {"DELAY_CRON": CRON}
        missed = ("latest", "all", "none")[number % 3]
        if missed != "latest":
            properties["DELAY_MISSED"] = missed
        if missed == "none":
            properties["DELAY_EXPIRE_MS"] = str(LATE_MS)
        if self._random.random() < 0.3:
            properties["DELAY_RUNS"] = str(self._random.randint(*RUNS))
        if number % 2:
            properties["DELAY_GROUP"] = f"schedules{number % SCHEDULE_GROUPS}"
        return self._request(self._random.choice(TOPICS), properties)

    def _first_messages(self, start_ms: int) -> Iterator[list[Request]]:
        """Yield batches of messages, each of one topic: those of large groups, of small ones, and of none, mixed."""
        batches = []
        for topic in TOPICS:
            groups = [f"large{number % LARGE_GROUPS}" for number in range(LARGE_GROUPS * LARGE)]
            while len(groups) < self._count // len(TOPICS):
                size = self._random.randint(0, 3)
                name = f"small{len(groups)}" if size else ""
                groups += [name] * (size or 1)
                self._small += [(topic, name)] * bool(size)
            self._random.shuffle(groups)
            batches += [(topic, groups[at : at + IN_BATCH]) for at in range(0, len(groups), IN_BATCH)]
        self._random.shuffle(batches)
        for topic, groups in batches:
            queue_id = self._random.randrange(QUEUES)
            due_s = [self._random.uniform(FIRST_DUE_S, LAST_DUE_S) * self._stretch for _ in groups]
            yield [
                self._request(topic, self._due(start_ms + int(seconds * 1000) - _now_ms(), group), queue_id)
                for seconds, group in zip(due_s, groups, strict=True)
            ]

    def _due(self, delay_ms: int, group: str) -> dict[str, str]:
        """Return properties that request a delay, in one of the forms."""
        delay_ms = max(delay_ms, 100)
        if self._random.random() < 0.5:
            due = {"TIMER_DELAY_MS": str(delay_ms)}
        else:
            due = {"TIMER_DELIVER_MS": str(_now_ms() + delay_ms)}
        return due | ({"DELAY_GROUP": group} if group else {})

    def _request(self, topic: str, properties: dict[str, str], queue_id: int | None = None) -> Request:
        key = f"M{next(self._numbers):07d}"
        if queue_id is None:
            queue_id = self._random.randrange(QUEUES)
        request = Request(topic, {"UNIQ_KEY": key, **properties}, _now_ms(), queue_id)
        self.sent.messages[key] = request
        if is_repeating(request):
            self._schedules.append(key)
        return request

    async def _send(self, requests: list[Request], connection: RemotingConnection) -> RemotingConnection:
        """Send messages in one request; return the connection for the next one."""
        command = _single(requests[0]) if len(requests) == 1 else _batch(requests)
        try:
            answer = await connection.request(command, TIMEOUT_MS)
            while answer.code == ResponseCode.SYSTEM_BUSY:  # nothing was stored
                answer = await connection.request(command, TIMEOUT_MS)
        except TransportError:
            return await self._connect()
        assert answer.code == 0, answer.remark
        ids = answer.fields["msgId"].split(",")
        for request, message_id in zip(requests, ids, strict=True):
            self.sent.places[request.properties["UNIQ_KEY"]] = _place_in(message_id)
        return connection

    # Changes.

    async def _stream(self) -> None:
        """Send messages that join groups, change messages and groups, and pause some of them."""
        connection = await self._connect()
        while not self._finishing.is_set():
            await asyncio.sleep(WORKERS / OPERATIONS_PER_SECOND)
            over = next((target for target, until_s in self._paused.items() if until_s < time.monotonic()), None)
            if over is not None:
                connection = await self._resume(over, connection)
                continue
            chance = self._random.random()
            if chance < 0.35:
                connection = await self._join(connection)
            elif chance < 0.65:
                connection = await self._change_message(connection)
            elif chance < 0.85:
                connection = await self._change_group(connection)
            elif len(self._paused) < MAX_PAUSED:
                connection = await self._pause(connection)

    async def _join(self, connection: RemotingConnection) -> RemotingConnection:
        """Send new messages to a group, half of them to one that was changed or paused before."""
        earlier = [*self._changed[-50:], *(each for each in self._paused if each[1])]
        is_earlier = bool(earlier) and self._random.random() < 0.5
        topic, group = self._random.choice(earlier) if is_earlier else self._group()
        queue_id, count = self._random.randrange(QUEUES), self._random.choice((1, 1, 2, 8))
        delays_ms = [self._random.randint(*STREAM_DELAYS_MS) for _ in range(count)]
        batch = [self._request(topic, self._due(delay_ms, group), queue_id) for delay_ms in delays_ms]
        return await self._send(batch, connection)

    def _group(self) -> tuple[str, str]:
        chance = self._random.random()
        if chance < 0.2:
            return self._random.choice(TOPICS), f"large{self._random.randrange(LARGE_GROUPS)}"
        if chance < 0.3:
            return self._random.choice(TOPICS), f"schedules{self._random.randrange(1, SCHEDULE_GROUPS, 2)}"
        return self._random.choice(self._small)

    async def _change_message(self, connection: RemotingConnection) -> RemotingConnection:
        """Change a repeating message, one of the newest, or any other."""
        chance, keys = self._random.random(), list(self.sent.places)
        weights = {"cancel": 3, "move": 5, "fire": 2}
        if chance < 0.2:
            keys, weights["cancel"] = self._schedules, 1
        elif chance < 0.5:
            keys = keys[-300:]
        key = self._random.choice(keys)
        if key not in self.sent.places:
            return connection
        topic = self.sent.messages[key].topic
        return await self._change(self._weighted(weights), (topic, "", key), connection)

    async def _change_group(self, connection: RemotingConnection) -> RemotingConnection:
        topic, group = self._group()
        weights = {"cancel": 3, "move": 4, "fire": 3}
        if group.startswith("large"):
            weights = {"cancel": 1, "move": 16, "fire": 3}
        elif group.startswith("schedules"):
            weights = {"cancel": 1, "move": 16, "fire": 16}
        self._changed.append((topic, group))
        return await self._change(self._weighted(weights), (topic, group, ""), connection)

    async def _pause(self, connection: RemotingConnection) -> RemotingConnection:
        is_topic = self._random.random() < 0.1 and not any(not group for _, group in self._paused)
        topic, group = (self._random.choice(TOPICS), "") if is_topic else self._group()
        durations_s = TOPIC_PAUSE_S if is_topic else GROUP_PAUSE_S
        if group.startswith("schedules"):
            durations_s = MISSING_PAUSE_S
        duration_s = self._random.uniform(*durations_s)
        self._paused[topic, group] = max(time.monotonic() + duration_s, self._paused.get((topic, group), 0.0))
        return await self._change("pause", (topic, group, ""), connection)

    async def _pause_long(self) -> None:
        connection = await self._connect()
        for target in LONG_PAUSED:
            self._paused[target] = math.inf
            connection = await self._change("pause", (*target, ""), connection)

    async def _resume(self, target: tuple[str, str], connection: RemotingConnection) -> RemotingConnection:
        until_s = self._paused.pop(target)
        made = len(self.sent.changes)
        connection = await self._change("resume", (*target, ""), connection)
        if not any(each.target[:2] == target and each.code == 0 for each in self.sent.changes[made:]):
            self._paused[target] = until_s
        return connection

    def _weighted(self, weights: dict[str, int]) -> str:
        return self._random.choices(list(weights), list(weights.values()))[0]

    async def _change(
        self, action: str, target: tuple[str, str, str], connection: RemotingConnection, *, is_final: bool = False
    ) -> RemotingConnection:
        """Request a change of a message (topic, "", unique key), of a group or of a topic; return the connection."""
        topic, group, key = target
        properties = {"DELAY_ACTION": action}
        properties |= {"TIMER_DEL_UNIQKEY": key} if key else {}
        properties |= {"DELAY_GROUP": group} if group else {}
        delay_ms = self._random.randint(0, MOVED_MS) if action == "move" else None
        if delay_ms is not None:
            properties["TIMER_DELAY_MS"] = str(delay_ms)
        asked_ms = _now_ms()
        command = _single(Request(topic, properties, asked_ms, 0))
        code: int | None = None
        answered: dict[str, str] = {}
        following = connection
        try:
            answer = await connection.request(command, TIMEOUT_MS)
            while answer.code == ResponseCode.SYSTEM_BUSY:  # nothing was changed
                answer = await connection.request(command, TIMEOUT_MS)
            code, answered = answer.code, answer.fields
            assert code in (0, ResponseCode.ILLEGAL_OPERATION), answer.remark
        except TransportError:
            following = await self._connect()
        change = Change(
            action=action, topic=topic, group=group, key=key, delay_ms=delay_ms, asked_ms=asked_ms,
            answered_ms=_now_ms(), code=code, place=_place_in(answered.get("msgId", "0")),
            changed=int(answered.get("delayChanged", "0")), due_ms=_optional(answered.get("delayDueMs")),
            fate=answered.get("delayFate", ""), fate_ms=_optional(answered.get("delayAtMs")), is_final=is_final,
        )  # fmt: skip
        self.sent.changes.append(change)
        return following

    async def _wind_up(self) -> None:
        """Resume everything, wait until overdue messages were delivered, and end the schedules."""
        connection = await self._connect()
        for target in list(self._paused):
            connection = await self._change("resume", (*target, ""), connection)
        await asyncio.sleep(CATCH_UP_S)
        for key in self._schedules:
            if key in self.sent.places:
                topic = self.sent.messages[key].topic
                connection = await self._change("cancel", (topic, "", key), connection, is_final=True)


def is_repeating(request: Request) -> bool:
    """Whether a request schedules a repeating message."""
    return "DELAY_EVERY_MS" in request.properties or "DELAY_CRON" in request.properties


def _single(request: Request) -> Command:
    fields = _fields(request) | {"i": encode_properties(request.properties).decode()}
    return request_command(RequestCode.SEND_MESSAGE_V2, fields, body_of(request.properties.get("UNIQ_KEY", "")))


def _batch(requests: list[Request]) -> Command:
    body = encode_batch(
        BatchMessage(0, body_of(each.properties["UNIQ_KEY"]), encode_properties(each.properties)) for each in requests
    )
    return request_command(RequestCode.SEND_BATCH_MESSAGE, _fields(requests[0]) | {"m": "true", "i": ""}, body)


def _fields(request: Request) -> dict[str, str]:
    return {
        "a": "P", "b": request.topic, "c": "TBW102", "d": str(QUEUES), "e": str(request.queue_id), "f": "0",
        "g": str(request.born_ms), "h": "0",
    }  # fmt: skip


def _place_in(message_id: str) -> int:
    """Return the physical offset in a message id of RocketMQ: its last 16 hexadecimal digits."""
    return int(message_id[-16:], 16)


def _optional(number: str | None) -> int | None:
    return None if number is None else int(number)


def _now_ms() -> int:
    return int(time.time() * 1000)
