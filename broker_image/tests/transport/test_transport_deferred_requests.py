"""Deferred requests in combinations of states that are easily overlooked."""

import asyncio
import contextlib
from typing import Any

import pytest
from delaymq.protocol.command import Command, Response, encode_response, request_command
from delaymq.transport import ConnectionLimits, RemotingConnection, inbound
from delaymq_testing.transport.memory_transport import (
    LARGE,
    SERVER,
    MemoryTransport,
    fall_behind,
    opened,
    requests,
    run,
    turns,
    until,
)


class Handled:
    """Notes the requests that it gets."""

    def __init__(self) -> None:
        self.opaques: list[int] = []

    def __call__(self, connection: RemotingConnection, commands: list[Command]) -> None:
        for command in commands:
            self.opaques.append(command.opaque)
            connection.send(encode_response(command, Response()))


def test_long_request_ending_while_its_peer_is_behind_leaves_nothing_deferred() -> None:
    """Else flow control takes every later request for one that has waited since then, and refuses it."""

    def large_answer(connection: RemotingConnection, commands: list[Command]) -> None:
        def step() -> bool:
            connection.send(LARGE)
            return True

        connection.finish_in_slices(step, [])

    async def scenario() -> None:
        connection, transport = opened(large_answer)
        transport.taking = False
        transport.receive(requests(1, 1))
        assert connection.deferred_since
        await turns()
        assert connection.is_behind
        transport.take()
        await turns()
        assert transport.is_reading_
        assert connection.deferred_since == 0.0

    run(scenario)


def test_long_request_of_a_connection_read_while_behind_is_followed_by_others() -> None:
    handled = Handled()

    def first_is_long(connection: RemotingConnection, commands: list[Command]) -> None:
        if commands[0].opaque != 1:
            handled(connection, commands)
            return

        def step() -> bool:
            connection.send(LARGE)
            return True

        connection.finish_in_slices(step, commands[1:])

    async def scenario() -> None:
        connection, transport = opened(first_is_long, limits=ConnectionLimits(write_pause_bytes=1000))
        transport.taking = False
        transport.receive(requests(1, 3))
        await turns()
        assert connection.is_behind
        assert handled.opaques == [2, 3]
        assert transport.is_reading_
        transport.take()
        await turns()
        assert transport.is_reading_

    run(scenario)


def test_second_long_request_does_not_replace_the_first() -> None:
    steps: list[str] = []

    def step(name: str) -> bool:
        steps.append(name)
        return True

    async def scenario() -> None:
        def both(connection: RemotingConnection, commands: list[Command]) -> None:
            connection.finish_in_slices(lambda: step("first"), [])
            connection.finish_in_slices(lambda: step("second"), [])

        connection, transport = opened(both)
        transport.receive(requests(1, 1))
        await turns()
        assert steps == ["first"]
        assert connection.closing

    run(scenario)


def test_no_request_is_handled_after_reading_stopped_within_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "SLICE_S", 0.0)
    handled = Handled()

    def stop_at_six(connection: RemotingConnection, commands: list[Command]) -> None:
        handled(connection, commands)
        if 6 in handled.opaques:
            connection.stop_reading()

    async def scenario() -> None:
        _, transport = opened(stop_at_six)
        transport.receive(requests(1, 40))
        await turns(20)
        assert handled.opaques == list(range(1, 9))
        assert not transport.is_reading_

    run(scenario)


def test_no_request_is_handled_after_a_close() -> None:
    """asyncio's TLS decrypts what came before the close was answered."""
    handled = Handled()

    async def scenario() -> None:
        connection, transport = opened(handled)
        connection.close()
        transport.receive(requests(1, 2))
        assert handled.opaques == []

    run(scenario)


