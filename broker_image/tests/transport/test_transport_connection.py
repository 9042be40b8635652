"""One connection between two real sockets on loopback."""

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from delaymq.clock import now_ms
from delaymq.message.ids import unpack_host
from delaymq.protocol.command import Command, Response, encode_command, encode_response, request_command
from delaymq.quiet_log import QUIET_MS, QuietLog
from delaymq.transport import (
    ConnectError,
    ConnectionClosedError,
    ConnectionLimits,
    RemotingConnection,
    RequestTimeoutError,
    TooManyRequestsError,
    connect,
)
from delaymq.transport import connecting as connecting_module
from delaymq.transport import connection as connection_module
from delaymq.transport.budget import BufferBudget
from delaymq.transport.connection import OnCommands
from delaymq.transport.kernel import LINGER_RESET

HOST = "127.0.0.1"
BOUND_S = 10


def run(scenario: Callable[[], object]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await scenario()  # type: ignore[misc]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


@asynccontextmanager
async def server(
    on_commands: OnCommands, limits: ConnectionLimits | None = None, budget: BufferBudget | None = None
) -> AsyncIterator[tuple[int, list[RemotingConnection]]]:
    """A listening port and the connections it accepted."""
    accepted: list[RemotingConnection] = []
    listening = socket.create_server((HOST, 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
    serving = await asyncio.get_running_loop().create_server(
        lambda: RemotingConnection(on_commands, on_opened=accepted.append, limits=limits, budget=budget),
        sock=listening,
    )
    try:
        yield listening.getsockname()[1], accepted
    finally:
        serving.close()
        for connection in accepted:
            connection.abort()


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - the caller's time limit bounds it
        await asyncio.sleep(0.001)


def echo(connection: RemotingConnection, commands: list[Command]) -> None:
    for command in commands:
        connection.send(encode_response(command, Response(fields=command.fields, body=command.body)))


def never_answer(connection: RemotingConnection, commands: list[Command]) -> None:
    pass


def test_a_request_gets_the_answer_with_its_own_opaque() -> None:
    def backwards(connection: RemotingConnection, commands: list[Command]) -> None:
        echo(connection, commands[::-1])

    async def scenario() -> None:
        async with server(backwards) as (port, _):
            client = await connect(HOST, port)
            commands = [request_command(10, {"n": str(n)}, b"x" * n) for n in range(50)]
            answers = await asyncio.gather(*(client.request(command) for command in commands))
            assert [answer.fields["n"] for answer in answers] == [str(n) for n in range(50)]
            assert [len(answer.body) for answer in answers] == list(range(50))
            assert client.open_requests == 0
            client.close()

    run(scenario)


def test_answers_of_one_read_leave_in_one_write() -> None:
    async def scenario() -> None:
        writes: list[int] = []
        batches: list[int] = []

        def counting(connection: RemotingConnection, commands: list[Command]) -> None:
            batches.append(len(commands))
            transport = connection._transport

            class Counting:
                def __getattr__(self, name: str) -> object:
                    return getattr(transport, name)

                def write(self, data: bytes) -> None:
                    writes.append(len(data))
                    transport.write(data)

            connection._transport = Counting()  # type: ignore[assignment]
            echo(connection, commands)
            connection._flush()
            connection._transport = transport

        async with server(counting) as (port, _):
            client = await connect(HOST, port)
            burst = b"".join(encode_command(Command(10, opaque)) for opaque in range(1, 21))
            futures = [client._requests.add(opaque, 10, 3_000) for opaque in range(1, 21)]
            client.send(burst)
            await asyncio.gather(*futures)
            assert sum(batches) == 20
            assert len(writes) == len(batches)
            client.close()

    run(scenario)


def test_a_request_without_an_answer_times_out_and_the_next_one_still_works() -> None:
    async def scenario() -> None:
        def answer_some(connection: RemotingConnection, commands: list[Command]) -> None:
            echo(connection, [command for command in commands if command.code == 11])

        async with server(answer_some) as (port, _):
            client = await connect(HOST, port)
            silent = client.start_request(request_command(10), 30)
            patient = client.start_request(request_command(10), 60_000)
            with pytest.raises(RequestTimeoutError, match="no answer to request 10 within 30 ms") as caught:
                await silent
            assert (caught.value.code, caught.value.timeout_ms) == (10, 30)
            assert (await client.request(request_command(11))).code == 0
            assert not patient.done()
            client.close()
            with pytest.raises(ConnectionClosedError):
                await patient

    run(scenario)


def test_open_requests_end_when_the_peer_goes_away() -> None:
    async def scenario() -> None:
        closed: list[RemotingConnection] = []
        async with server(never_answer) as (port, accepted):
            client = await connect(HOST, port, on_closed=lambda connection, _: closed.append(connection))
            waiting = client.start_request(request_command(10))
            await asyncio.sleep(0.01)
            accepted[0].close()
            with pytest.raises(ConnectionClosedError):
                await waiting
            assert closed == [client]
            with pytest.raises(ConnectionClosedError):
                await client.request(request_command(10))
            with pytest.raises(ConnectionClosedError):
                client.send_oneway(request_command(10))

    run(scenario)


def test_both_sides_can_ask() -> None:
    async def scenario() -> None:
        async with server(echo) as (port, accepted):
            client = await connect(HOST, port, echo)
            await client.request(request_command(10))
            answer = await accepted[0].request(request_command(307, {"a": "b"}))
            assert answer.fields == {"a": "b"}
            client.close()

    run(scenario)


def test_a_peer_that_only_asks_refuses_requests_with_code_3() -> None:
    async def scenario() -> None:
        async with server(echo) as (port, accepted):
            client = await connect(HOST, port)
            await client.request(request_command(10))
            answer = await accepted[0].request(request_command(4_711))
            assert (answer.code, answer.remark) == (3, " request type 4711 not supported")
            client.close()

    run(scenario)


def test_too_many_open_requests_are_refused_before_they_are_sent() -> None:
    async def scenario() -> None:
        async with server(never_answer) as (port, _):
            client = await connect(HOST, port, limits=ConnectionLimits(max_open_requests=2))
            waiting = [client.start_request(request_command(10)) for _ in range(2)]
            with pytest.raises(TooManyRequestsError):
                await client.request(request_command(10))
            client.close()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(scenario)


def test_a_cancelled_request_leaves_the_table() -> None:
    async def scenario() -> None:
        async with server(never_answer) as (port, _):
            client = await connect(HOST, port)
            task = asyncio.create_task(client.request(request_command(10)))
            await asyncio.sleep(0)
            assert client.open_requests == 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert client.open_requests == 0
            client.close()

    run(scenario)


def test_bad_bytes_close_their_connection_only_and_good_commands_before_them_are_answered(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The limit on lines is the process's, and other tests may have used it up.
    monkeypatch.setattr(connection_module, "_bad_peers", QuietLog(logging.getLogger("test"), now_ms))

    async def scenario() -> None:
        async with server(echo) as (port, _):
            good = await connect(HOST, port)
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(encode_command(Command(10, 7)) + b"\x00\x00\x00\x04\xff\xff\xff\xff")
            answer = await reader.read()
            assert b'"opaque":7' in answer
            assert answer == encode_response(Command(10, 7), Response())
            assert (await good.request(request_command(10))).code == 0
            writer.close()
            good.close()

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert "is cut off" in caplog.text


def test_an_exception_of_the_owner_costs_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        def fail(connection: RemotingConnection, commands: list[Command]) -> None:
            if commands[0].code == 1:
                raise RuntimeError("a defect")
            echo(connection, commands)

        async with server(fail) as (port, _):
            good, bad = await connect(HOST, port), await connect(HOST, port)
            with pytest.raises(ConnectionClosedError):
                await bad.request(request_command(1))
            assert (await good.request(request_command(2))).code == 0
            good.close()

    run(scenario)
    assert "a defect" in caplog.text


def test_a_peer_that_does_not_read_is_not_read_from_and_then_cut_off() -> None:
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


def test_what_a_peer_leaves_unread_behind_bad_bytes_counts_for_the_memory_of_all() -> None:
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
            assert budget.cut_off >= 3
            assert budget.unsent_bytes <= 16 << 20
            for each in hostile:
                each.close()
            await until(lambda: budget.unsent_bytes == 0)

    run(scenario)


def test_pipelined_requests_wait_while_their_peer_does_not_read_the_answers() -> None:
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


def test_unsent_bytes_have_a_limit() -> None:
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


def test_oneways_to_a_peer_that_is_behind_are_refused_and_drain_waits() -> None:
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


def test_an_ordinary_close_delivers_what_was_written() -> None:
    async def scenario() -> None:
        def answer_and_close(connection: RemotingConnection, commands: list[Command]) -> None:
            for command in commands:
                connection.send(encode_response(command, Response(body=bytes(8 << 20))))
            connection.close()

        async with server(answer_and_close) as (port, _):
            client = await connect(HOST, port)
            assert len((await client.request(request_command(11))).body) == 8 << 20

    run(scenario)


def test_accepted_sockets_are_reset_when_their_process_is_killed() -> None:
    async def scenario() -> None:
        async with server(never_answer) as (port, accepted):
            client = await connect(HOST, port)
            await until(lambda: accepted)
            own = accepted[0]._transport.get_extra_info("socket")
            assert struct.unpack("ii", own.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)) == (1, 0)
            client.close()

    run(scenario)


def test_addresses_are_known_as_text_and_packed() -> None:
    async def scenario() -> None:
        async with server(echo) as (port, accepted):
            client = await connect(HOST, port)
            await client.request(request_command(10))
            assert client.remote_address == f"{HOST}:{port}" == accepted[0].local_address
            assert accepted[0].remote_address == client.local_address
            host, client_port = unpack_host(accepted[0].remote_host)
            assert f"{host}:{client_port}" == client.local_address
            client.close()

    run(scenario)


def test_a_name_with_several_addresses_is_reached_at_the_one_that_answers() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        silent = await loop.getaddrinfo("127.0.0.2", None, type=socket.SOCK_STREAM)
        answering = await loop.getaddrinfo("127.0.0.1", None, type=socket.SOCK_STREAM)

        async def both(*_: object, **__: object) -> list[object]:
            return [*silent, *answering]

        loop.getaddrinfo = both  # type: ignore[method-assign, assignment]
        async with server(echo) as (port, _):
            client = await connect("two-addresses.example", port)
            assert client.remote_address == f"{HOST}:{port}"
            client.close()

    run(scenario)


def test_connecting_to_a_name_without_an_address_says_so() -> None:
    async def scenario() -> None:
        with pytest.raises(ConnectError, match=r"no-such-name\.invalid:1: cannot connect"):
            await connect("no-such-name.invalid", 1)

    run(scenario)


def test_connecting_to_a_closed_port_says_so() -> None:
    async def scenario() -> None:
        with socket.socket() as unused:
            unused.bind((HOST, 0))
            port = unused.getsockname()[1]
        with pytest.raises(ConnectError, match=f"{HOST}:{port}: cannot connect"):
            await connect(HOST, port)

    run(scenario)


def test_an_attempt_to_connect_that_nothing_answers_is_given_up_for_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connecting_module, "ATTEMPT_MS", 20)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        real, attempts = loop.create_connection, []

        async def lost_twice(*arguments: Any, **options: Any) -> Any:
            attempts.append(arguments)
            if len(attempts) < 3:
                await asyncio.sleep(60)
            return await real(*arguments, **options)

        async with server(echo) as (port, _):
            monkeypatch.setattr(loop, "create_connection", lost_twice)
            client = await connect(HOST, port)
            assert len(attempts) == 3
            client.close()
            attempts.clear()
            with pytest.raises(ConnectError, match="no connection within 30 ms"):
                await connect(HOST, port, timeout_ms=30)

    run(scenario)


def test_lines_about_bad_peers_are_limited_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [0]
    limited = QuietLog(logging.getLogger("test"), lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for n in range(5):
            limited.warning("line %d", n)
        now[0] = QUIET_MS
        limited.warning("line %d", 5)
    assert [record.getMessage() for record in caplog.records] == ["line 0", "line 5 (4 more since the last time)"]
