"""Every cell of the state tables, on a real connection over a transport in memory."""

import itertools
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from delaymq.protocol.command import Command
from delaymq.transport import RemotingConnection
from delaymq.transport import states as tables
from delaymq.transport.states import (
    INTAKES,
    LONG_REQUESTS,
    PEERS,
    PHASES,
    THROTTLES,
    Impossible,
    Intake,
    IntakeEvent,
    InvalidTransitionError,
    LongRequest,
    LongRequestEvent,
    Machine,
    Peer,
    PeerEvent,
    Phase,
    PhaseEvent,
    Throttle,
    ThrottleEvent,
    reads,
    wants_turn,
)
from delaymq_testing.transport.memory_transport import MemoryTransport, fall_behind, opened, requests, run, turns, until

PAGE = Path(__file__).parents[3] / "docs" / "transport.md"
MACHINES: dict[str, tuple[Machine[Any, Any], type[Enum], type[Enum]]] = {
    "Phase": (PHASES, Phase, PhaseEvent),
    "Intake": (INTAKES, Intake, IntakeEvent),
    "LongRequest": (LONG_REQUESTS, LongRequest, LongRequestEvent),
    "Peer": (PEERS, Peer, PeerEvent),
    "Throttle": (THROTTLES, Throttle, ThrottleEvent),
}


class World:
    """A connection whose requests are long if the test sets it."""

    def __init__(self) -> None:
        self.handled: list[int] = []
        self.steps = 0
        self.steps_left = 1
        self.begins: LongRequestEvent | None = None
        """What the next request begins."""
        self.connection, self.transport = opened(self._on_commands)
        self.below = self.transport

    def _on_commands(self, connection: RemotingConnection, commands: list[Command]) -> None:
        if self.begins is not None:
            event, self.begins = self.begins, None
            self.begin(event)
            return
        self.handled += [command.opaque for command in commands]

    def begin(self, event: LongRequestEvent) -> None:
        behind = [Command(10, 99)]
        self.connection.finish_in_slices(self._step, behind, parked=event is LongRequestEvent.PARK)

    def _step(self) -> bool:
        self.steps += 1
        self.steps_left -= 1
        return self.steps_left <= 0

    def secure(self) -> None:
        transport = MemoryTransport(self.connection)
        self.connection.secured(transport, [])
        self.transport = transport


def test_each_machine_has_a_cell_for_each_event_and_state() -> None:
    for machine, states, events in MACHINES.values():
        assert list(machine.table) == list(states)
        for row in machine.table.values():
            assert list(row) == list(events)
            assert all(cell.why for cell in row.values() if isinstance(cell, Impossible))


@pytest.mark.parametrize("name", MACHINES)
def test_impossible_event_is_a_descriptive_error(name: str) -> None:
    machine = MACHINES[name][0]
    for state, row in machine.table.items():
        for event, cell in row.items():
            if isinstance(cell, Impossible):
                with pytest.raises(InvalidTransitionError, match=f"{event.name} in {name}.{state.name}: "):
                    machine.after(state, event)
            else:
                assert machine.after(state, event) is cell


# Each cell below: bring a connection into the state, let the event happen, compare.


def secured(world: World) -> None:
    world.connection.begin_upgrade()
    world.secure()


INTO_PHASE: dict[Phase, Callable[[World], object]] = {
    Phase.PLAIN: lambda world: None,
    Phase.UPGRADING: lambda world: world.connection.begin_upgrade(),
    Phase.SECURE: secured,
    Phase.CLOSING: lambda world: world.connection.close(),
    Phase.LOST: lambda world: world.connection.connection_lost(None),
}
PHASE_EVENTS: dict[PhaseEvent, list[Callable[[World], object]]] = {
    PhaseEvent.UPGRADE: [lambda world: world.connection.begin_upgrade()],
    PhaseEvent.SECURED: [lambda world: world.secure()],
    PhaseEvent.CLOSE: [lambda world: world.connection.close(), lambda world: world.connection.abort()],
    PhaseEvent.LOSE: [
        lambda world: world.connection.connection_lost(None),
        lambda world: world.connection.lost_in_upgrade(OSError()),
    ],
}


