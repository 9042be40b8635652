"""Broker and NameServer with TLS: start requirements, rejections, changed certificates."""

import asyncio
import dataclasses
import os
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from delaymq.config import BrokerConfig, ConfigError, NamesrvConfig
from delaymq.protocol.command import request_command
from delaymq.server.errors import ServerError
from delaymq.server.namesrv_server import NamesrvServer
from delaymq.server.tls import contexts
from delaymq.server.tls import server_tls as tls_module
from delaymq.server.tls.certificate import CertificateError, ends_at_s
from delaymq.server.tls.contexts import client_context as broker_s_context
from delaymq.server.tls.self_signed import generate
from delaymq.server.tls.server_tls import ServerTls
from delaymq.transport import ConnectError, ConnectionClosedError, RemotingConnection, connect
from delaymq_testing.certificates import Authority, Pair, client_context, write_pair
from delaymq_testing.running_server import HOST, BrokerPeer, run, send_command, standalone, until


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def pair(authority: Authority, tmp_path: Path) -> Pair:
    """Files of its own for each test."""
    issued = authority.issue(HOST)
    own = Pair(tmp_path / "tls.crt", tmp_path / "tls.key")
    write_pair(own, issued.certificate.read_bytes(), issued.key.read_bytes())
    return own


def keys(pair: Pair, **more: object) -> dict[str, Any]:
    return {"tls_server_cert_path": str(pair.certificate), "tls_server_key_path": str(pair.key), **more}


def settings(pair: Pair, **more: object) -> BrokerConfig:
    return BrokerConfig(**keys(pair, **more))


def common_name(connection: RemotingConnection) -> str:
    """Of the certificate that the peer showed, which the client verified."""
    shown = connection._transport.get_extra_info("peercert")
    return str(shown["subjectAltName"][0][1]) + " until " + str(shown["notAfter"])


def test_both_servers_accept_plaintext_and_tls_with_a_certificate_by_default(
    tmp_path: Path, authority: Authority, pair: Pair
) -> None:
    async def scenario() -> None:
        of_namesrv: dict[str, Any] = {f"namesrv_{key}": value for key, value in keys(pair).items()}
        async with standalone(tmp_path / "store", **keys(pair), **of_namesrv) as server:
            for port in (server.broker.port, server.broker.fast_port, server.namesrv.port):
                assert port is not None
                for tls in (None, client_context(authority)):
                    connection = await connect(HOST, port, tls=tls)
                    code = 106 if port == server.namesrv.port else 310
                    command = send_command("T") if code == 310 else request_command(106)
                    assert (await connection.request(command)).code == 0
                    connection.close()
            assert server.broker.tls.accepting is not None
            assert server.broker.tls.accepting.done == 2

    run(scenario)


