"""Received bytes that the owner of a connection handles before they are decoded."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from delaymq.protocol.command import Command, Response, decode_command, encode_command, encode_response
from delaymq.protocol.frame import BUSY_BUFFER_BYTES, FrameReceiver
from delaymq.transport import RemotingConnection, fair_queue, inbound
from delaymq.transport.fair_queue import FairQueue
from delaymq.transport.tls_acceptor import HandshakeReceiver, TlsAcceptor
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from delaymq_testing.transport.memory_transport import MemoryTransport, fall_behind, opened, requests, run, turns

SMALL = 310
"""Code of the requests that `Owner` handles as bytes."""


class Owner:
    """Handles requests with the code SMALL before they are decoded, and notes all requests."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.early: list[int] = []
        self.opaques: list[int] = []

    def on_bytes(self, connection: RemotingConnection, data: bytes) -> int:
        self.calls.append(data)
        at = 0
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4])
            if end > len(data) or (command := decode_command(data[at + 4 : end])).code != SMALL:
                break
            self.early.append(command.opaque)
            self._answer(connection, command)
            at = end
        return at

    def on_commands(self, connection: RemotingConnection, commands: list[Command]) -> None:
        for command in commands:
            self._answer(connection, command)

    def _answer(self, connection: RemotingConnection, command: Command) -> None:
        self.opaques.append(command.opaque)
        connection.send(encode_response(command, Response()))

    def opened(self, **options: Any) -> tuple[RemotingConnection, MemoryTransport]:
        return opened(self.on_commands, on_bytes=self.on_bytes, **options)


def test_requests_are_handled_in_order_and_each_once() -> None:
    async def scenario() -> None:
        owner = Owner()
        connection, transport = owner.opened()
        connection.is_active = False
        transport.receive(requests(1, 2, SMALL))
        assert connection.is_active
        transport.receive(requests(3, 4, SMALL) + requests(5, 5) + requests(6, 7, SMALL))
        assert owner.opaques == [1, 2, 3, 4, 5, 6, 7]
        assert owner.early == [1, 2, 3, 4]
        assert transport.written == b"".join(
            encode_response(Command(SMALL, opaque), Response()) for opaque in range(1, 8)
        )

    run(scenario)


def test_only_bytes_that_begin_with_a_complete_frame_are_passed() -> None:
    async def scenario() -> None:
        owner = Owner()
        _, transport = owner.opened()
        data = requests(1, 2, SMALL)
        transport.receive(data[:3])
        transport.receive(data[3:50])
        assert not owner.calls
        transport.receive(data[50:])
        assert owner.calls == [data]
        large = encode_command(Command(SMALL, 3, body=bytes(BUSY_BUFFER_BYTES)))
        transport.receive(large)
        assert owner.calls == [data]
        assert owner.opaques == [1, 2, 3]

    run(scenario)


def test_large_reads_are_passed_in_part() -> None:
    async def scenario() -> None:
        owner = Owner()
        _, transport = owner.opened(fair_queue=None)
        transport.receive(encode_command(Command(SMALL, 0, body=bytes(2 * BUSY_BUFFER_BYTES))))
        transport.receive(b"".join(encode_command(Command(SMALL, number, body=bytes(30_000))) for number in (1, 2, 3)))
        await turns()
        assert owner.opaques == [0, 1, 2, 3]
        assert owner.calls
        assert max(map(len, owner.calls)) <= BUSY_BUFFER_BYTES

    run(scenario)


def test_requests_wait_while_earlier_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "SLICE_S", 0.0)

    async def scenario() -> None:
        owner = Owner()
        connection, transport = owner.opened()
        transport.receive(requests(1, 6))
        assert connection.deferred_since
        transport.receive(requests(7, 8, SMALL))
        assert not owner.early
        await turns()
        assert owner.opaques == [1, 2, 3, 4, 5, 6, 7, 8]
        transport.receive(requests(9, 9, SMALL))
        assert owner.early == [9]

    run(scenario)


