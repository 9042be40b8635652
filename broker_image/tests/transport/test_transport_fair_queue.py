"""Fair scheduling of connections with queued requests; single requests are never delayed."""

import asyncio
import itertools
import struct
import time
from collections.abc import Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from delaymq.protocol.command import Command, Response, encode_command, encode_response, request_command
from delaymq.protocol.errors import ProtocolError
from delaymq.protocol.frame import IDLE_BUFFER_BYTES, FrameReceiver
from delaymq.transport import ConnectionLimits, RemotingConnection, connect, inbound
from delaymq.transport.buffer_budget import BufferBudget
from delaymq.transport.fair_queue import FairQueue

HOST = "127.0.0.1"
BOUND_S = 60


class Peer:
    """One connection that waits; it takes its turns, a millisecond each, until it has none left."""

    def __init__(self, name: str, turns: int, taken: list[str], now: list[float], share: str = "host") -> None:
        self.is_waiting = False
        self.share: Hashable = share
        self.used_s = 0.0
        self.left = turns
        self._name = name
        self._taken = taken
        self._now = now

    def run_slice(self) -> bool:
        self._taken.append(self._name)
        self._now[0] += 0.001
        self.left -= 1
        return self.left > 0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time by which slices are measured."""
    time = [100.0]
    monkeypatch.setattr("delaymq.transport.fair_queue.monotonic", lambda: time[0])
    return time


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await scenario()

    asyncio.run(bounded())


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.001)


def test_connections_of_one_host_are_scheduled_in_rotation(now: list[float]) -> None:
    taken: list[str] = []

    async def scenario() -> None:
        turns = FairQueue()
        for name, count in (("a", 3), ("b", 2), ("c", 1)):
            turns.wait(Peer(name, count, taken, now))
        assert turns.is_exhausted()
        await until(lambda: len(taken) == 6)
        assert not turns.is_exhausted()

    run(scenario)
    assert taken == list("abcaba")


def test_account_with_many_connections_gets_the_share_of_one(now: list[float]) -> None:
    taken: list[str] = []

    async def scenario() -> None:
        turns = FairQueue()
        for _ in range(20):
            turns.wait(Peer("h", 5, taken, now, share="hostile"))
        turns.wait(Peer("x", 10, taken, now, share="honest"))
        await until(lambda: len(taken) == 110)

    run(scenario)
    assert "".join(taken[:20]) == "hx" * 10


def test_returning_connection_precedes_heavier_users_without_debt_for_its_absence(
    now: list[float],
) -> None:
    taken: list[str] = []

    async def scenario() -> None:
        turns = FairQueue()
        for _ in range(3):
            turns.wait(Peer("h", 30, taken, now, share="hostile"))
        rare = Peer("x", 1, taken, now, share="honest")
        places = []
        for _ in range(5):
            before = len(taken)
            rare.left = 1
            turns.wait(rare)
            await until(lambda: not rare.is_waiting)
            places.append(taken.index("x", before) - before)
            await asyncio.sleep(0)
        # A slice that was running, and no more.
        assert max(places) <= 1

        # After a long time alone it does not wait until newcomers have used as much: they begin where it is.
        long = Peer("l", 50, taken, now, share="one")
        turns.wait(long)
        await until(lambda: not long.is_waiting)
        before = len(taken)
        long.left = 2
        turns.wait(long)
        turns.wait(Peer("n", 50, taken, now, share="one"))
        await until(lambda: not long.is_waiting)
        assert "".join(each for each in taken[before:] if each in "ln")[:4].count("l") == 2

    run(scenario)


def test_new_connection_to_a_busy_host_does_not_keep_precedence(now: list[float]) -> None:
    taken: list[str] = []

    async def scenario() -> None:
        turns = FairQueue()
        for _ in range(2):
            turns.wait(Peer("o", 5_000, taken, now))
        await until(lambda: len(taken) >= 40)
        before = len(taken)
        turns.wait(Peer("n", 5_000, taken, now))
        await until(lambda: len(taken) >= before + 12)
        assert taken[before : before + 12].count("n") <= 5

    run(scenario)


def test_nothing_waits_twice(now: list[float]) -> None:
    taken: list[str] = []

    async def scenario() -> None:
        turns = FairQueue()
        one = Peer("a", 1, taken, now)
        turns.wait(one)
        turns.wait(one)
        await asyncio.sleep(0.01)
        assert not one.is_waiting

    run(scenario)
    assert taken == ["a"]


def test_used_time_slice_ends_until_the_next_loop_iteration(now: list[float]) -> None:
    async def scenario() -> None:
        turns = FairQueue()
        assert not turns.is_exhausted()
        now[0] += 0.004
        assert not turns.is_exhausted()
        now[0] += 0.002
        assert turns.is_exhausted()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not turns.is_exhausted()

    run(scenario)


@asynccontextmanager
async def server(on_commands: Callable[[RemotingConnection, list[Command]], None], **options: Any) -> Any:
    limits = ConnectionLimits(read_while_behind=False)
    listening = await asyncio.get_running_loop().create_server(
        lambda: RemotingConnection(on_commands, limits=limits, **options), HOST, 0
    )
    yield listening.sockets[0].getsockname()[1]
    listening.close()


def test_flood_is_handled_in_slices_and_every_request_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbound, "SLICE_S", 0.0)  # each slice is the smallest one
    # Each costs the same: on a busy machine one that was interrupted would have its connection wait for long.
    monkeypatch.setattr("delaymq.transport.fair_queue.monotonic", itertools.count(100.0, 0.0001).__next__)
    order: list[tuple[int, int]] = []

    def answer(connection: RemotingConnection, commands: list[Command]) -> None:
        for command in commands:
            order.append((connection.id, command.opaque))
            connection.send(encode_response(command, Response()))

    async def scenario() -> None:
        async with server(answer, fair_queue=FairQueue()) as port:
            flood = b"".join(encode_command(Command(10, opaque)) for opaque in range(1, 301))
            peers = [await asyncio.open_connection(HOST, port) for _ in range(2)]
            for _, writer in peers:
                writer.write(flood)
            polite = await connect(HOST, port)
            for _ in range(3):
                assert (await polite.request(request_command(10))).code == 0
            await until(lambda: len(order) == 603)
            for reader, writer in peers:
                await reader.readexactly(10)
                writer.close()

    run(scenario)
    sessions = sorted({session for session, _ in order})
    flooders = [session for session in sessions if sum(1 for each, _ in order if each == session) == 300]
    assert len(flooders) == 2
    for session in flooders:
        assert [opaque for each, opaque in order if each == session] == list(range(1, 301))
    # They alternate, each a few requests at a time.
    firsts = [session for session, _ in order if session in flooders]
    assert sum(1 for one, other in itertools.pairwise(firsts) if one != other) > 20


def test_deferral_has_a_start_time_until_the_connection_catches_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbound, "SLICE_S", 0.0)
    seen: list[float] = []
    connections: list[RemotingConnection] = []

    def note(connection: RemotingConnection, commands: list[Command]) -> None:
        connections.append(connection)
        seen.extend([connection.deferred_since] * len(commands))

    async def scenario() -> None:
        began = time.monotonic()
        async with server(note) as port:
            _, writer = await asyncio.open_connection(HOST, port)
            writer.write(b"".join(encode_command(Command(10, opaque)) for opaque in range(50)))
            await until(lambda: len(seen) == 50)
            assert seen[0] == 0.0
            assert began <= seen[-1] <= time.monotonic()
            await until(lambda: connections[0].deferred_since == 0.0)
            writer.write(encode_command(Command(10, 51)))
            await until(lambda: len(seen) == 51)
            assert seen[50] == 0.0
            writer.close()

    run(scenario)


def test_many_announced_frames_use_little_memory_and_partial_ones_the_budget() -> None:
    budget = BufferBudget(2 << 20)
    opened: list[RemotingConnection] = []

    async def scenario() -> None:
        async with server(lambda connection, commands: None, budget=budget, on_opened=opened.append) as port:
            peers = [await asyncio.open_connection(HOST, port) for _ in range(40)]
            for _, writer in peers:
                writer.write(struct.pack(">II", 250_000, 10) + b"x" * 10)
            await until(lambda: len(opened) == 40 and all(each._receiver._end for each in opened))
            # Some were believed; then each gets only what it fills.
            assert budget.received_bytes < 1 << 20
            for _, writer in peers:
                writer.write(b"x" * 240_000)
            await until(lambda: budget.disconnected)
            assert budget.received_bytes <= 2 << 20
            for _, writer in peers:
                writer.close()
            await until(lambda: budget.received_bytes == 0)

    run(scenario)


def test_closed_connection_holds_no_buffer() -> None:
    receiver = FrameReceiver()
    receiver.feed(struct.pack(">II", 250_000, 10) + b"x" * 1000)
    assert receiver.buffer_bytes > IDLE_BUFFER_BYTES
    receiver.drop()
    assert receiver.buffer_bytes == 0


def test_oversized_header_is_rejected_before_its_bytes_are_read() -> None:
    receiver = FrameReceiver()
    with pytest.raises(ProtocolError, match="exceeds the limit of 1048576"):
        receiver.feed(struct.pack(">II", 12_000_000, 10_000_000) + b"{")
