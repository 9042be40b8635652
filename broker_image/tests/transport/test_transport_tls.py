"""TLS on the port of plain connections, on the loops of servers and of ordinary programs."""

import asyncio
import contextlib
import gc
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from certificates import Authority, client_context, server_context
from delaymq.protocol.command import Command, Response, encode_command, encode_response, request_command
from delaymq.transport import ConnectError, ConnectionClosedError, ConnectionLimits, RemotingConnection, connect
from delaymq.transport import handshake_row as row_module
from delaymq.transport import tls_accepting as accepting_module
from delaymq.transport.connection import OnCommands
from delaymq.transport.kernel import LINGER_RESET
from delaymq.transport.tls_accepting import TlsAccepting

HOST = "127.0.0.1"
BOUND_S = 60
NEVER_S = 600.0
HALF_HANDSHAKE = bytes.fromhex("16030100c8010000c40303")
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=list(LOOPS))
def run(request: pytest.FixtureRequest) -> Run:
    def running(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(BOUND_S):
                await scenario()

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(bounded())

    return running


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def echo(connection: RemotingConnection, commands: list[Command]) -> None:
    for command in commands:
        connection.send(encode_response(command, Response(fields=command.fields, body=command.body)))


class Listening:
    def __init__(self, tls: TlsAccepting) -> None:
        self.tls = tls
        self.port = 0
        self.opened: list[RemotingConnection] = []
        self.closed: list[RemotingConnection] = []


@asynccontextmanager
async def server(
    context: ssl.SSLContext,
    on_commands: OnCommands = echo,
    *,
    enforcing: bool = False,
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[Listening]:
    async def given() -> ssl.SSLContext:
        return context

    listening = Listening(TlsAccepting(given, enforcing=enforcing))
    bound = socket.create_server((HOST, 0))
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
    serving = await asyncio.get_running_loop().create_server(
        lambda: RemotingConnection(
            on_commands,
            on_opened=listening.opened.append,
            on_closed=lambda connection, error: listening.closed.append(connection),
            limits=limits,
            tls=listening.tls,
        ),
        sock=bound,
    )
    listening.port = bound.getsockname()[1]
    try:
        yield listening
    finally:
        serving.close()
        listening.tls.close()
        for connection in listening.opened:
            connection.abort()
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - the scenario's time limit bounds it
        await asyncio.sleep(0.002)


def test_plain_and_tls_are_served_side_by_side(run: Run, authority: Authority) -> None:
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


def test_many_requests_at_once_are_answered_over_tls(run: Run, authority: Authority) -> None:
    async def scenario() -> None:
        async with server(server_context(authority.issue(HOST))) as listening:
            client = await connect(HOST, listening.port, tls=client_context(authority))
            commands = [request_command(10, {"n": str(n)}, b"x" * (n % 5_000)) for n in range(2_000)]
            answers = await asyncio.gather(*(client.request(command, 60_000) for command in commands))
            assert [answer.fields["n"] for answer in answers] == [str(n) for n in range(2_000)]
            assert [len(answer.body) for answer in answers] == [n % 5_000 for n in range(2_000)]

    run(scenario)


@pytest.mark.parametrize("piece_bytes", [1, 3, 4, 5, 7, 100_000])
def test_a_handshake_in_pieces_and_with_a_request_behind_it_is_taken(
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


def test_where_only_tls_is_taken_plain_connections_are_closed_and_the_client_says_why(
    run: Run, authority: Authority
) -> None:
    taken: list[Command] = []

    def taking(connection: RemotingConnection, commands: list[Command]) -> None:
        taken.extend(commands)
        echo(connection, commands)

    async def scenario() -> None:
        async with server(server_context(authority.issue(HOST)), taking, enforcing=True) as listening:
            plain = await connect(HOST, listening.port)
            with pytest.raises(ConnectionClosedError, match="takes only TLS"):
                await plain.request(request_command(10))
            assert taken == []
            assert listening.tls.plain_refused == 1
            secure = await connect(HOST, listening.port, tls=client_context(authority))
            assert (await secure.request(request_command(10, {}, b"y"))).body == b"y"
            assert len(taken) == 1

    run(scenario)


def test_tls_behind_plain_requests_is_cut_off(run: Run, authority: Authority) -> None:
    """One connection is one or the other: answers that are under way would fall into the handshake."""

    async def scenario() -> None:
        async with server(server_context(authority.issue(HOST))) as listening:
            for together in (False, True):
                reader, writer = await asyncio.open_connection(HOST, listening.port)
                frame = encode_command(request_command(10, {}, b"plain"))
                hello = bytes.fromhex("16030100c8010000c40303")
                writer.write(frame + hello if together else frame)
                assert b"plain" in await reader.read(65_536)
                if not together:
                    writer.write(hello)
                with contextlib.suppress(ConnectionError):
                    assert await reader.read(65_536) == b""
                writer.close()
            assert listening.tls.under_way == 0

    run(scenario)


@pytest.mark.parametrize("before", [b"", encode_command(request_command(10, {}, b"secured"))])
def test_no_tls_begins_within_tls(run: Run, authority: Authority, before: bytes) -> None:
    async def scenario() -> None:
        async with server(server_context(authority.issue(HOST))) as listening:
            reader, writer = await asyncio.open_connection(HOST, listening.port, ssl=client_context(authority))
            writer.write(before + bytes.fromhex("16030100c8010000c40303"))
            with contextlib.suppress(ConnectionError):
                assert (await reader.read()).endswith(b"secured" if before else b"")
            writer.close()
            await until(lambda: listening.closed)
            assert (listening.tls.done, listening.tls.failed, listening.tls.under_way) == (1, 0, 0)
            assert listening.tls.open_connections == 0

    run(scenario)


def ask_and_close(connection: RemotingConnection) -> None:
    """What a server may do with any of its connections at any time."""
    assert not connection.closing
    assert connection.unsent_bytes() == 0
    connection.last_bytes_age_s()
    connection.close()


def test_a_connection_can_be_asked_and_closed_in_the_turn_in_which_its_socket_goes(
    run: Run, authority: Authority
) -> None:
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


def test_a_connection_can_be_asked_and_closed_in_the_turn_in_which_its_handshake_fails(
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


@pytest.mark.parametrize("enforcing", [False, True])
@pytest.mark.parametrize(
    "bytes_of_peer",
    [
        b"\x16" * 5_000,
        bytes.fromhex("1603010005ffffffffff"),
        bytes.fromhex("16030100020100"),
        b"\x16\x00\x00\x00",
        bytes.fromhex("160301ffff") + bytes(70_000),
        b"\x15\x03\x01\x00\x02\x02\x28",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(64),
    ],
)
def test_hostile_first_bytes_cost_only_their_own_connection(
    run: Run, authority: Authority, bytes_of_peer: bytes, enforcing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting_module, "HANDSHAKE_TIMEOUT_S", 0.3)

    async def scenario() -> None:
        async with server(server_context(authority.issue(HOST)), enforcing=enforcing) as listening:
            reader, writer = await asyncio.open_connection(HOST, listening.port)
            writer.write(bytes_of_peer)
            with contextlib.suppress(ConnectionError):
                while await reader.read(65_536):
                    pass
            await until(lambda: len(listening.closed) == 1 and listening.tls.under_way == 0)
            client = await connect(HOST, listening.port, tls=client_context(authority))
            assert (await client.request(request_command(10, {}, b"y"))).body == b"y"
            writer.close()

    run(scenario)


def test_a_flood_of_handshakes_that_stop_halfway_keeps_nobody_out(
    run: Run, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each comes again when it was ended, so that there are always more than may be under way."""
    monkeypatch.setattr(row_module, "MAX_HANDSHAKES", 8)
    monkeypatch.setattr(row_module, "MAX_OF_A_NETWORK", 6)
    monkeypatch.setattr(row_module, "GIVES_WAY_S", 0.2)
    monkeypatch.setattr(accepting_module, "HANDSHAKE_TIMEOUT_S", NEVER_S)

    async def comes_again(port: int) -> None:
        while True:
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(HALF_HANDSHAKE)
            try:
                with contextlib.suppress(ConnectionError):
                    await reader.read(1)
            finally:
                writer.close()

    async def scenario() -> None:
        async with server(server_context(authority.issue(HOST))) as listening:
            plain = await connect(HOST, listening.port)
            hostile = [asyncio.create_task(comes_again(listening.port)) for _ in range(40)]
            await until(lambda: listening.tls._row.under_way == 6 and listening.tls.under_way > 6)
            assert (await plain.request(request_command(10, {}, b"x"))).body == b"x"
            for _ in range(3):
                secure = await connect(HOST, listening.port, tls=client_context(authority), timeout_ms=BOUND_S * 1_000)
                assert (await secure.request(request_command(10, {}, b"y"))).body == b"y"
            assert listening.tls._row.under_way <= 6
            for task in hostile:
                task.cancel()
            await asyncio.wait(hostile)
            await until(lambda: listening.tls.under_way == 0)
            assert listening.tls.done == 3

    run(scenario)


def test_half_handshakes_of_one_address_keep_nobody_from_another_one_waiting(
    run: Run, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing gives way here but what must: what one address may not have is there for others at once."""
    monkeypatch.setattr(row_module, "MAX_HANDSHAKES", 8)
    monkeypatch.setattr(row_module, "MAX_OF_A_NETWORK", 6)
    for module, name in (
        (row_module, "GIVES_WAY_S"),
        (row_module, "WAIT_S"),
        (accepting_module, "HANDSHAKE_TIMEOUT_S"),
    ):
        monkeypatch.setattr(module, name, NEVER_S)

    async def scenario() -> None:
        async with server(server_context(authority.issue(HOST))) as listening:
            silent = [await asyncio.open_connection(HOST, listening.port) for _ in range(40)]
            for _, writer in silent:
                writer.write(HALF_HANDSHAKE)
            await until(lambda: listening.tls.under_way == 40)
            for number in range(2, 6):
                reader, writer = await asyncio.open_connection(
                    HOST, listening.port, ssl=client_context(authority), local_addr=(f"127.0.0.{number}", 0)
                )
                writer.write(encode_command(request_command(10, {}, b"y")))
                assert await reader.readexactly(4)
                writer.close()
            assert listening.tls.under_way == 40
            for _, writer in silent:
                writer.close()

    run(scenario)


def test_a_half_handshake_that_gave_way_leaves_nothing(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_module, "MAX_OF_A_NETWORK", 1)
    monkeypatch.setattr(row_module, "GIVES_WAY_S", 0.0)
    monkeypatch.setattr(accepting_module, "HANDSHAKE_TIMEOUT_S", NEVER_S)

    def alive() -> int:
        return sum(type(each) is RemotingConnection for each in gc.get_objects())

    async def scenario() -> None:
        before = alive()
        async with server(server_context(authority.issue(HOST))) as listening, asyncio.timeout(BOUND_S):
            for number in range(10):
                _, writer = await asyncio.open_connection(HOST, listening.port)
                writer.write(HALF_HANDSHAKE)
                await until(lambda number=number: len(listening.closed) == number)
                await until(lambda: listening.tls._row.under_way == 1)
            writer.close()
            await until(lambda: len(listening.closed) == 10 and listening.tls.under_way == 0)
            assert (listening.tls.done, listening.tls.open_connections) == (0, 0)
            assert listening.tls.failed == 10
            assert listening.tls.ended == 10
            listening.opened.clear()
            listening.closed.clear()
            await until(lambda: alive() == before)

    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(scenario())
    finally:
        gc.enable()


def test_a_reset_in_the_middle_of_a_handshake_leaves_nothing(run: Run, authority: Authority) -> None:
    async def scenario() -> None:
        async with server(server_context(authority.issue(HOST))) as listening:
            for _ in range(20):
                reader, writer = await asyncio.open_connection(HOST, listening.port)
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                tls = client_context(authority).wrap_bio(incoming, outgoing, server_hostname=HOST)
                with pytest.raises(ssl.SSLWantReadError):
                    tls.do_handshake()
                writer.write(outgoing.read())
                await reader.read(10)
                writer.transport.abort()
            await until(lambda: len(listening.closed) == 20 and listening.tls.under_way == 0)
            assert listening.tls.open_connections == 0

    run(scenario)


def test_a_close_sends_what_was_written_first_and_an_abort_resets(run: Run, authority: Authority) -> None:
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


def test_a_peer_that_does_not_read_over_tls_counts_as_behind_until_it_does(run: Run, authority: Authority) -> None:
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


def test_what_is_written_counts_as_unsent_until_the_kernel_of_the_peer_has_it(run: Run, authority: Authority) -> None:
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


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("expired", "has expired"),
        ("unknown issuer", "not trusted"),
        ("wrong name", "for another name"),
    ],
)
def test_a_client_says_what_is_wrong_with_the_certificate(
    run: Run, authority: Authority, tmp_path: Path, case: str, sentence: str
) -> None:
    pair = authority.issue(
        "other.example" if case == "wrong name" else HOST, days=-1 if case == "expired" else 30, file="judged"
    )
    trusted = Authority(tmp_path, "another") if case == "unknown issuer" else authority

    async def scenario() -> None:
        async with server(server_context(pair)) as listening:
            with pytest.raises(ConnectError, match=sentence):
                await connect(HOST, listening.port, tls=client_context(trusted))
            await until(lambda: listening.tls.failed == 1)
            if case == "wrong name":
                named = await connect(HOST, listening.port, tls=client_context(trusted), server_name="other.example")
                await named.request(request_command(10))

    run(scenario)


def test_tls_to_a_server_without_it_is_named(run: Run, authority: Authority) -> None:
    async def scenario() -> None:
        serving = await asyncio.get_running_loop().create_server(lambda: RemotingConnection(echo), HOST, 0)
        port = serving.sockets[0].getsockname()[1]
        with pytest.raises(ConnectError, match=r"no TLS.*tls\.server\.mode"):
            await connect(HOST, port, tls=client_context(authority))
        serving.close()

    run(scenario)


def test_a_server_that_says_nothing_to_a_handshake_is_given_up(run: Run, authority: Authority) -> None:
    async def scenario() -> None:
        silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(BOUND_S), HOST, 0)
        port = silent.sockets[0].getsockname()[1]
        with pytest.raises(ConnectError, match="not done in time"):
            await connect(HOST, port, tls=client_context(authority), timeout_ms=200)
        silent.close()

    run(scenario)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_without_the_wanted_certificate_is_told(
    run: Run, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = server_context(authority.issue(HOST))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.certificate)
    without = client_context(authority)
    without.maximum_version = version
    having = client_context(authority)
    having.load_cert_chain(*vars(authority.issue("client.example")).values())

    async def scenario() -> None:
        async with server(context) as listening:

            async def ask() -> None:
                client = await connect(HOST, listening.port, tls=without)
                await client.request(request_command(10))

            with pytest.raises((ConnectError, ConnectionClosedError), match="certificate"):
                await ask()
            known = await connect(HOST, listening.port, tls=having)
            assert (await known.request(request_command(10, {}, b"z"))).body == b"z"
            assert listening.tls.failed == 1

    run(scenario)


def test_a_connection_that_ended_is_freed_without_the_garbage_collector(authority: Authority) -> None:
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
        tls = TlsAccepting(given, enforcing=False)
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
