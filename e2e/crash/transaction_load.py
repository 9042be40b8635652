"""Transactional producers during a crash: each sends half messages, reports most outcomes, omits some, and responds
to checks.

It implements the protocol itself, so that no request is ever repeated implicitly.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from crash.load_thread import LoadThread
from delaymq.message.properties import format_properties
from delaymq.protocol.bodies import HeartbeatData, ProducerData
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, request_command
from delaymq.transport import RemotingConnection, TransportError

TOPIC, GROUP = "PaidTopic", "payers"
QUEUES = 4
WORKERS = 8
TRANSACTIONS_PER_SECOND = 400
COMMIT, ROLLBACK = 8, 12
TIMEOUT_MS = 5_000


@dataclass
class Told:
    """Responses to the producers."""

    acknowledged: set[str] = field(default_factory=set)
    """Keys of half messages that the broker stored."""
    failed: set[str] = field(default_factory=set)
    """Without a response: the log may contain them or not."""
    ended: set[str] = field(default_factory=set)
    """Keys whose commit or rollback had a response."""
    asked: int = 0
    """Number of checks received."""


def is_committed(key: str) -> bool:
    """Return whether the transaction is to be committed: always the same for a key."""
    return int(key[1:]) % 3 != 0


def is_told(key: str) -> bool:
    """Return whether its producer sends the outcome itself; otherwise it waits for a check."""
    return int(key[1:]) % 4 != 0


def is_delayed(key: str) -> bool:
    """Return whether it has a delay level."""
    return int(key[1:]) % 5 == 0


def timed_properties(key: str) -> dict[str, str]:
    """Return properties that request a due time; two in five transactions have one."""
    form = int(key[1:]) % 5
    if form == 1:
        return {"TIMER_DELAY_MS": "1500"}
    return {"TIMER_DELIVER_MS": str(int(time.time() * 1000) + 2500)} if form == 2 else {}


class TransactionLoad(LoadThread):
    """Sends in its own thread until `stop`; `told` may be read when it has ended."""

    def __init__(self, port: int, count: int, per_second: int = TRANSACTIONS_PER_SECOND) -> None:
        super().__init__("transaction-load", port)
        self._count = count
        self._per_second = per_second
        self._stopping = threading.Event()
        self.told = Told()
        self._ending: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Stop the thread; until then it responds to checks."""
        self._stopping.set()

    async def _run(self) -> None:
        answering = asyncio.create_task(self._answer())
        keys = iter([f"K{number:06d}" for number in range(self._count)])
        began = time.monotonic()
        await asyncio.gather(*(self._produce(keys, began, worker) for worker in range(WORKERS)))
        self.filled.set()
        while not self._stopping.is_set():
            if answering.done():
                answering.result()
            await asyncio.sleep(0.05)
        answering.cancel()

    async def _produce(self, keys: Iterator[str], began: float, worker: int) -> None:
        connection = await self._connect()
        for done, key in enumerate(keys):
            due = began + (done * WORKERS + worker) / self._per_second
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            try:
                answer = await connection.request(_half(key), TIMEOUT_MS)
            except TransportError:
                self.told.failed.add(key)
                connection = await self._connect()
                continue
            assert answer.code == 0, answer.remark
            self.told.acknowledged.add(key)
            if is_told(key):
                queue_offset, physical_offset = answer.fields["queueOffset"], str(int(answer.fields["msgId"][-16:], 16))
                try:
                    await self._end(connection, key, queue_offset, physical_offset, from_check=False)
                except TransportError:
                    connection = await self._connect()

    async def _end(
        self, connection: RemotingConnection, key: str, queue_offset: str, physical_offset: str, *, from_check: bool
    ) -> None:
        fields = {
            "producerGroup": GROUP,
            "tranStateTableOffset": queue_offset,
            "commitLogOffset": physical_offset,
            "commitOrRollback": str(COMMIT if is_committed(key) else ROLLBACK),
            "fromTransactionCheck": str(from_check).lower(),
            "msgId": key,
        }
        answer = await connection.request(request_command(RequestCode.END_TRANSACTION, fields), TIMEOUT_MS)
        assert answer.code == 0, f"{key}: {answer.remark}"
        self.told.ended.add(key)

    async def _answer(self) -> None:
        """Keep a registered connection, on which the broker sends checks."""
        while True:
            connection = await self._connect(self._asked)
            beat = HeartbeatData("crash-producer", producer_data_set=[ProducerData(GROUP)]).encode()
            with contextlib.suppress(TransportError):
                while True:
                    await connection.request(request_command(RequestCode.HEART_BEAT, body=beat), TIMEOUT_MS)
                    await asyncio.sleep(0.5)

    def _asked(self, connection: RemotingConnection, commands: Sequence[Command]) -> None:
        for command in commands:
            if command.code == RequestCode.CHECK_TRANSACTION_STATE:
                self.told.asked += 1
                task = asyncio.ensure_future(self._tell(connection, command.fields))
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

    async def _tell(self, connection: RemotingConnection, fields: dict[str, str]) -> None:
        with contextlib.suppress(TransportError):
            place = fields["tranStateTableOffset"], fields["commitLogOffset"]
            await self._end(connection, fields["msgId"], *place, from_check=True)


def _half(key: str) -> Command:
    properties = {"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": GROUP, **timed_properties(key)}
    if is_delayed(key):
        properties["DELAY"] = "1"
    fields = {"a": GROUP, "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(int(key[1:]) % QUEUES), "f": "4"}
    fields |= {"g": str(int(time.time() * 1000)), "h": "0", "i": format_properties(properties)}
    return request_command(RequestCode.SEND_MESSAGE_V2, fields, key.encode() * 16)