def test_broker_registers_over_tls_where_tls_is_required(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    async def scenario() -> None:
        both: dict[str, Any] = keys(pair, tls_server_mode="enforcing")
        of_namesrv: dict[str, Any] = {f"namesrv_{key}": value for key, value in both.items()}
        async with standalone(tmp_path / "store", **both, **of_namesrv) as server:
            assert server.broker.registration.is_registered
            for port in (server.broker.port, server.namesrv.port):
                plain = await connect(HOST, port)
                with pytest.raises(ConnectionClosedError, match="accepts only TLS"):
                    await plain.request(request_command(28))
            secure = await connect(HOST, server.broker.port, tls=client_context(authority))
            assert (await secure.request(send_command("T"))).code == 0
            assert "TLS enforcing with a certificate valid until" in server.broker.tls.about

    run(scenario)


def test_broker_logs_why_it_cannot_register_over_tls(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path / "store", **keys(pair)) as server:
            (link,) = server.broker.registration.links

            async def problem_with(said: str, **settings: object) -> None:
                broker = server.broker.broker
                broker.apply(dataclasses.replace(broker.config, use_tls="true", **settings))  # type: ignore[arg-type]
                for session_id in list(server.namesrv.sessions._sessions):
                    server.namesrv.sessions.close(session_id)
                await until(lambda: link.problem is not None and said in link.problem)

            # The NameServer shows a certificate of its own making.
            other = Authority(tmp_path / "other", "other").certificate
            await problem_with("not trusted", tls_client_auth_server=True, tls_client_trust_cert_path=str(other))
            await problem_with("cannot read", tls_client_trust_cert_path=str(tmp_path / "none"))
            server.broker.broker.apply(dataclasses.replace(server.broker.broker.config, tls_client_auth_server=False))
            await until(lambda: link.problem is None)

    run(scenario)


def test_broker_verifies_the_name_of_the_nameserver(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    named = authority.issue("namesrv.example")

    async def scenario() -> None:
        of_namesrv: dict[str, Any] = {f"namesrv_{key}": value for key, value in keys(named).items()}
        trusting = {"tls_client_auth_server": True, "tls_client_trust_cert_path": str(authority.certificate)}
        more: dict[str, Any] = {"use_tls": "true", **trusting, **of_namesrv}
        async with standalone(
            tmp_path / "store", **keys(pair), **more, tls_client_server_name="namesrv.example"
        ) as server:
            (link,) = server.broker.registration.links
            for expected, said in (("host", "for another name"), ("other.example", "for another name"), ("", "")):
                broker = server.broker.broker
                broker.apply(dataclasses.replace(broker.config, tls_client_server_name=expected))
                for session_id in list(server.namesrv.sessions._sessions):
                    server.namesrv.sessions.close(session_id)
                if said:
                    await until(lambda said=said: said in str(link.problem))
                else:
                    await until(lambda: link.problem is None)

    run(scenario)


def test_expected_name_needs_a_verified_issuer() -> None:
    with pytest.raises(ConfigError, match=r"has no effect without tls\.client\.authServer=true"):
        BrokerConfig(tls_client_server_name="broker.example")
    for name in ("two words", "a" * 254, "*.example", "näme"):
        with pytest.raises(ConfigError, match="use a DNS name, an IP address or host"):
            BrokerConfig(tls_client_auth_server=True, tls_client_server_name=name)


def test_certificate_is_generated_for_the_first_tls_client(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path / "store") as server:
            assert server.broker.tls.ends_at_s is None
            anyone = client_context(None)
            clients = await asyncio.gather(
                *(connect(HOST, server.broker.port, tls=anyone, timeout_ms=50_000) for _ in range(5))
            )
            for client in clients:
                assert (await client.request(send_command("T"))).code == 0
            assert server.broker.tls.ends_at_s is not None
            shown = {client._transport.get_extra_info("ssl_object").getpeercert(True) for client in clients}
            assert len(shown) == 1

    run(scenario)


def test_failed_certificate_generation_is_not_retried_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_module, "sys", SimpleNamespace(executable="/bin/false"))

    async def scenario() -> None:
        tls = ServerTls(BrokerConfig())
        for _ in range(3):
            with pytest.raises(OSError, match="see the log for the reason"):
                await tls._current()
        assert tls._making is not None
        first = tls._making
        with pytest.raises(OSError, match="see the log for the reason"):
            await tls._current()
        assert tls._making is first
        tls.stop()

    run(scenario)


def test_tls_client_is_closed_without_certificate_and_test_mode(tmp_path: Path, authority: Authority) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path / "store", tls_test_mode_enable=False) as server:
            with pytest.raises(ConnectError, match=r"tls\.server\.mode"):
                await connect(HOST, server.broker.port, tls=client_context(authority))

    run(scenario)


def test_changed_pair_applies_to_new_connections_and_old_ones_continue(
    tmp_path: Path, authority: Authority, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_module, "CHECK_INTERVAL_S", 0.02)

    async def scenario() -> None:
        async with standalone(tmp_path / "store", **keys(pair)) as server:
            tls = server.broker.tls
            before = await connect(HOST, server.broker.port, tls=client_context(authority))
            first_end = tls.ends_at_s
            renewed = authority.issue(HOST, days=60, file="renewed")
            write_pair(pair, renewed.certificate.read_bytes(), renewed.key.read_bytes())
            await until(lambda: tls.reloads == 1)
            assert first_end is not None
            assert tls.ends_at_s is not None
            assert tls.ends_at_s > first_end
            after = await connect(HOST, server.broker.port, tls=client_context(authority))
            assert common_name(before) != common_name(after)
            for connection in (before, after):
                assert (await connection.request(send_command("T"))).code == 0

    run(scenario)


def test_kubernetes_folder_swapped_by_symlink_is_detected(tmp_path: Path, authority: Authority) -> None:
    """Secrets are mounted as links into a folder `..data`, itself a link that is replaced."""
    mounted = tmp_path / "mounted"
    for version, days in (("one", 10), ("two", 20)):
        issued = authority.issue(HOST, days=days)
        folder = mounted / f"..{version}"
        folder.mkdir(parents=True)
        write_pair(
            Pair(folder / "tls.crt", folder / "tls.key"), issued.certificate.read_bytes(), issued.key.read_bytes()
        )
    (mounted / "..data").symlink_to("..one")
    for name in ("tls.crt", "tls.key"):
        (mounted / name).symlink_to(f"..data/{name}")
    tls = ServerTls(settings(Pair(mounted / "tls.crt", mounted / "tls.key")))
    first_end = tls.ends_at_s
    tls.reload()
    assert tls.reloads == 0
    (mounted / "..new").symlink_to("..two")
    os.replace(mounted / "..new", mounted / "..data")
    tls.reload()
    assert (tls.reloads, tls.failed_reloads) == (1, 0)
    assert tls.ends_at_s != first_end


