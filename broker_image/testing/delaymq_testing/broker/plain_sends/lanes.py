"""Servers without sockets that receive producers' byte streams, with and without `PlainSends`, for comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from delaymq import clock
from delaymq.broker.delivery import hand_over
from delaymq.broker.processors import send
from delaymq.broker.transactions import PROGRESS_GROUP
from delaymq.message import names
from delaymq.protocol.command import Command, decode_command
from delaymq.protocol.errors import ProtocolError
from delaymq.schedule.timeline import TIMELINE_QUEUE
from delaymq.schedule.timeline.entries import unpacked
from delaymq.server.broker_server import BrokerServer
from delaymq.server.requests import plain_sends
from delaymq.server.requests.sessions import SERVER_LIMITS
from delaymq.transport import RemotingConnection, fair_queue, inbound

from delaymq_testing.broker.harness import Clock, broker_config, made
from delaymq_testing.transport.memory_transport import MemoryTransport, turns

STORE_HOST = bytes([10, 0, 0, 1, 0, 0, 42, 159])


class Producer(MemoryTransport):
    """The peer of a connection, with the same address on all servers."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("10.0.0.2", 50_000), "sockname": ("10.0.0.1", 10_911)}.get(name, default)


class Counting:
    """An encoder that counts the messages, delayed and timed ones, half messages and ends of transactions that it
    encodes."""

    def __init__(self) -> None:
        self._encoder, self.encoded = plain_sends.encoder, 0
        self.delayed = self.timed = self.halves = self.ended = 0

    def encode(self, *given: Any) -> Any:
        sent = self._encoder.encode(*given)
        timed = sum(queue_id == TIMELINE_QUEUE for _, queue_id, *_ in sent[8])
        self.encoded += sum(sums[1] for sums in sent[5]) + len(sent[8]) - timed
        self.delayed += len(sent[8])
        self.timed += timed
        self.halves += sum(bool(group) for _, _, _, group in sent[7])
        self.ended += sum(not group for _, _, _, group in sent[7])
        return sent


def counted(monkeypatch: pytest.MonkeyPatch, slice_s: float | None = None) -> Counting:
    """Count what the lane encodes; with `slice_s`, end the turns of connections and of the event loop after it."""
    counting = Counting()
    monkeypatch.setattr(plain_sends, "encoder", counting)
    if slice_s is not None:
        monkeypatch.setattr(inbound, "SLICE_S", slice_s)
        monkeypatch.setattr(fair_queue, "LOOP_SLICE_S", slice_s)
    return counting