@pytest.mark.parametrize("state", Phase)
@pytest.mark.parametrize("event", PhaseEvent)
def test_phases(state: Phase, event: PhaseEvent) -> None:
    cell = PHASES.table[state][event]

    async def scenario(cause: Callable[[World], object]) -> None:
        world = World()
        INTO_PHASE[state](world)
        assert world.connection.phase is state
        if isinstance(cell, Impossible):
            with pytest.raises((InvalidTransitionError, ConnectionResetError)):
                cause(world)
            assert world.connection.phase is state
        else:
            cause(world)
            assert world.connection.phase is cell
        phase = world.connection.phase
        assert world.connection.closing is (phase in (Phase.CLOSING, Phase.LOST))
        if phase is Phase.UPGRADING:
            assert not world.below.is_reading_
        # The first of the rules that connect the machines.
        assert (world.connection.intake is Intake.STOPPED) is world.connection.closing
        await turns()

    for cause in PHASE_EVENTS[event]:
        run(lambda cause=cause: scenario(cause))


def defer(world: World) -> None:
    """The peer is behind, and has pipelined more than is handled without a look at that."""
    if not world.connection.is_behind and not world.connection.closing:
        fall_behind(world.connection, world.transport)
    world.transport.receive(requests(1, 9))


INTO_INTAKE: dict[Intake, Callable[[World], object]] = {
    Intake.OPEN: lambda world: None,
    Intake.DEFERRING: defer,
    Intake.STOPPED: lambda world: world.connection.stop_reading(),
}


@pytest.mark.parametrize("state", Intake)
@pytest.mark.parametrize("event", IntakeEvent)
def test_intakes(state: Intake, event: IntakeEvent) -> None:
    async def scenario() -> None:
        world = World()
        connection, transport = world.connection, world.transport
        INTO_INTAKE[state](world)
        assert connection.intake is state
        if event is IntakeEvent.DEFER:
            defer(world)
            assert world.handled == []
        elif event is IntakeEvent.STOP:
            connection.stop_reading()
        elif state is Intake.DEFERRING:
            transport.take()
            await until(lambda: len(world.handled) == 9)
            assert world.handled == list(range(1, 10))
        else:
            assert connection.run_slice() is False
        assert connection.intake is INTAKES.table[state][event]
        assert bool(connection.deferred_since) is (connection.intake is Intake.DEFERRING)
        assert transport.is_reading_ is (connection.intake is Intake.OPEN)
        connection.abort()
        await turns()

    run(scenario)


INTO_LONG_REQUEST: dict[LongRequest, LongRequestEvent | None] = {
    LongRequest.NONE: None,
    LongRequest.PARKED: LongRequestEvent.PARK,
    LongRequest.RUNNING: LongRequestEvent.BEGIN,
}


@pytest.mark.parametrize("state", LongRequest)
@pytest.mark.parametrize("event", LongRequestEvent)
def test_long_requests(state: LongRequest, event: LongRequestEvent) -> None:
    cell = LONG_REQUESTS.table[state][event]

    async def scenario() -> None:
        world = World()
        connection = world.connection
        world.begins = INTO_LONG_REQUEST[state]
        if world.begins is not None:
            world.transport.receive(requests(1, 1))
            # The second of the rules that connect the machines.
            assert connection.intake is Intake.DEFERRING
        assert connection.long_request is state
        if event is LongRequestEvent.FINISH:
            # No caller can ask for it: it is the end of a slice in which the last step was done.
            connection.run_slice()
            assert world.steps == (0 if isinstance(cell, Impossible) else 1)
            assert world.handled == ([] if isinstance(cell, Impossible) else [99])
            assert connection.long_request is (state if isinstance(cell, Impossible) else cell)
        else:

            def cause() -> None:
                if event is LongRequestEvent.UNPARK:
                    connection.unpark()
                elif state is LongRequest.NONE:
                    world.begins = event
                    world.transport.receive(requests(1, 1))
                else:
                    world.begin(event)

            if isinstance(cell, Impossible):
                with pytest.raises(InvalidTransitionError):
                    cause()
                assert connection.long_request is state
            else:
                cause()
                assert connection.long_request is cell
        if connection.long_request is LongRequest.PARKED:
            connection.unpark()
        await turns()
        # It is taken to its end once, before the request behind it, and others are read after it.
        assert connection.long_request is LongRequest.NONE
        assert world.steps == (0 if state is LongRequest.NONE and isinstance(cell, Impossible) else 1)
        assert world.handled == [99] * world.steps
        assert connection.intake is Intake.OPEN
        assert world.transport.is_reading_
        connection.abort()
        await turns()

    run(scenario)


@pytest.mark.parametrize("state", Peer)
@pytest.mark.parametrize("event", PeerEvent)
def test_peers(state: Peer, event: PeerEvent) -> None:
    async def scenario() -> None:
        world = World()
        connection = world.connection
        if state is Peer.BEHIND:
            fall_behind(connection, world.transport)
        assert connection.peer is state
        if event is PeerEvent.FALL_BEHIND:
            connection.pause_writing()
        else:
            connection.resume_writing()
        assert connection.peer is PEERS.table[state][event]
        assert world.transport.is_reading_ is (connection.peer is Peer.KEEPING_UP)
        connection.connection_lost(None)
        assert connection.peer is Peer.KEEPING_UP

    run(scenario)