def test_reading_stays_paused_when_the_peer_catches_up_within_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "SLICE_S", 0.0)
    handled = Handled()
    is_reading: list[bool] = []

    async def scenario() -> None:
        def slow_for_a_moment(connection: RemotingConnection, commands: list[Command]) -> None:
            handled(connection, commands)
            is_reading.append(transport.is_reading_)
            if 6 in handled.opaques[-4:]:
                connection.pause_writing()
                connection.resume_writing()

        _, transport = opened(slow_for_a_moment)
        transport.receive(requests(1, 40))
        await until(lambda: len(handled.opaques) == 40)
        assert handled.opaques == list(range(1, 41))
        assert is_reading == [True] + [False] * 9
        assert transport.is_reading_

    run(scenario)


def test_stopping_reads_during_a_handshake_takes_effect_after_it() -> None:
    handled = Handled()

    async def scenario() -> None:
        connection, below = opened(handled)
        connection.begin_upgrade()
        below.resume_reading()  # as start_tls does
        connection.stop_reading()
        assert below.is_reading_
        secure = MemoryTransport(connection)
        connection.secured(secure, [requests(1, 1)])
        assert handled.opaques == []
        assert not secure.is_reading_

    run(scenario)


def test_data_sent_before_or_during_a_handshake_never_leaves_in_plaintext() -> None:
    async def scenario() -> None:
        connection, below = opened()
        futures = [connection.start_request(request_command(10)) for _ in range(4)]
        plain = len(below.written)
        assert below.written.count(b'"code":1') == 3
        connection.begin_upgrade()
        futures.append(connection.start_request(request_command(11)))
        await turns()
        assert len(below.written) == plain
        secure = MemoryTransport(connection)
        connection.secured(secure, [])
        assert secure.written.count(b'"code":1') == 2
        connection.abort()
        await asyncio.gather(*futures, return_exceptions=True)

        connection, below = opened()
        connection.begin_upgrade()
        connection.send(b"secret")
        connection.close()
        await turns()
        assert below.written == b""

    run(scenario)


def test_end_during_a_handshake_is_reported_once_and_keeps_nothing() -> None:
    told: list[Any] = []

    async def scenario() -> None:
        connection, _ = opened(on_closed=lambda *_: told.append(1))
        connection.begin_upgrade()
        connection.connection_lost(None)
        connection.lost_in_upgrade(ConnectionResetError())
        assert told == [1]
        for _ in range(3):
            connection.send(b"nobody takes it")
        assert connection._pieces == []

    run(scenario)


def test_handshake_on_a_closed_connection_is_a_connection_error() -> None:
    async def scenario() -> None:
        connection, _ = opened()
        connection.connection_lost(None)
        with pytest.raises(ConnectionResetError, match="ended before the handshake"):
            connection.begin_upgrade()

    run(scenario)


def test_no_timer_outlives_its_purpose() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []
        real = loop.call_later

        def noted(*arguments: Any) -> asyncio.TimerHandle:
            timers.append(real(*arguments))
            return timers[-1]

        with contextlib.ExitStack() as stack:
            loop.call_later = noted  # type: ignore[assignment]
            stack.callback(lambda: setattr(loop, "call_later", real))
            connection, transport = opened()
            connection.pause_writing()
            connection.pause_writing()
            connection.resume_writing()
            assert all(timer.cancelled() for timer in timers)

            fall_behind(connection, transport)
            connection.close()
            assert len(timers) == 3
            transport.take()
            await turns()
            assert all(timer.cancelled() for timer in timers)

    run(scenario)


def test_lost_connection_is_not_behind_and_holds_no_request() -> None:
    handled = Handled()

    async def scenario() -> None:
        connection, transport = opened(handled, limits=SERVER)
        fall_behind(connection, transport)
        drained = asyncio.ensure_future(connection.drain())
        transport.receive(requests(1, 9))
        await turns()
        assert not drained.done()
        connection.abort()
        await turns()
        assert drained.done()
        assert not connection.is_behind
        assert connection.deferred_since == 0.0
        assert handled.opaques == []

    run(scenario)
