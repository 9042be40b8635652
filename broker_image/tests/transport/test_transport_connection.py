"""A connection between two real sockets on loopback."""

import asyncio
import logging
import socket
import struct
from typing import Any

import pytest
from delaymq.clock import now_ms
from delaymq.message.ids import unpack_host
from delaymq.protocol.command import Command, Response, encode_command, encode_response, request_command
from delaymq.throttled_log import REPEAT_INTERVAL_MS, ThrottledLogger
from delaymq.transport import (
    ConnectError,
    ConnectionClosedError,
    ConnectionLimits,
    RemotingConnection,
    RequestTimeoutError,
    TooManyRequestsError,
    connect,
)
from delaymq.transport import connection as connection_module
from delaymq.transport import connector as connecting_module
from delaymq_testing.transport.loopback import HOST, echo, never_answer, run, server, until


def test_response_is_matched_by_opaque() -> None:
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


def test_responses_of_one_read_leave_in_one_write() -> None:
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
            futures = [client._requests.add(opaque, 10, 3_000, client._loop.time() + 3) for opaque in range(1, 21)]
            client.send(burst)
            await asyncio.gather(*futures)
            assert sum(batches) == 20
            assert len(writes) == len(batches)
            client.close()

    run(scenario)


def test_request_without_a_response_times_out_and_the_next_one_works() -> None:
    async def scenario() -> None:
        def answer_some(connection: RemotingConnection, commands: list[Command]) -> None:
            echo(connection, [command for command in commands if command.code == 11])

        async with server(answer_some) as (port, _):
            client = await connect(HOST, port)
            silent = client.start_request(request_command(10), 30)
            patient = client.start_request(request_command(10), 60_000)
            with pytest.raises(RequestTimeoutError, match="no response to request 10 within 30 ms") as caught:
                await silent
            assert (caught.value.code, caught.value.timeout_ms) == (10, 30)
            assert (await client.request(request_command(11))).code == 0
            assert not patient.done()
            client.close()
            with pytest.raises(ConnectionClosedError):
                await patient

    run(scenario)


def test_open_requests_end_when_the_peer_disconnects() -> None:
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


def test_both_sides_can_send_requests() -> None:
    async def scenario() -> None:
        async with server(echo) as (port, accepted):
            client = await connect(HOST, port, echo)
            await client.request(request_command(10))
            answer = await accepted[0].request(request_command(307, {"a": "b"}))
            assert answer.fields == {"a": "b"}
            client.close()

    run(scenario)


def test_client_only_peer_rejects_requests_with_code_3() -> None:
    async def scenario() -> None:
        async with server(echo) as (port, accepted):
            client = await connect(HOST, port)
            await client.request(request_command(10))
            answer = await accepted[0].request(request_command(4_711))
            assert (answer.code, answer.remark) == (3, " request type 4711 not supported")
            client.close()

    run(scenario)


def test_excess_open_requests_are_rejected_before_they_are_sent() -> None:
    async def scenario() -> None:
        async with server(never_answer) as (port, _):
            client = await connect(HOST, port, limits=ConnectionLimits(max_open_requests=2))
            waiting = [client.start_request(request_command(10)) for _ in range(2)]
            with pytest.raises(TooManyRequestsError):
                await client.request(request_command(10))
            client.close()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(scenario)


def test_cancelled_request_leaves_the_table() -> None:
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


def test_invalid_bytes_close_their_connection_after_earlier_commands_are_answered(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The limit on lines is the process's, and other tests may have used it up.
    monkeypatch.setattr(connection_module, "_throttled", ThrottledLogger(logging.getLogger("test"), now_ms))

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
    assert " disconnected: " in caplog.text


def test_exception_of_the_owner_closes_one_connection(caplog: pytest.LogCaptureFixture) -> None:
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


def test_accepted_sockets_are_reset_when_their_process_is_killed() -> None:
    async def scenario() -> None:
        async with server(never_answer) as (port, accepted):
            client = await connect(HOST, port)
            await until(lambda: accepted)
            own = accepted[0]._transport.get_extra_info("socket")
            assert struct.unpack("ii", own.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)) == (1, 0)
            client.close()

    run(scenario)


def test_addresses_are_available_as_text_and_packed() -> None:
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


def test_name_with_several_addresses_is_reached_at_a_responding_one() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        silent = await loop.getaddrinfo("127.0.0.2", None, type=socket.SOCK_STREAM)
        answering = await loop.getaddrinfo("127.0.0.1", None, type=socket.SOCK_STREAM)

        async def both(*_: object, **__: object) -> list[object]:
            return [*silent, *answering]

        loop.getaddrinfo = both  # type: ignore[assignment]
        async with server(echo) as (port, _):
            client = await connect("two-addresses.example", port)
            assert client.remote_address == f"{HOST}:{port}"
            client.close()

    run(scenario)


def test_connecting_to_an_unresolvable_name_is_reported() -> None:
    async def scenario() -> None:
        with pytest.raises(ConnectError, match=r"no-such-name\.invalid:1: cannot connect"):
            await connect("no-such-name.invalid", 1)

    run(scenario)


def test_connecting_to_a_closed_port_is_reported() -> None:
    async def scenario() -> None:
        with socket.socket() as unused:
            unused.bind((HOST, 0))
            port = unused.getsockname()[1]
        with pytest.raises(ConnectError, match=f"{HOST}:{port}: cannot connect"):
            await connect(HOST, port)

    run(scenario)


def test_unanswered_connection_attempt_falls_back_to_another_address(
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


def test_log_lines_about_bad_peers_are_throttled_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [0]
    limited = ThrottledLogger(logging.getLogger("test"), lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for n in range(5):
            limited.warning("line %d", n)
        now[0] = REPEAT_INTERVAL_MS
        limited.warning("line %d", 5)
    assert [record.getMessage() for record in caplog.records] == ["line 0", "line 5 (4 more since the last time)"]
