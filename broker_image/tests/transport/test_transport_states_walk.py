"""Random walks of a connection through its states, with invariants in each."""

import asyncio
from collections.abc import Iterator

import pytest
from delaymq.protocol.command import Command, Response, encode_command, encode_response, request_command
from delaymq.transport import ConnectionLimits, RemotingConnection, inbound
from delaymq.transport.fair_queue import FairQueue
from delaymq.transport.states import Intake, LongRequest, Peer, Phase, Throttle
from delaymq_testing.transport.memory_transport import LARGE, MemoryTransport, opened, turns
from hypothesis import given, settings
from hypothesis import strategies as st

ANSWER, LARGE_ANSWER, LONG, PARK, CLOSE, STOP, FAIL = range(10, 17)
"""Codes of requests, by what the owner of the connection does with one."""
KINDS = st.sampled_from([ANSWER] * 30 + [LARGE_ANSWER] * 6 + [LONG] * 4 + [PARK] * 2 + [CLOSE, STOP, FAIL])
"""Weighted, so that most walks last."""
MOVES: st.SearchStrategy[tuple[str, list[int]]] = st.one_of(
    st.tuples(st.just("receive"), st.lists(KINDS, min_size=1, max_size=16)),
    st.tuples(
        st.sampled_from(
            ["turn"] * 6
            + ["hold", "take", "unpark", "ask", "secured", "pause", "release"] * 3
            + ["stop", "close", "abort", "lose", "handshake fails"]
        ),
        st.just([]),
    ),
)

STARTS = [[], ["hold"], ["hold"], ["upgrade"], ["upgrade", "secured"], ["upgrade", "secured", "hold"]]
"""Moves that few walks would begin with by chance."""
SLICES_S = [0.0, 60.0]
"""The smallest ones, and such as never end."""
_slices = pytest.MonkeyPatch()


