"""Producers of a replicated group during faults. Each send has its own unique key and is never repeated."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from dataclasses import dataclass

from delaymq.message.properties import encode_properties
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.transport import RemotingConnection, TransportError, connect

TOPIC, QUEUES = "Replicated", 2
TIMEOUT_MS = 4_000
PAUSE_S = 0.004
DELAYS_MS = (300, 6_000)


@dataclass(frozen=True)
class Sent:
    """A send, and when it was answered."""

    delay_ms: int
    """Delay that it requested; 0 without one."""
    asked_ms: int
    answered_s: float


class GroupLoad(threading.Thread):
    """Sends to whichever member accepts, until `stop`. The results may be read when the thread has ended."""

    def __init__(self, ports: list[int], seed: int, workers: int = 4) -> None:
        super().__init__(name="group-load", daemon=True)
        self.acknowledged: dict[str, Sent] = {}
        self.uncertain: dict[str, Sent] = {}
        self.refused = 0
        self.error: BaseException | None = None
        self._ports = ports
        self._workers = workers
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End the load."""
        self._stopping.set()

    def longest_gap_s(self) -> float:
        """Return the longest time without an acknowledged send."""
        times = sorted(each.answered_s for each in self.acknowledged.values())
        return max((after - before for before, after in itertools.pairwise(times)), default=0.0)

    def run(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self.error = error

    async def _run(self) -> None:
        await asyncio.gather(*(self._work(number) for number in range(self._workers)))

    async def _work(self, at: int) -> None:
        connection: RemotingConnection | None = None
        while not self._stopping.is_set():
            if connection is None or connection.closing:
                at += 1
                try:
                    connection = await connect("127.0.0.1", self._ports[at % len(self._ports)], timeout_ms=1_000)
                except TransportError:
                    await asyncio.sleep(0.05)
                    continue
            if not await self._send(connection):
                connection.abort()
                connection = None
                await asyncio.sleep(0.05)
            await asyncio.sleep(PAUSE_S)

    async def _send(self, connection: RemotingConnection) -> bool:
        """Send a message; return whether the member accepts messages."""
        key, kind = f"R{next(self._numbers):07d}", self._random.randrange(3)
        delay_ms, properties = 0, {"UNIQ_KEY": key}
        if kind == 1:
            level = self._random.randint(1, 3)
            delay_ms, properties["DELAY"] = level * 1_000, str(level)
        elif kind == 2:
            delay_ms = self._random.randint(*DELAYS_MS)
            properties["TIMER_DELAY_MS"] = str(delay_ms)
        asked_ms = int(time.time() * 1_000)
        fields = {
            "a": "P", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(self._random.randrange(QUEUES)), "f": "0",
            "g": str(asked_ms), "h": "0", "i": encode_properties(properties).decode(),
        }  # fmt: skip
        command = request_command(RequestCode.SEND_MESSAGE_V2, fields, key.encode() * 20)
        try:
            code = (await connection.request(command, TIMEOUT_MS)).code
        except TransportError:
            code = None
        sent = Sent(delay_ms, asked_ms, time.monotonic())
        if code == 0:
            self.acknowledged[key] = sent
        elif code in (None, 10, 11, 12):
            self.uncertain[key] = sent
        else:
            self.refused += 1
        return code in (0, 10, 11, 12)
