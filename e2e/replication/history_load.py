"""Clients of a replicated group during faults: producers, transactions, cancels, and a consumer of each queue.

They implement the protocol themselves, so that no request is ever repeated implicitly.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from delaymq.message.properties import encode_properties
from delaymq.protocol.bodies import HeartbeatData, ProducerData
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, request_command
from delaymq.transport import RemotingConnection, TransportError, connect
from harness.commitlog import pulled_records
from replication.history import (
    GROUP,
    QUEUES,
    TOPIC,
    TRANSACTION_GROUP,
    Cancel,
    End,
    History,
    Kind,
    Moved,
    Outcome,
    Send,
    is_committed,
    outcome_of,
)
from replication.namespaces import Node

TIMEOUT_MS = 3_000
CONNECT_TIMEOUT_MS = 500
RETRY_S = 0.05
HELD_MS = 1_000
LEVELS = (1, 2, 3)
DELAYS_MS = (300, 6_000)
COMMIT, ROLLBACK = 8, 12
CAN_BE_HELD, HAS_SUBSCRIPTION = 2, 4
CANCEL_S, TRANSACTION_S, COMMIT_S = 0.03, 0.03, 0.2
MOVES_S = (0.2, 2.0)
NEWEST = 200


Ask = Callable[[Command], Awaitable[tuple[int | None, dict[str, str], bytes]]]
"""Sends a request, and returns code, fields and body of the response; the code is None without one."""


@dataclass(frozen=True, kw_only=True)
class Mix:
    """What clients do."""

    kinds: Sequence[Kind] = (Kind.PLAIN, Kind.LEVEL, Kind.TIMED)
    producers: int = 4
    pause_s: float = 0.012
    """Pause of each producer between two sends."""
    cancels: bool = True
    transactions: bool = True
    delays_ms: tuple[int, int] = DELAYS_MS
    reads_replicas: bool = False
    """Whether consumers also read from replicas."""


@dataclass(slots=True)
class _Position:
    """Position of a consumer in its queue."""

    queue_id: int
    offset: int = 0
    asked: int = 0
    """Newest offset of which a commit was requested."""
    committed: int = 0
    """Newest offset of which a commit was acknowledged."""
    commit_s: float = 0.0
    """Monotonic time of the next commit."""
    moves_s: float = 0.0
    """Monotonic time at which it reads from another member."""


class HistoryLoad(threading.Thread):
    """Clients in the network of a node, in their own thread, until `stop`. `history` may be read when it has ended."""

    def __init__(self, node: Node, addresses: Sequence[tuple[str, int]], seed: str, mix: Mix) -> None:
        super().__init__(name="history-load", daemon=True)
        self.history = History()
        self.error: BaseException | None = None
        self._node = node
        self._addresses = list(addresses)
        self._mix = mix
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._positions = [_Position(queue_id) for queue_id in range(QUEUES)]
        self._producing = threading.Event()
        self._consuming = threading.Event()
        self._favoured = 0
        """Index of the member that accepted a request last."""
        self._compares = True
        self._answers: set[asyncio.Task[None]] = set()

    # Control, from other threads.

    def stop_producing(self) -> None:
        """End sends and cancels. Consumers and responses to checks of transactions continue."""
        self._producing.set()

    def stop(self) -> None:
        """End everything."""
        self._producing.set()
        self._consuming.set()

    @contextlib.contextmanager
    def without_offsets(self) -> Iterator[None]:
        """Expect no committed offsets of before: brokers write them to the disk every few seconds."""
        self._compares = False
        yield
        for position in self._positions:
            position.committed = 0
        self._compares = True

    def read_until(self) -> list[int]:
        """Return the offset after the last message that was received from each queue."""
        seen = (self.history.seen.get(queue_id) for queue_id in range(QUEUES))
        return [records[-1].queue_offset + 1 if records else 0 for records in seen]

    def accepts_since(self, time_s: float) -> bool:
        """Return whether a send was acknowledged after a monotonic time."""
        newest = self.history.sends[-NEWEST:]
        return any(send.outcome is Outcome.DONE and send.answered_s > time_s for send in newest)

    # Clients.

    def run(self) -> None:
        try:
            self._node.enter()
            asyncio.run(self._run())
        except BaseException as error:
            self.error = error

    async def _run(self) -> None:
        producers = [self._produce() for _ in range(self._mix.producers)]
        producers += [self._cancel()] if self._mix.cancels else []
        producers += [self._transact()] if self._mix.transactions else []
        members = range(len(self._addresses)) if self._mix.transactions else ()
        checks = [asyncio.ensure_future(self._respond(member)) for member in members]
        consumers = [self._consume(queue_id) for queue_id in range(QUEUES)]
        try:
            await asyncio.gather(*producers, *consumers)
        finally:
            for check in checks:
                check.cancel()
            await asyncio.gather(*checks, return_exceptions=True)

    async def _connection(self, connection: RemotingConnection | None) -> RemotingConnection | None:
        """Return an open connection with the member that accepted last, else None after a pause."""
        if connection is not None and not connection.closing:
            return connection
        return await self._connect(self._addresses[self._favoured])

    async def _connect(self, address: tuple[str, int]) -> RemotingConnection | None:
        try:
            return await connect(*address, timeout_ms=CONNECT_TIMEOUT_MS)
        except TransportError:
            await self._leave(address[0])
            return None

    async def _leave(self, host: str) -> None:
        """Try the next member, unless another client has already found one."""
        if self._addresses[self._favoured][0] == host:
            self._favoured = (self._favoured + 1) % len(self._addresses)
        await asyncio.sleep(RETRY_S)

    async def _ask(
        self, connection: RemotingConnection, command: Command, *, also: Sequence[int] = ()
    ) -> tuple[int | None, dict[str, str], bytes]:
        """Return code, fields and body of a response. The connection is aborted if the member does not accept.

        `also` are codes with which a master responds too.
        """
        try:
            answer = await connection.request(command, TIMEOUT_MS)
        except TransportError:
            connection.abort()
            await self._leave(_host(connection))
            return None, {}, b""
        if outcome_of(answer.code) is Outcome.REFUSED and answer.code not in also:
            connection.abort()
            await self._leave(_host(connection))
        return answer.code, answer.fields, bytes(answer.body or b"")

    async def _produce(self) -> None:
        connection: RemotingConnection | None = None
        while not self._producing.is_set():
            connection = await self._connection(connection)
            if connection is not None:
                await self._send(connection, self._random.choice(self._mix.kinds))
            await asyncio.sleep(self._mix.pause_s)

    async def _send(self, connection: RemotingConnection, kind: Kind) -> Send:
        key = f"{'X' if kind is Kind.HALF else 'R'}{next(self._numbers):07d}"
        delay_ms, properties = 0, {"UNIQ_KEY": key}
        if kind is Kind.LEVEL:
            level = self._random.choice(LEVELS)
            delay_ms, properties["DELAY"] = level * 1_000, str(level)
        elif kind is Kind.TIMED:
            delay_ms = self._random.randint(*self._mix.delays_ms)
            properties["TIMER_DELAY_MS"] = str(delay_ms)
        elif kind is Kind.HALF:
            properties |= {"TRAN_MSG": "true", "PGROUP": TRANSACTION_GROUP}
        queue_id, asked_ms, asked_s = self._random.randrange(QUEUES), int(time.time() * 1_000), time.monotonic()
        command = _send_command(properties, queue_id, asked_ms, key.encode() * 20)
        code, fields, _ = await self._ask(connection, command)
        send = Send(
            key=key, kind=kind, queue_id=queue_id, delay_ms=delay_ms, asked_ms=asked_ms, asked_s=asked_s,
            answered_s=time.monotonic(), outcome=outcome_of(code), member=_host(connection), place=_place(fields),
            queue_offset=int(fields.get("queueOffset", -1)) if kind in (Kind.PLAIN, Kind.HALF) else -1,
        )  # fmt: skip
        self.history.sends.append(send)
        return send

    async def _cancel(self) -> None:
        """Cancel pending messages."""
        connection: RemotingConnection | None = None
        asked: set[str] = set()
        while not self._producing.is_set():
            await asyncio.sleep(CANCEL_S)
            newest = self.history.sends[-NEWEST:]
            keys = [send.key for send in newest if send.delay_ms and send.outcome is not Outcome.REFUSED]
            keys = [key for key in keys if key not in asked]
            connection = await self._connection(connection)
            if not keys or connection is None:
                continue
            key = self._random.choice(keys)
            asked.add(key)
            properties = {"DELAY_ACTION": "cancel", "TIMER_DEL_UNIQKEY": key}
            command = _send_command(properties, 0, int(time.time() * 1_000), b"")
            code, fields, _ = await self._ask(connection, command, also=(ResponseCode.ILLEGAL_OPERATION,))
            cancel = Cancel(
                key=key, outcome=outcome_of(code), answered_s=time.monotonic(), member=_host(connection),
                place=_place(fields),
            )  # fmt: skip
            self.history.cancels.append(cancel)

    # Transactions.

    async def _transact(self) -> None:
        """Send half messages, and tell the outcome of most of them; the others wait for a check."""
        connection: RemotingConnection | None = None
        while not self._producing.is_set():
            await asyncio.sleep(TRANSACTION_S)
            connection = await self._connection(connection)
            if connection is None:
                continue
            half = await self._send(connection, Kind.HALF)
            if half.outcome is Outcome.DONE and self._random.random() < 0.8 and not connection.closing:
                place = str(half.queue_offset), str(half.place)
                await self._end(partial(self._ask, connection), half.key, *place, is_check=False)

    async def _end(self, ask: Ask, key: str, queue_offset: str, place: str, *, is_check: bool) -> None:
        fields = {
            "producerGroup": TRANSACTION_GROUP, "tranStateTableOffset": queue_offset, "commitLogOffset": place,
            "commitOrRollback": str(COMMIT if is_committed(key) else ROLLBACK),
            "fromTransactionCheck": str(is_check).lower(), "msgId": key,
        }  # fmt: skip
        code, _, _ = await ask(request_command(RequestCode.END_TRANSACTION, fields))
        self.history.ends.append(End(key=key, is_commit=is_committed(key), outcome=outcome_of(code)))

    async def _respond(self, member: int) -> None:
        """Keep a registered connection with a member, on which it sends checks of transactions."""
        beat = HeartbeatData("history-load", producer_data_set=[ProducerData(TRANSACTION_GROUP)]).encode()
        while True:
            connection: RemotingConnection | None = None
            with contextlib.suppress(TransportError):
                connection = await connect(*self._addresses[member], self._checked, timeout_ms=CONNECT_TIMEOUT_MS)
                while not connection.closing:
                    await connection.request(request_command(RequestCode.HEART_BEAT, body=beat), TIMEOUT_MS)
                    await asyncio.sleep(0.5)
            if connection is not None:
                connection.abort()
            await asyncio.sleep(RETRY_S * 4)

    def _checked(self, connection: RemotingConnection, commands: Sequence[Command]) -> None:
        async def ask(command: Command) -> tuple[int | None, dict[str, str], bytes]:
            try:
                answer = await connection.request(command, TIMEOUT_MS)
            except TransportError:
                return None, {}, b""
            return answer.code, answer.fields, b""

        for command in commands:
            if command.code == RequestCode.CHECK_TRANSACTION_STATE:
                fields = command.fields
                place = fields["tranStateTableOffset"], fields["commitLogOffset"]
                self._start(self._end(ask, fields["msgId"], *place, is_check=True))

    def _start(self, answer: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(answer)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    # Consumers.

    async def _consume(self, queue_id: int) -> None:
        """Read a queue from its beginning. The position is kept here, and its commits are only compared with it."""
        connection: RemotingConnection | None = None
        seen, position = self.history.seen.setdefault(queue_id, []), self._positions[queue_id]
        also = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
        while not self._consuming.is_set():
            former, connection = connection, await self._reader(connection, position)
            if connection is None:
                continue
            is_replica = _host(connection) != self._addresses[self._favoured][0]
            if connection is not former and not is_replica:
                await self._compare_committed(connection, position)
            if connection.closing:
                continue
            code, fields, body = await self._ask(connection, _pull_command(queue_id, position.offset), also=also)
            if code == ResponseCode.SUCCESS:
                seen += pulled_records(body)
                position.offset = int(fields["nextBeginOffset"])
                self.history.read_from_replicas += is_replica
                if not is_replica:
                    await self._commit(connection, position)
            elif code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                connection.abort()  # a replica directs the consumer to the master
                await asyncio.sleep(RETRY_S)
            elif code == ResponseCode.PULL_OFFSET_MOVED:
                text = f"queue {queue_id} at {position.offset} of {_host(connection)}: {fields}"
                self.history.moved.append(Moved(member=_host(connection), at_s=time.monotonic(), text=text))
                await asyncio.sleep(RETRY_S)

    async def _reader(self, connection: RemotingConnection | None, position: _Position) -> RemotingConnection | None:
        """Return a connection for a pull: with the master, or for a while with any member."""
        if not self._mix.reads_replicas or time.monotonic() < position.moves_s:
            return await self._connection(connection)
        position.moves_s = time.monotonic() + self._random.uniform(*MOVES_S)
        if connection is not None:
            connection.abort()
        return await self._connect(self._random.choice(self._addresses))

    async def _commit(self, connection: RemotingConnection, position: _Position) -> None:
        """Commit the offset of a queue from time to time."""
        if time.monotonic() < position.commit_s:
            return
        position.commit_s = time.monotonic() + COMMIT_S
        position.asked = position.offset
        command = _offset_command(RequestCode.UPDATE_CONSUMER_OFFSET, position, commitOffset=str(position.offset))
        code, _, _ = await self._ask(connection, command)
        if outcome_of(code) is Outcome.DONE:
            position.committed = position.asked
            self.history.commits += 1

    async def _compare_committed(self, connection: RemotingConnection, position: _Position) -> None:
        """Compare the committed offset that a member states with those that were committed."""
        command = _offset_command(RequestCode.QUERY_CONSUMER_OFFSET, position)
        code, fields, _ = await self._ask(connection, command, also=(ResponseCode.QUERY_NOT_FOUND,))
        if code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
            return
        stated = int(fields.get("offset", 0))
        if self._compares and not position.committed <= stated <= position.asked:
            member = connection.remote_address
            self.history.offsets.append(
                f"queue {position.queue_id}: {member} states {stated}, not {position.committed} to {position.asked}"
            )


def _send_command(properties: dict[str, str], queue_id: int, born_ms: int, body: bytes) -> Command:
    is_half = "TRAN_MSG" in properties
    fields = {
        "a": TRANSACTION_GROUP if is_half else "producers", "b": TOPIC, "c": "TBW102", "d": str(QUEUES),
        "e": str(queue_id), "f": "4" if is_half else "0", "g": str(born_ms), "h": "0",
        "i": encode_properties(properties).decode(),
    }  # fmt: skip
    return request_command(RequestCode.SEND_MESSAGE_V2, fields, body)


def _offset_command(code: RequestCode, position: _Position, **more: str) -> Command:
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(position.queue_id), **more}
    return request_command(code, fields)


def _pull_command(queue_id: int, offset: int) -> Command:
    fields = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id), "queueOffset": str(offset),
        "maxMsgNums": "64", "sysFlag": str(CAN_BE_HELD | HAS_SUBSCRIPTION), "commitOffset": "0",
        "suspendTimeoutMillis": str(HELD_MS), "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    return request_command(RequestCode.PULL_MESSAGE, fields)


def _place(fields: dict[str, str]) -> int:
    """Return the physical offset in a message id of RocketMQ: its last 16 hexadecimal digits."""
    message_id = fields.get("msgId", "")
    return int(message_id[-16:], 16) if message_id else -1


def _host(connection: RemotingConnection) -> str:
    return connection.remote_address.rpartition(":")[0]
