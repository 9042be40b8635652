"""TLS on the plaintext port, on event loops of servers and of ordinary programs."""

import asyncio
import contextlib
import gc
import os
import ssl
from pathlib import Path

import pytest
import uvloop
from delaymq.protocol.command import Command, Response, encode_command, encode_response, request_command
from delaymq.transport import ConnectError, ConnectionClosedError, ConnectionLimits, RemotingConnection, connect
from delaymq.transport.tls_acceptor import TlsAcceptor
from delaymq_testing.certificates import Authority, client_context, server_context
from delaymq_testing.transport.loopback_tls import BOUND_S, HOST, Run, echo, server, until


def test_plaintext_and_tls_are_served_concurrently(run: Run, authority: Authority) -> None:
    async def scenario() -> None:
        async with server(server_context(authority.issue(HOST))) as listening:
            plain = await connect(HOST, listening.port)
            secure = await connect(HOST, listening.port, tls=client_context(authority))
            for size in (0, 1, 100, 20_000, 3_000_000):
                body = os.urandom(size)
                for client in (plain, secure):
                    assert (await client.request(request_command(10, {}, body))).body == body
            assert (listening.tls.done, listening.tls.open_connections) == (1, 1)
            plain.close()
            secure.close()
            await until(lambda: len(listening.closed) == 2)
            assert listening.tls.open_connections == 0

    run(scenario)


def test_many_concurrent_requests_are_answered_over_tls(run: Run, authority: Authority) -> None:
    async def scenario() -> None:
        async with server(server_context(authority.issue(HOST))) as listening:
            client = await connect(HOST, listening.port, tls=client_context(authority))
            commands = [request_command(10, {"n": str(n)}, b"x" * (n % 5_000)) for n in range(2_000)]
            answers = await asyncio.gather(*(client.request(command, 60_000) for command in commands))
            assert [answer.fields["n"] for answer in answers] == [str(n) for n in range(2_000)]
            assert [len(answer.body) for answer in answers] == [n % 5_000 for n in range(2_000)]

    run(scenario)


@pytest.mark.parametrize("piece_bytes", [1, 3, 4, 5, 7, 100_000])
def test_fragmented_handshake_followed_by_a_request_is_accepted(
    run: Run, authority: Authority, piece_bytes: int
) -> None:
    """As a slow network brings it; the request comes in one piece with the handshake's end."""

    async def scenario() -> None:
        async with server(server_context(authority.issue(HOST))) as listening:
            reader, writer = await asyncio.open_connection(HOST, listening.port)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = client_context(authority).wrap_bio(incoming, outgoing, server_hostname=HOST)

            async def flush() -> None:
                data = outgoing.read()
                for at in range(0, len(data), piece_bytes):
                    writer.write(data[at : at + piece_bytes])
                    await writer.drain()
                    await asyncio.sleep(0)

            while True:
                try:
                    tls.do_handshake()
                except ssl.SSLWantReadError:
                    await flush()
                    incoming.write(await reader.read(65_536))
                else:
                    break
            tls.write(encode_command(request_command(10, {}, b"early")))
            await flush()
            answer = b""
            while b"early" not in answer:
                try:
                    answer += tls.read(65_536)
                except ssl.SSLWantReadError:
                    data = await reader.read(65_536)
                    assert data
                    incoming.write(data)
            writer.close()

    run(scenario)


def test_plaintext_connections_are_closed_where_tls_is_required_with_a_reason(run: Run, authority: Authority) -> None:
    taken: list[Command] = []

    def taking(connection: RemotingConnection, commands: list[Command]) -> None:
        taken.extend(commands)
        echo(connection, commands)

    async def scenario() -> None:
        async with server(server_context(authority.issue(HOST)), taking, enforcing=True) as listening:
            plain = await connect(HOST, listening.port)
            with pytest.raises(ConnectionClosedError, match="accepts only TLS"):
                await plain.request(request_command(10))
            assert taken == []
            assert listening.tls.plain_refused == 1
            secure = await connect(HOST, listening.port, tls=client_context(authority))
            assert (await secure.request(request_command(10, {}, b"y"))).body == b"y"
            assert len(taken) == 1

    run(scenario)


def ask_and_close(connection: RemotingConnection) -> None:
    """What a server may do with any of its connections at any time."""
    assert not connection.closing
    assert connection.unsent_bytes() == 0
    connection.last_bytes_age_s()
    connection.close()


def test_connection_can_be_used_and_closed_while_its_socket_closes(run: Run, authority: Authority) -> None:
    async def scenario() -> None:
        async with server(server_context(authority.issue(HOST))) as listening:
            client = await connect(HOST, listening.port, tls=client_context(authority))
            await client.request(request_command(10))
            [connection] = listening.opened
            assert connection._below is not None
            connection._below.get_protocol().connection_lost(None)
            ask_and_close(connection)
            await until(lambda: listening.closed)

    run(scenario)