class Walk:
    """A connection, its peer and its owner."""

    def __init__(self, *, read_while_behind: bool) -> None:
        limits = ConnectionLimits(read_while_behind=read_while_behind, write_pause_bytes=1000)
        self.fair_queue = FairQueue()
        self.closed = 0
        self.connection, self.transport = opened(
            self.on_commands, limits=limits, fair_queue=self.fair_queue, on_closed=self.on_closed
        )
        self.arrived = 0
        """Opaques are numbered in the order of arrival."""
        self.handled: list[int] = []
        self.handled_after_stop: list[int] = []
        self.begun = self.ended = 0
        """Long requests."""
        self.futures: list[asyncio.Future[Command]] = []

    def on_closed(self, connection: RemotingConnection, error: Exception | None) -> None:
        self.closed += 1

    # The owner.

    def on_commands(self, connection: RemotingConnection, commands: list[Command]) -> None:
        assert connection is self.connection
        if connection.intake is Intake.STOPPED:
            self.handled_after_stop += [command.opaque for command in commands]
        rest = iter(commands)
        for command in rest:
            self.handled.append(command.opaque)
            if command.code == LARGE_ANSWER:
                connection.send(encode_response(command, Response(body=LARGE)))
            elif command.code in (LONG, PARK):
                self.begin(command, list(rest))
            elif command.code == CLOSE:
                connection.close()
            elif command.code == STOP:
                connection.stop_reading()
            elif command.code == FAIL:
                raise RuntimeError("a defect of the owner")
            else:
                connection.send(encode_response(command, Response()))

    def begin(self, command: Command, behind: list[Command]) -> None:
        steps = 3
        self.begun += 1

        def step() -> bool:
            nonlocal steps
            assert steps, "a step after the last one"
            assert self.connection.long_request is LongRequest.RUNNING
            steps -= 1
            if not steps:
                self.ended += 1
                self.connection.send(encode_response(command, Response(body=LARGE)))
            return not steps

        self.connection.finish_in_slices(step, behind, parked=command.code == PARK)

    # The moves. One that the loop or the peer would not make now does nothing.

    async def move(self, name: str, kinds: list[int]) -> None:
        connection, transport = self.connection, self.transport
        if name == "turn":
            await asyncio.sleep(0)
        elif name == "receive":
            if transport.is_reading_ and connection.phase in (Phase.PLAIN, Phase.SECURE):
                transport.receive(self.pipelined(kinds))
        elif name == "hold":
            transport.taking = False
        elif name == "take":
            transport.take()
        elif name == "unpark":
            if connection.long_request is LongRequest.PARKED:
                connection.unpark()
        elif name == "pause":
            connection.pause_reading_for(60)
        elif name == "release":
            self.release()
        elif name == "ask":
            if not connection.closing:
                self.futures.append(connection.start_request(request_command(ANSWER)))
        elif name == "upgrade":
            # Only the first bytes of a connection begin one, or its owner before it sends anything.
            if connection.phase is Phase.PLAIN and not self.arrived and not connection.is_behind:
                connection.begin_upgrade()
        elif connection.phase is Phase.UPGRADING and name in ("secured", "handshake fails"):
            self.end_handshake(name)
        elif name == "stop":
            connection.stop_reading()
        elif name == "close":
            connection.close()
        elif name == "abort":
            connection.abort()
        elif name == "lose":
            transport.abort()
        self.check()

    def release(self) -> None:
        """Lets the time of a pause pass."""
        if self.connection.throttle is Throttle.THROTTLED:
            assert self.connection._throttle_timer is not None
            self.connection._throttle_timer.cancel()
            self.connection._throttled_until = 0.0
            self.connection._release()

    def pipelined(self, kinds: list[int]) -> bytes:
        frames = []
        for kind in kinds:
            self.arrived += 1
            frames.append(encode_command(Command(kind, self.arrived)))
        return b"".join(frames)

    def end_handshake(self, name: str) -> None:
        if name == "handshake fails" or self.transport.is_closing():
            self.connection.lost_in_upgrade(ConnectionResetError())
            return
        early = [self.pipelined([ANSWER, ANSWER]), self.pipelined([ANSWER])]
        self.transport = MemoryTransport(self.connection)
        self.connection.secured(self.transport, early)

    # What holds.

    def check(self) -> None:
        connection, transport = self.connection, self.transport
        assert self.handled == list(range(1, len(self.handled) + 1)), "in order, each once"
        assert self.handled_after_stop == []
        intake, long_request = connection.intake, connection.long_request
        if connection.closing:
            assert intake is Intake.STOPPED
        assert bool(connection.deferred_since) is (intake is Intake.DEFERRING)
        assert not connection._deferred or intake is Intake.DEFERRING
        assert long_request is LongRequest.NONE or intake is not Intake.OPEN
        assert (connection._step is not None) is (long_request is not LongRequest.NONE)
        assert connection._corked is (connection.phase is Phase.UPGRADING)
        held_back = connection.peer is Peer.BEHIND and not connection._limits.read_while_behind
        if connection.phase in (Phase.PLAIN, Phase.SECURE) and not transport.is_closing():
            throttled = connection.throttle is Throttle.THROTTLED
            assert transport.is_reading_ is (intake is Intake.OPEN and not held_back and not throttled)
        if long_request is LongRequest.RUNNING:
            assert connection.is_waiting
        if intake is Intake.DEFERRING and long_request is LongRequest.NONE and not held_back:
            assert connection.is_waiting
        if intake is Intake.OPEN:
            assert len(self.handled) == self.arrived, "none is lost"
        if connection.phase is Phase.LOST:
            self.check_lost()

    def check_lost(self) -> None:
        connection = self.connection
        assert self.closed == 1
        assert connection._deferred == []
        assert connection._pieces == []
        assert connection._receiver.buffer_bytes == 0
        assert connection._drained is None
        assert connection._stall_timer is None
        assert connection._close_timer is None
        assert connection._throttle_timer is None
        assert connection._transport is not self.transport
        assert connection._below is None
        assert connection.open_requests == 0
        assert all(future.done() for future in self.futures)

    async def end(self) -> None:
        """Everybody does what can be expected, and then everything is done."""
        connection = self.connection
        if connection.phase is Phase.UPGRADING:
            self.end_handshake("secured")
        self.release()
        # An answer may follow an answer, and each parked request is followed by others.
        for _ in range(10 + 10 * self.arrived):
            self.transport.take()
            if connection.long_request is LongRequest.PARKED:
                connection.unpark()
            await asyncio.sleep(0)
            self.check()
            if not connection.is_waiting and connection.long_request is LongRequest.NONE:
                break
        assert self.ended == self.begun
        assert not connection.is_waiting
        if connection.intake is Intake.OPEN:
            assert len(self.handled) == self.arrived
            assert self.transport.is_reading_ or self.transport.is_closing()
        else:
            assert connection.intake is Intake.STOPPED
        connection.abort()
        await turns()
        assert connection.phase is Phase.LOST
        self.check()
        for future in self.futures:
            future.exception()


@pytest.fixture(scope="module", autouse=True)
def _undone() -> Iterator[None]:
    _slices.setattr(inbound._logger, "disabled", True)
    yield
    _slices.undo()


@settings(max_examples=600)
@given(st.sampled_from(SLICES_S), st.booleans(), st.sampled_from(STARTS), st.lists(MOVES, min_size=4, max_size=30))
def test_invariants_hold_on_every_walk(
    slice_s: float, read_while_behind: bool, start: list[str], moves: list[tuple[str, list[int]]]
) -> None:
    async def scenario() -> None:
        _slices.setattr(inbound, "SLICE_S", slice_s)
        walk = Walk(read_while_behind=read_while_behind)
        walk.check()
        for name, kinds in [(name, []) for name in start] + moves:
            await walk.move(name, kinds)
        await walk.end()

    with asyncio.Runner() as runner:
        runner.run(scenario())