PAUSE_S = 0.01


@pytest.mark.parametrize("state", Throttle)
@pytest.mark.parametrize("event", ThrottleEvent)
@pytest.mark.parametrize("ends", [False, True])
def test_throttles(state: Throttle, event: ThrottleEvent, ends: bool) -> None:
    async def scenario() -> None:
        world = World()
        connection = world.connection
        if state is Throttle.THROTTLED:
            connection.pause_reading_for(PAUSE_S)
        assert connection.throttle is state
        if event is ThrottleEvent.PAUSE:
            connection.pause_reading_for(2 * PAUSE_S)
        elif ends:
            connection.close()
            assert connection.pause_reading_for(PAUSE_S) == 0.0
        else:
            await until(lambda: connection.throttle is Throttle.FREE)
        assert connection.throttle is THROTTLES.table[state][event]
        assert world.transport.is_reading_ is (connection.throttle is Throttle.FREE and not connection.closing)
        connection.connection_lost(None)
        assert connection.throttle is Throttle.FREE

    run(scenario)


def test_pause_is_prolonged_and_never_shortened() -> None:
    async def scenario() -> None:
        world = World()
        connection = world.connection
        began = connection._loop.time()
        assert connection.pause_reading_for(4 * PAUSE_S) == 4 * PAUSE_S
        assert connection.pause_reading_for(PAUSE_S) == 0.0
        assert 0 < connection.pause_reading_for(5 * PAUSE_S) <= PAUSE_S + connection._loop.time() - began
        await until(lambda: world.transport.is_reading_)
        assert connection._loop.time() - began >= 5 * PAUSE_S
        assert connection.pause_reading_for(PAUSE_S) == PAUSE_S
        connection.abort()
        await turns()

    run(scenario)


def test_pause_is_shortened_and_never_prolonged_by_that() -> None:
    async def scenario() -> None:
        world = World()
        connection = world.connection
        assert connection.shorten_pause(0.0) is None
        connection.pause_reading_for(60)
        removed_s = connection.shorten_pause(PAUSE_S)
        assert removed_s is not None
        assert removed_s > 59
        assert connection.shorten_pause(1.0) == 0.0
        await until(lambda: world.transport.is_reading_)
        assert connection.throttle is Throttle.FREE
        connection.pause_reading_for(60)
        connection.abort()
        assert connection.shorten_pause(0.0) is None
        await turns()

    run(scenario)


def test_throttled_connection_handles_what_it_has_read() -> None:
    async def scenario() -> None:
        world = World()
        defer(world)
        world.connection.pause_reading_for(60)
        world.transport.take()
        await until(lambda: len(world.handled) == 9)
        assert world.connection.intake is Intake.OPEN
        assert not world.transport.is_reading_
        world.connection.abort()
        await turns()

    run(scenario)


def test_connection_reads_in_one_state_and_is_queued_in_two() -> None:
    """The rules of states.reads and states.wants_turn, written out."""
    for intake, held_back in itertools.product(Intake, (False, True)):
        assert reads(intake, held_back=held_back) is ((intake, held_back) == (Intake.OPEN, False))
        assert not reads(intake, held_back=held_back, throttled=True)
        for long_request in LongRequest:
            expected = long_request is LongRequest.RUNNING or (
                (intake, long_request, held_back) == (Intake.DEFERRING, LongRequest.NONE, False)
            )
            assert wants_turn(intake, long_request, held_back=held_back) is expected


def diagram(machine: Machine[Any, Any], states: type[Enum], events: type[Enum]) -> str:
    """The machine in Mermaid's words: transitions to another state."""
    first = next(iter(states))
    lines = ["stateDiagram-v2", f"    [*] --> {first.name}"]
    for state, row in machine.table.items():
        for event in events:
            cell = row[event]
            if not isinstance(cell, Impossible) and cell is not state:
                lines.append(f"    {state.name} --> {cell.name}: {event.value}")
    return "\n".join(lines)


@pytest.mark.parametrize("name", MACHINES)
def test_diagrams_of_the_documentation_show_the_tables(name: str) -> None:
    assert f"```mermaid\n{diagram(*MACHINES[name])}\n```" in PAGE.read_text()


def test_theory_of_operation_names_every_machine() -> None:
    assert tables.__doc__ is not None
    assert all(f"`{name}`" in tables.__doc__ for name in MACHINES)