def test_several_requests_wait_while_other_connections_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "LOOP_SLICE_S", 0.0)

    async def scenario() -> None:
        owner, queue = Owner(), FairQueue()
        _, first = owner.opened(fair_queue=queue)
        _, second = owner.opened(fair_queue=queue)
        first.receive(requests(1, 2, SMALL))
        second.receive(requests(3, 4, SMALL))
        first.receive(requests(5, 5, SMALL))
        assert owner.early == owner.opaques == [1, 2, 5]
        await turns()
        assert owner.early == owner.opaques == [1, 2, 5, 3, 4]

    run(scenario)


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all but the first read of an iteration wait."""
    monkeypatch.setattr(fair_queue, "LOOP_SLICE_S", 0.0)


@pytest.mark.usefixtures("waiting")
def test_requests_that_waited_are_handled_in_order_and_each_once() -> None:
    async def scenario() -> None:
        owner = Owner()
        connection, transport = owner.opened(fair_queue=FairQueue())
        transport.receive(requests(1, 2, SMALL))
        transport.receive(requests(3, 4, SMALL) + requests(5, 5) + requests(6, 7, SMALL) + requests(8, 8, SMALL)[:9])
        assert owner.opaques == [1, 2]
        assert connection.deferred_since
        assert not transport.is_reading_
        transport.receive(requests(8, 8, SMALL)[9:] + requests(9, 9))  # was under way
        assert owner.opaques == [1, 2]
        await turns()
        assert owner.opaques == [1, 2, 3, 4, 5, 6, 7, 8, 9]
        assert owner.early == [1, 2, 3, 4]
        assert transport.is_reading_
        assert not connection.deferred_since

    run(scenario)


@pytest.mark.usefixtures("waiting")
def test_requests_that_wait_do_so_until_their_peer_reads_again() -> None:
    async def scenario() -> None:
        owner = Owner()
        connection, transport = owner.opened(fair_queue=FairQueue())
        transport.receive(requests(1, 2, SMALL))
        transport.receive(requests(3, 4, SMALL) + requests(5, 5))
        fall_behind(connection, transport)
        await turns()
        assert owner.opaques == [1, 2]
        assert not transport.is_reading_
        transport.take()
        await turns()
        assert owner.opaques == [1, 2, 3, 4, 5]
        assert transport.is_reading_

    run(scenario)


@pytest.mark.usefixtures("waiting")
def test_responses_that_waited_reach_their_requests() -> None:
    async def scenario() -> None:
        owner = Owner()
        connection, transport = owner.opened(fair_queue=FairQueue())
        transport.receive(requests(1, 2, SMALL))
        asked = connection.start_request(Command(40))
        transport.receive(requests(3, 3, SMALL) + encode_response(Command(40, 1), Response(7)) + requests(4, 4))
        assert not asked.done()
        await turns()
        assert owner.opaques == [1, 2, 3, 4]
        assert asked.result().code == 7

    run(scenario)


@pytest.mark.usefixtures("waiting")
def test_invalid_bytes_that_waited_end_the_connection_after_the_requests_before_them() -> None:
    async def scenario() -> None:
        owner = Owner()
        connection, transport = owner.opened(fair_queue=FairQueue())
        transport.receive(requests(1, 2, SMALL))
        transport.receive(requests(3, 3, SMALL) + requests(4, 4) + b"\0\0\0\4\xff\xff\xff\xff" + requests(5, 5))
        await turns()
        assert owner.opaques == [1, 2, 3, 4]
        assert connection.closing

    run(scenario)


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize("end", ["stop_reading", "close", "abort"])
def test_requests_that_wait_are_dropped_at_the_end(end: str) -> None:
    async def scenario() -> None:
        owner = Owner()
        connection, transport = owner.opened(fair_queue=FairQueue())
        transport.receive(requests(1, 2, SMALL))
        transport.receive(requests(3, 6, SMALL))
        getattr(connection, end)()
        await turns()
        assert owner.opaques == [1, 2]

    run(scenario)


def test_requests_of_a_peer_that_is_behind_wait() -> None:
    async def scenario() -> None:
        owner = Owner()
        connection, transport = owner.opened()
        fall_behind(connection, transport)
        transport.receive(requests(1, 6, SMALL))
        assert not owner.early
        transport.take()
        await turns()
        assert owner.opaques == [1, 2, 3, 4, 5, 6]

    run(scenario)


def test_failure_costs_the_connection_only() -> None:
    async def scenario() -> None:
        def fail(connection: RemotingConnection, data: bytes) -> int:
            raise RuntimeError("a defect")

        handled: list[Command] = []
        connection, transport = opened(
            lambda connection, commands: handled.extend(commands), on_bytes=fail, fair_queue=FairQueue()
        )
        transport.receive(requests(1, 3))
        assert connection.closing
        assert not handled
        assert not transport.written

    run(scenario)


def test_connection_with_another_owner_passes_no_bytes() -> None:
    async def scenario() -> None:
        owner = Owner()
        connection, transport = owner.opened()
        connection.pass_requests_to(owner.on_commands)
        transport.receive(requests(1, 2, SMALL))
        assert owner.opaques == [1, 2]
        assert not owner.calls

    run(scenario)


def test_plaintext_is_not_passed_where_tls_is_required() -> None:
    async def scenario() -> None:
        async def context() -> Any:
            raise AssertionError("no handshake begins")

        owner = Owner()
        connection, transport = owner.opened(tls=TlsAcceptor(context, enforcing=True))
        assert isinstance(connection._receiver, HandshakeReceiver)
        transport.receive(requests(1, 1, SMALL))
        assert connection.closing
        assert not owner.calls
        assert not owner.opaques

    run(scenario)


def test_receiver_returns_the_commands_behind_handled_frames() -> None:
    chance = Random(SEED)
    receiver, reference = FrameReceiver(), FrameReceiver()
    early: list[int] = []
    late: list[int] = []
    for number in range(FUZZ_INPUTS // 20):
        size = chance.choice([0, 10, 300, 5_000, chance.choice([20_000, 70_000, 300_000]) if number % 20 == 0 else 1])
        left = memoryview(encode_command(Command(SMALL, number, body=bytes(size))) * chance.choice([1, 1, 3]))
        while left:
            buffer = receiver.get_buffer(-1)
            count = min(len(buffer), len(left), chance.choice([1 << 20, 700, 5]))
            buffer[:count] = left[:count]
            data, handled = receiver.begun(count), 0
            while data and handled < len(data) and chance.random() < 0.7:
                end = handled + 4 + int.from_bytes(data[handled : handled + 4])
                if len(data) < handled + 4 or end > len(data):
                    break
                early.append(decode_command(data[handled + 4 : end]).opaque)
                handled = end
            late += [command.opaque for command in receiver.received(count, handled)]
            expected = [command.opaque for command in reference.feed(bytes(left[:count]))]
            assert [*early, *late] == expected
            early.clear()
            late.clear()
            assert receiver.buffer_bytes == reference.buffer_bytes
            left = left[count:]