@pytest.mark.parametrize("broken", ["no key yet", "half a certificate", "gone"])
def test_persistently_incomplete_pair_is_logged_once_and_recovers(
    authority: Authority, pair: Pair, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    tls = ServerTls(settings(pair))
    kept = tls._context
    renewed = authority.issue(HOST, days=60, file="renewed")
    if broken == "no key yet":
        pair.certificate.write_bytes(renewed.certificate.read_bytes())
    elif broken == "half a certificate":
        pair.certificate.write_bytes(renewed.certificate.read_bytes()[:100])
    else:
        pair.key.unlink()
    tls.reload()
    assert (tls.failed_reloads, tls._context) == (0, kept)  # the other file may follow
    for _ in range(3):
        tls.reload()
    assert (tls.failed_reloads, tls.reloads, tls._context) == (1, 0, kept)
    assert len([line for line in caplog.records if "the previous one is kept" in line.getMessage()]) == 1
    write_pair(pair, renewed.certificate.read_bytes(), renewed.key.read_bytes())
    tls.reload()
    assert tls.reloads == 1


def test_file_changed_during_its_read_is_read_again(
    authority: Authority, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ServerTls(settings(pair))
    pairs = [authority.issue(HOST, days=days, file=f"race{days}") for days in (40, 50)]
    read = contexts.server_context

    def swapped_behind(given: BrokerConfig) -> object:
        made = read(given)
        if len(pairs) > 1:
            issued = pairs.pop()
            write_pair(pair, issued.certificate.read_bytes(), issued.key.read_bytes())
        return made

    issued = pairs[0]
    write_pair(pair, issued.certificate.read_bytes(), issued.key.read_bytes())
    monkeypatch.setattr(tls_module, "server_context", swapped_behind)
    tls.reload()
    assert tls.reloads == 0
    tls.reload()
    assert tls.reloads == 1
    assert tls.ends_at_s == ends_at_s(pair.certificate.read_bytes())


def test_encrypted_key_is_opened_with_its_password_which_errors_never_show(
    authority: Authority, tmp_path: Path
) -> None:
    encrypted = authority.issue(HOST, password="secret words", file="encrypted")
    assert ServerTls(settings(encrypted, tls_server_key_password="secret words")).ends_at_s
    with pytest.raises(ServerError, match=r"tls\.server\.keyPassword is not set, but the key is encrypted"):
        ServerTls(settings(encrypted))
    with pytest.raises(ServerError, match="does not match the encrypted key") as wrong:
        ServerTls(settings(encrypted, tls_server_key_password="other words"))
    assert "other words" not in str(wrong.value)


def test_invalid_files_prevent_the_start_with_a_reason(authority: Authority, pair: Pair, tmp_path: Path) -> None:
    other = authority.issue(HOST, file="other")
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("no PEM")
    device = tmp_path / "large.pem"
    device.write_bytes(bytes(2 << 20))
    for given, said in (
        (settings(Pair(pair.certificate, tmp_path / "none.key")), r"keyPath: cannot read .*none\.key"),
        (settings(Pair(pair.certificate, other.key)), "does not match the certificate"),
        (settings(Pair(nothing, pair.key)), "not a usable certificate and key in PEM"),
        (settings(Pair(device, pair.key)), "exceeds"),
        (
            settings(
                pair, tls_server_auth_client=True, tls_server_need_client_auth="optional",
                tls_server_trust_cert_path=str(nothing),
            ),
            "contains no PEM certificates",
        ),
    ):  # fmt: skip
        with pytest.raises(ServerError, match=said):
            ServerTls(given)
    with pytest.raises(ServerError, match="or neither"):
        broker_s_context(BrokerConfig(tls_client_cert_path="x"))


def test_nameserver_with_invalid_files_releases_everything(pair: Pair, tmp_path: Path) -> None:
    async def scenario() -> None:
        config = NamesrvConfig(listen_port=0, kv_config_path="", **keys(Pair(pair.certificate, tmp_path / "none")))
        with pytest.raises(ServerError, match="cannot read"):
            await NamesrvServer(config).start()

    run(scenario)


def test_conflicting_keys_are_rejected() -> None:
    for changes, said in (
        ({"tls_server_cert_path": "x"}, r"tls\.server\.keyPath is not"),
        ({"tls_server_key_path": "x"}, r"tls\.server\.certPath is not"),
        ({"tls_server_need_client_auth": "require"}, "does not verify"),
        ({"tls_server_mode": "enforcing", "tls_test_mode_enable": False}, "requires a certificate"),
    ):
        with pytest.raises(ConfigError, match=said):
            BrokerConfig(**changes)


@pytest.mark.parametrize("wanted", ["optional", "require"])
def test_client_certificates_are_verified_as_configured(
    tmp_path: Path, authority: Authority, pair: Pair, wanted: str
) -> None:
    stranger = Authority(tmp_path / "strangers", "strangers").issue("client.example")
    known = authority.issue("client.example")

    async def scenario() -> None:
        auth: dict[str, Any] = {
            "tls_server_auth_client": True,
            "tls_server_need_client_auth": wanted,
            "tls_server_trust_cert_path": str(authority.certificate),
        }
        async with standalone(tmp_path / "store", **keys(pair, **auth)) as server:

            async def ask(shown: Pair | None) -> int:
                tls = client_context(authority)
                if shown is not None:
                    tls.load_cert_chain(shown.certificate, shown.key)
                connection = await connect(HOST, server.broker.port, tls=tls)
                return (await connection.request(send_command("T"))).code

            assert await ask(known) == 0
            with pytest.raises((ConnectError, ConnectionClosedError), match="certificate"):
                await ask(stranger)
            if wanted == "optional":
                assert await ask(None) == 0
            else:
                with pytest.raises((ConnectError, ConnectionClosedError), match="certificate"):
                    await ask(None)

    run(scenario)


def test_older_tls_versions_are_rejected(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    assert ServerTls(settings(pair))._context.minimum_version == ssl.TLSVersion.TLSv1_2  # type: ignore[union-attr]


def test_certificate_expiry_equals_openssls(authority: Authority) -> None:
    for days in (1, 3_000, 12_000, 30_000):  # two forms of a date: before 2050, and after
        pem = authority.issue(HOST, days=days, file="dated").certificate
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(authority.certificate)
        decoded = ssl._ssl._test_decode_cert(str(pem))  # type: ignore[attr-defined]
        assert ends_at_s(pem.read_bytes()) == ssl.cert_time_to_seconds(decoded["notAfter"])
    assert ends_at_s(generate(["localhost", HOST])) > 0


def test_damaged_certificates_have_no_expiry(authority: Authority) -> None:
    pem = authority.issue(HOST).certificate.read_text()
    der = ssl.PEM_cert_to_DER_cert(pem)
    for cut in range(0, len(der), 7):
        with pytest.raises(CertificateError):
            ends_at_s(ssl.DER_cert_to_PEM_cert(der[:cut]).encode())
    for text in ("", "-----BEGIN CERTIFICATE-----", pem.replace("M", "!", 5)):
        with pytest.raises(CertificateError):
            ends_at_s(text.encode())


def test_stop_resets_tls_clients_and_ends_handshakes(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path / "store", **keys(pair)) as server:
            peer = BrokerPeer(await connect(HOST, server.broker.port, tls=client_context(authority)), [])
            await peer.send("T", b"first")
            waiting = peer.pull("T", 1, wait_ms=1_000_000)
            await until(lambda: len(server.broker.held_pulls) == 1)
            _, halfway = await asyncio.open_connection(HOST, server.broker.port)
            halfway.write(bytes.fromhex("16030100c8010000c40303"))
            accepting = server.broker.tls.accepting
            assert accepting is not None
            await until(lambda: accepting.under_way == 1)
            await server.broker.stop()
            with pytest.raises(ConnectionClosedError, match="reset"):
                await waiting
            await until(lambda: accepting.under_way == 0)
            await until(lambda: peer.connection.closing)
            server.broker.stop = nothing
            halfway.close()

    async def nothing() -> None:
        """It is stopped already."""

    run(scenario)


def test_handshakes_count_as_connections(tmp_path: Path, pair: Pair, authority: Authority) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path / "store", **keys(pair), max_connections=3) as server:
            halfway = [await asyncio.open_connection(HOST, server.broker.port) for _ in range(3)]
            for _, writer in halfway:
                writer.write(b"\x16\x03\x01")
            await until(lambda: len(server.broker.sessions) == 3)
            with pytest.raises(ConnectError):
                await connect(HOST, server.broker.port, tls=client_context(authority))
            for _, writer in halfway:
                writer.close()
            await until(lambda: len(server.broker.sessions) == 0)

    run(scenario)