def test_connection_can_be_used_and_closed_while_its_handshake_fails(
    run: Run, authority: Authority, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with server(server_context(authority.issue(HOST))) as listening:
            stranger = client_context(Authority(tmp_path))
            connecting = asyncio.ensure_future(connect(HOST, listening.port, tls=stranger))
            while not listening.opened:  # noqa: ASYNC110 - the turn must not be missed
                await asyncio.sleep(0)
            [connection] = listening.opened
            while connection._transport.get_extra_info("socket").fileno() >= 0:  # noqa: ASYNC110
                await asyncio.sleep(0)
            ask_and_close(connection)
            with pytest.raises(ConnectError):
                await connecting
            await until(lambda: listening.closed)

    run(scenario)


def test_close_flushes_written_data_and_abort_resets(run: Run, authority: Authority) -> None:
    body = os.urandom(5_000_000)

    def last_words(connection: RemotingConnection, commands: list[Command]) -> None:
        connection.send(encode_response(commands[0], Response(body=body)))
        connection.close()

    async def scenario() -> None:
        async with server(server_context(authority.issue(HOST)), last_words) as listening:
            client = await connect(HOST, listening.port, tls=client_context(authority))
            assert (await client.request(request_command(10), 60_000)).body == body
            await until(lambda: len(listening.closed) == 1)

        def abort(connection: RemotingConnection, commands: list[Command]) -> None:
            connection.abort()

        async with server(server_context(authority.issue(HOST)), abort) as listening:
            client = await connect(HOST, listening.port, tls=client_context(authority))
            with pytest.raises(ConnectionClosedError, match="lost"):
                await client.request(request_command(10), 60_000)

    run(scenario)


def test_tls_peer_that_does_not_read_counts_as_behind(run: Run, authority: Authority) -> None:
    limits = ConnectionLimits(write_pause_bytes=10_000, write_max_bytes=20_000_000, read_while_behind=False)

    def much(connection: RemotingConnection, commands: list[Command]) -> None:
        for command in commands:
            connection.send(encode_response(command, Response(body=bytes(4_000_000))))

    async def scenario() -> None:
        async with server(server_context(authority.issue(HOST)), much, limits=limits) as listening:
            client = await connect(HOST, listening.port, tls=client_context(authority))
            client._transport.pause_reading()
            below = client._below
            assert below is not None
            below.pause_reading()
            client.send(b"".join(encode_command(Command(10, opaque)) for opaque in range(1, 40)))
            (connection,) = listening.opened
            await until(lambda: connection.is_behind)
            assert connection.unsent_bytes() > 1_000_000
            client._transport.resume_reading()
            below.resume_reading()
            await until(lambda: not connection.is_behind or connection.closing)
            assert not connection.closing

    run(scenario)


def test_written_data_counts_as_unsent_until_the_peers_kernel_has_it(run: Run, authority: Authority) -> None:
    async def scenario() -> None:
        async with server(server_context(authority.issue(HOST))) as listening:
            client = await connect(HOST, listening.port, tls=client_context(authority))
            await client.request(request_command(10))
            (connection,) = listening.opened
            await until(lambda: connection.unsent_bytes() == 0)
            assert client._below is not None
            client._below.pause_reading()
            connection.send(bytes(30_000_000))
            assert connection.unsent_bytes() > 10_000_000
            client.abort()

    run(scenario)


def test_closed_connection_is_freed_without_the_garbage_collector(authority: Authority) -> None:
    """Each holds some 70 KB, and a server, which has uvloop, collects rarely."""

    def alive() -> int:
        return sum(type(each) is RemotingConnection for each in gc.get_objects())

    async def come_and_go(port: int) -> None:
        client = await connect(HOST, port, tls=client_context(authority))
        await client.request(request_command(10))
        client.close()

    async def go_halfway(port: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(bytes.fromhex("16030100c8010000c40303"))
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    async def scenario() -> None:
        async def given() -> ssl.SSLContext:
            return context

        context = server_context(authority.issue(HOST))
        tls = TlsAcceptor(given, enforcing=False)
        serving = await asyncio.get_running_loop().create_server(lambda: RemotingConnection(echo, tls=tls), HOST, 0)
        gc.collect()
        before = alive()
        gc.disable()
        try:
            async with asyncio.timeout(BOUND_S):
                for _ in range(5):
                    await come_and_go(serving.sockets[0].getsockname()[1])
                    await go_halfway(serving.sockets[0].getsockname()[1])
                await until(lambda: alive() == before)
        finally:
            gc.enable()
            serving.close()
        assert (tls.ended, tls.failed) == (10, 5)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
