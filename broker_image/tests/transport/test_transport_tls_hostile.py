"""Peers that start TLS wrongly or incompletely affect only their own connections."""

import asyncio
import contextlib
import gc
import ssl

import pytest
import uvloop
from delaymq.protocol.command import encode_command, request_command
from delaymq.transport import RemotingConnection, connect
from delaymq.transport import handshake_queue as row_module
from delaymq.transport import tls_acceptor as accepting_module
from delaymq_testing.certificates import Authority, client_context, server_context
from delaymq_testing.transport.loopback_tls import BOUND_S, HALF_HANDSHAKE, HOST, NEVER_S, Run, server, until


def test_tls_after_plaintext_requests_is_disconnected(run: Run, authority: Authority) -> None:
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
def test_nested_tls_is_rejected(run: Run, authority: Authority, before: bytes) -> None:
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
def test_hostile_first_bytes_affect_only_their_own_connection(
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


def test_flood_of_partial_handshakes_excludes_nobody(
    run: Run, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each comes again when it was ended, so that there are always more than may be under way."""
    monkeypatch.setattr(row_module, "MAX_HANDSHAKES", 8)
    monkeypatch.setattr(row_module, "MAX_PER_NETWORK", 6)
    monkeypatch.setattr(row_module, "GIVES_WAY_STUCK_S", 0.2)
    monkeypatch.setattr(row_module, "GIVES_WAY_S", NEVER_S)
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
            await until(lambda: listening.tls._queue.under_way == 6 and listening.tls.under_way > 6)
            assert (await plain.request(request_command(10, {}, b"x"))).body == b"x"
            for _ in range(3):
                secure = await connect(HOST, listening.port, tls=client_context(authority), timeout_ms=BOUND_S * 1_000)
                assert (await secure.request(request_command(10, {}, b"y"))).body == b"y"
            assert listening.tls._queue.under_way <= 6
            for task in hostile:
                task.cancel()
            await asyncio.wait(hostile)
            await until(lambda: listening.tls.under_way == 0)
            assert listening.tls.done == 3

    run(scenario)


def test_partial_handshakes_of_one_address_do_not_block_another(
    run: Run, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only excess handshakes are evicted here: what one address may not have is immediately available to others."""
    monkeypatch.setattr(row_module, "MAX_HANDSHAKES", 8)
    monkeypatch.setattr(row_module, "MAX_PER_NETWORK", 6)
    for module, name in (
        (row_module, "GIVES_WAY_S"),
        (row_module, "GIVES_WAY_STUCK_S"),
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


def test_evicted_partial_handshake_leaves_nothing(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_module, "MAX_PER_NETWORK", 1)
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
                await until(lambda: listening.tls._queue.under_way == 1)
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


def test_reset_during_a_handshake_leaves_nothing(run: Run, authority: Authority) -> None:
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
