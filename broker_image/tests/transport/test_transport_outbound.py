"""Peers that do not read: pending output is limited, and a close delivers written data."""

import asyncio
import socket
import struct

import pytest
from delaymq.protocol.command import Command, Response, encode_command, encode_response, request_command
from delaymq.transport import (
    ConnectionClosedError,
    ConnectionLimits,
    RemotingConnection,
    TooManyRequestsError,
    connect,
)
from delaymq.transport.buffer_budget import BufferBudget
from delaymq_testing.transport.loopback import BOUND_S, HOST, never_answer, run, server, until


def test_peer_that_does_not_read_is_no_longer_read_and_then_disconnected() -> None:
    limits = ConnectionLimits(write_pause_bytes=64 << 10, write_stall_ms=200, read_while_behind=False)

    async def scenario() -> None:
        seen = 0

        def large_answers(connection: RemotingConnection, commands: list[Command]) -> None:
            nonlocal seen
            seen += len(commands)
            for command in commands:
                connection.send(encode_response(command, Response(body=bytes(256 << 10))))

        async with server(large_answers, limits) as (port, accepted):
            hostile = socket.create_connection((HOST, port))
            hostile.setblocking(False)
            loop = asyncio.get_running_loop()
            good = await connect(HOST, port)
            request = encode_command(Command(11, fields={"f": "x" * 900}))
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                await loop.sock_sendall(hostile, request * 200_000)
            hostile.close()
            assert accepted[0].closing
            assert seen < 20_000
            assert (await good.request(request_command(1))).code == 0
            good.close()

    run(scenario)


def test_unread_data_behind_invalid_bytes_counts_for_the_memory_budget() -> None:
    async def scenario() -> None:
        def large_answers(connection: RemotingConnection, commands: list[Command]) -> None:
            for command in commands:
                connection.send(encode_response(command, Response(body=bytes(12 << 20))))

        budget = BufferBudget(16 << 20)
        limits = ConnectionLimits(read_while_behind=False, close_timeout_ms=BOUND_S * 1000)
        async with server(large_answers, limits, budget) as (port, accepted):
            hostile = []
            for _ in range(5):
                hostile.append(socket.create_connection((HOST, port)))
                hostile[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                hostile[-1].sendall(encode_command(Command(11)) + b"\xff" * 8)
            await until(lambda: len(accepted) == 5 and all(each.closing for each in accepted))
            assert budget.disconnected >= 3
            assert budget.unsent_bytes <= 16 << 20
            for each in hostile:
                each.close()
            await until(lambda: budget.unsent_bytes == 0)

    run(scenario)


def test_pipelined_requests_wait_while_their_peer_does_not_read() -> None:
    handled: list[str] = []

    def large_answers(connection: RemotingConnection, commands: list[Command]) -> None:
        for command in commands:
            handled.append(command.fields["n"])
            connection.send(encode_response(command, Response(fields=command.fields, body=bytes(1 << 20))))

    async def scenario() -> None:
        limits = ConnectionLimits(read_while_behind=False)
        async with server(large_answers, limits) as (port, accepted):
            reader, writer = await asyncio.open_connection(HOST, port)
            requests = []
            for number in range(60):
                command = request_command(10, {"n": str(number)})
                command.opaque = number
                requests.append(encode_command(command))
            writer.write(b"".join(requests))
            await until(lambda: accepted and accepted[0].is_behind)
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert len(handled) < 30, "a peer that reads nothing had all its answers made"
            for number in range(60):
                (length,) = struct.unpack(">I", await reader.readexactly(4))
                answer = await reader.readexactly(length)
                assert f'"opaque":{number},'.encode() in answer[:200]
            assert handled == [str(number) for number in range(60)]
            writer.write(requests[7])
            await reader.readexactly(1 << 20)
            assert handled[60:] == ["7"]
            writer.close()

    run(scenario)


def test_unsent_bytes_are_limited() -> None:
    limits = ConnectionLimits(write_pause_bytes=64 << 10, write_max_bytes=4 << 20, write_stall_ms=60_000)

    async def scenario() -> None:
        async with server(never_answer, limits) as (port, accepted):
            silent = socket.create_connection((HOST, port))
            await until(lambda: accepted)
            sent = 0
            while not accepted[0].closing:
                accepted[0].send(bytes(1 << 20))
                sent += 1
                assert sent < 100
                await asyncio.sleep(0)
            with pytest.raises(ConnectionClosedError):
                accepted[0].send_oneway(request_command(40))
            silent.close()

    run(scenario)


def test_oneways_to_a_slow_peer_are_rejected_and_drain_waits() -> None:
    limits = ConnectionLimits(write_pause_bytes=64 << 10)

    async def scenario() -> None:
        async with server(never_answer, limits) as (port, accepted):
            peer = socket.create_connection((HOST, port))
            await until(lambda: accepted)
            connection = accepted[0]
            while not connection.is_behind:
                connection.send(bytes(1 << 20))
            with pytest.raises(TooManyRequestsError):
                connection.send_oneway(request_command(40))
            drained = asyncio.create_task(connection.drain())
            peer.setblocking(False)
            while not drained.done():
                await asyncio.get_running_loop().sock_recv(peer, 1 << 20)
            assert not connection.is_behind
            peer.close()

    run(scenario)


def test_ordinary_close_delivers_written_data() -> None:
    async def scenario() -> None:
        def answer_and_close(connection: RemotingConnection, commands: list[Command]) -> None:
            for command in commands:
                connection.send(encode_response(command, Response(body=bytes(8 << 20))))
            connection.close()

        async with server(answer_and_close) as (port, _):
            client = await connect(HOST, port)
            assert len((await client.request(request_command(11))).body) == 8 << 20

    run(scenario)