class World:
    """A server without sockets of producers, and all that it sends and reports."""

    def __init__(self, path: Path, *, has_lane: bool, **changes: Any) -> None:
        small = {"mapped_file_size_commit_log": 64 * 1024, "max_index_num": 300}
        fields = {"listen_port": 0, "http_port": 0} | small | changes
        self.server = BrokerServer.open(broker_config(path, **fields), http=False)
        self.broker = self.server.broker
        self.broker.store_host, self.broker.message_id_prefix = STORE_HOST, STORE_HOST.hex().upper()
        self.broker.transactions._ending._store_host = STORE_HOST
        if not has_lane:
            self.server._plain_sends = None
        self.has_lane = has_lane
        self.arrivals: list[str] = []
        self._held = self.broker.on_arrival
        self.broker._arrivals.on_arrival = self._arrived
        self.broker._arrivals.interest = self.broker._arrivals.held = None
        self.broker._arrivals.property_interest = {("Bills", 1)}
        self.sent: list[bytes] = []
        self.open()

    def _arrived(self, *arrival: Any) -> None:
        self.arrivals.append(str(arrival))
        if self._held is not None:
            self._held(*arrival)

    def open(self) -> None:
        """Continue on a new connection."""
        self.connection, self.producer = self.connect()

    def connect(self) -> tuple[RemotingConnection, Producer]:
        server = self.server
        connection = RemotingConnection(
            server._on_commands, on_bytes=server._on_bytes if self.has_lane else None, limits=SERVER_LIMITS,
            on_opened=server.sessions.opened, on_closed=server.sessions.closed, budget=server.buffers,
            fair_queue=server._fair_queue,
        )  # fmt: skip
        producer = Producer(connection)
        connection.connection_made(producer)
        return connection, producer

    async def receive(self, data: bytes) -> bool:
        """Let bytes arrive, and wait until all of their requests are handled; return whether the connection is open."""
        self.producer.receive(data)
        await turns()
        while self.connection.deferred_since and not self.connection.closing:
            await turns()
        if self.connection.closing:
            self.sent.append(bytes(self.producer.written))
            self.open()
            return False
        return True

    def wait_for_replicas(self) -> None:
        """Let responses wait for replicas, which have nothing yet."""
        self.broker.replicate(waits=True)
        self.broker.set_replicated(0)

    def confirm(self, in_sync: int = 2) -> int:
        """Let replicas have the log, so that responses are sent, errors if too few members are in sync; return their
        number."""
        flushing = self.server.flushing
        waiting = flushing.waiting
        flushing.in_sync = in_sync
        self.broker.set_replicated(self.broker.store.end_offset)
        flushing.replicated()
        return waiting

    def ask(self, code: int, fields: dict[str, Any]) -> Any:
        texts = {name: str(value) for name, value in fields.items()}
        session: Any = self.connection.session
        return made(self.broker, code, self.broker.handle(session, Command(code, fields=texts)))

    def outcome(self) -> dict[str, object]:
        """Return everything that the streams have caused."""
        stats, store = self.broker.stats, self.broker.store
        tables = {"by topic": stats.by_key.puts, "copies by topic": stats.by_key.copies}
        return {
            "sent": [*self.sent, bytes(self.producer.written)],
            "arrivals": sorted(self.arrivals),
            "messages": (stats.put_messages, stats.put_bytes, stats.put_failed, stats.last_send_ms, stats.refused),
            **{
                name: {topic: (each.messages, each.bytes, each.times) for topic, each in table.items()}
                for name, table in tables.items()
            },
            "elsewhere": stats.stored_elsewhere,
            "by queue": {key: (each.messages, each.bytes, each.times) for key, each in stats.by_key.queue_puts.items()},
            "pending": self.pending(),
            "delivered": (self.broker.delivery.counters, stats.copies),
            "end": (store.end_offset, store.last_offset, store._log.last_crc, store.last_store_timestamp_ms),
            "topics": self.broker.topics.encode(),
            "transactions": self._transactions(),
        }

    def pending(self) -> object:
        """Return the pending messages, none of which is in a file, and what is counted."""
        timeline = self.broker.delivery.timeline
        keys = [timeline.partitions.key(number) for number in timeline.partitions.pending()]
        totals = {topic: timeline.partitions.totals(topic) for topic in ("Orders", "Bills", "t" * 127)}
        rows = [list(unpacked(run.read(0, run.count))) for run in timeline.runs]
        settled = {number: str(queue.settled.low) for number, queue in self.broker.delivery._queues.items()}
        return sorted(timeline._memory.values()), keys, totals, rows, settled, self.broker.delivery.next_due_ms()

    def _transactions(self) -> dict[str, object]:
        transactions, offsets = self.broker.transactions, self.broker.offsets
        ledger = transactions.ledger
        state = ledger.state()
        transactions.state_progress()
        chunks = ledger.pending.chunks
        return state | {
            "totals": transactions.totals(),
            "groups": ledger.groups.names,
            "due": [due_s for chunk in chunks for due_s in chunk.due_s],
            "numbers": [(list(chunk.groups), list(chunk.physical_offsets)) for chunk in chunks],
            "progress": [offsets.get(topic, PROGRESS_GROUP, 0) for topic in (names.HALF_TOPIC, names.OP_HALF_TOPIC)],
            "steps": (ledger.op_progress._first, list(ledger.op_progress._ends), list(ledger.op_progress._bounds)),
            "pin": transactions.pin(),
        }

    def closed_files(self) -> dict[str, bytes]:
        """Close the server; return the files of the log, the queues and the index."""
        self.connection.abort()
        root = Path(self.broker.config.store_path)
        self.broker.close()
        self.server._ports.close()
        folders = ("commitlog", "consumequeue", "index")
        paths = [path for folder in folders for path in (root / folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(root)): path.read_bytes() for path in paths}


@contextmanager
def fixed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """A clock that only the test moves, no choice of queues at random, and hand-overs of any duration."""
    now = Clock()
    with monkeypatch.context() as patched:
        patched.setattr(hand_over, "_LONGEST_STEP_S", 1_000.0)
        patched.setattr(clock, "now_ms", now)
        patched.setattr(send, "randrange", lambda count: count - 1)
        yield now


def pieces(data: bytes, chance: Random) -> list[bytes]:
    """Split bytes at random places, as a network does."""
    left, cut = data, []
    while left:
        count = chance.choice([1, 3, 700, 5_000, 20_000, 1 << 20])
        cut.append(left[:count])
        left = left[count:]
    return cut


def is_sound(data: bytes) -> bool:
    try:
        decode_command(data[4:])
    except ProtocolError:
        return False
    return True


def answers(data: bytes) -> list[Command]:
    found = []
    while data:
        length = int.from_bytes(data[:4])
        found.append(decode_command(data[4 : 4 + length]))
        data = data[4 + length :]
    return found
