"""Errors of a client whose TLS connection fails."""

import asyncio
import ssl
from pathlib import Path

import pytest
from delaymq.protocol.command import request_command
from delaymq.transport import ConnectError, ConnectionClosedError, RemotingConnection, connect
from delaymq_testing.certificates import Authority, client_context, server_context
from delaymq_testing.transport.loopback_tls import BOUND_S, HOST, Run, echo, server, until


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("expired", "has expired"),
        ("unknown issuer", "not trusted"),
        ("wrong name", "for another name"),
    ],
)
def test_client_reports_certificate_errors(
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


def test_tls_to_a_server_without_it_is_reported(run: Run, authority: Authority) -> None:
    async def scenario() -> None:
        serving = await asyncio.get_running_loop().create_server(lambda: RemotingConnection(echo), HOST, 0)
        port = serving.sockets[0].getsockname()[1]
        with pytest.raises(ConnectError, match=r"no TLS.*tls\.server\.mode"):
            await connect(HOST, port, tls=client_context(authority))
        serving.close()

    run(scenario)


def test_silent_server_during_a_handshake_times_out(run: Run, authority: Authority) -> None:
    async def scenario() -> None:
        silent = await asyncio.start_server(lambda reader, writer: asyncio.sleep(BOUND_S), HOST, 0)
        port = silent.sockets[0].getsockname()[1]
        with pytest.raises(ConnectError, match="handshake timed out"):
            await connect(HOST, port, tls=client_context(authority), timeout_ms=200)
        silent.close()

    run(scenario)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_without_the_required_certificate_gets_an_error(
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
