"""Links with access control, with TLS, and with secrets that are replaced."""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import request_command
from delaymq.server.replication.handshake import Connecting, Identity
from delaymq.server.replication.secret import GroupSecret, SecretError
from delaymq_testing.broker.guarded import RULES
from delaymq_testing.certificates import Authority, Pair, client_context, server_context
from delaymq_testing.linked_members import GROUP, SECRET, ForeignPeer, MemberServer, ack, group, linked
from delaymq_testing.running_server import HOST, BrokerPeer, run, until


def tls_fields(authority: Authority, pair: Pair) -> dict[str, Any]:
    return {
        "tls_server_mode": "enforcing",
        "tls_server_cert_path": str(pair.certificate),
        "tls_server_key_path": str(pair.key),
        "tls_client_auth_server": True,
        "tls_client_trust_cert_path": str(authority.certificate),
    }


def test_links_need_no_account_and_give_no_other_rights(tmp_path: Path) -> None:
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(RULES)

    async def scenario() -> None:
        async with group(tmp_path, "a", "b", acl_enable=True, acl_config_path=str(rules)) as (a, b):
            assert b.links is not None
            assert b.links.send("a", ack(1))
            await until(lambda: a.received("b") == [ack(1)])
            client = await BrokerPeer.connect(a.server.port)
            answer = await client.connection.request(request_command(RequestCode.GET_BROKER_CONFIG))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "No accessKey is configured" in str(answer.remark)
            answer = await client.connection.request(request_command(RequestCode.REPLICATE))
            assert answer.code == ResponseCode.NO_PERMISSION
            linked_peer = await ForeignPeer.connect(a.server.port)
            await linked_peer.prove(Connecting(Identity(*GROUP, "b", "p"), "a", SECRET))
            linked_peer.connection.start_request(request_command(RequestCode.GET_BROKER_CONFIG))
            await linked_peer.ended()

    run(scenario)


def test_links_use_tls_like_other_outgoing_connections(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")

    async def scenario() -> None:
        async with group(tmp_path, "a", "b", **tls_fields(authority, authority.issue("127.0.0.1"))) as (a, b):
            assert a.links is not None
            assert b.links is not None
            link = a.links._links["b"]._connection
            assert link is not None
            assert link.is_tls
            assert b.links._incoming["a"].connection.is_tls
            for number in range(50):
                a.links.send("b", ack(number))
            await until(lambda: b.received("a") == [ack(number) for number in range(50)])
            plain = MemberServer(tmp_path, "b2")
            links = await plain.start({"b2": plain.address, "a": a.address})
            await until(lambda: "accepts only TLS" in str(links.problem("a")))
            await plain.stop()

    run(scenario)


@pytest.mark.parametrize(
    ("expected", "said"),
    [("brokers.example", ""), ("host", "for another name"), ("other.example", "for another name")],
)
def test_links_verify_issuer_and_name_as_configured(tmp_path: Path, expected: str, said: str) -> None:
    authority = Authority(tmp_path / "tls")

    async def scenario() -> None:
        fields = tls_fields(authority, authority.issue("brokers.example"))
        a = MemberServer(tmp_path, "a", **fields, tls_client_server_name=expected)
        b = MemberServer(tmp_path, "b", **fields)
        await b.start({"a": a.address, "b": b.address})
        links = await a.start({"a": a.address, "b": b.address})
        await until(lambda: links.problem("b") != "not tried yet")
        if said:
            await until(lambda: said in str(links.problem("b")))
        else:
            await until(lambda: linked(a, b))
        await a.stop()
        await b.stop()

    run(scenario)


def test_certificate_that_is_not_trusted_prevents_the_link(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "tls"), Authority(tmp_path / "other")

    async def scenario() -> None:
        fields = tls_fields(authority, authority.issue("127.0.0.1"))
        a = MemberServer(tmp_path, "a", **fields | {"tls_client_trust_cert_path": str(other.certificate)})
        b = MemberServer(tmp_path, "b", **fields)
        await b.start({"a": a.address, "b": b.address})
        links = await a.start({"a": a.address, "b": b.address})
        await until(lambda: "no TLS" in str(links.problem("b")))
        await until(lambda: links.receives_from("b"))
        await a.stop()
        await b.stop()

    run(scenario)


def test_peer_in_the_middle_of_tls_is_detected_without_trusted_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    fields = tls_fields(authority, authority.issue("127.0.0.1")) | {"tls_client_auth_server": False}
    pair = authority.issue("127.0.0.1", file="middle")

    async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()

    async def scenario() -> None:
        a, b = MemberServer(tmp_path, "a", **fields), MemberServer(tmp_path, "b", **fields)
        relayed = 0

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal relayed
            relayed += 1
            there = await asyncio.open_connection(*b.address, ssl=client_context(None))
            await asyncio.gather(copied(reader, there[1]), copied(there[0], writer))

        middle = await asyncio.start_server(relay, HOST, 0, ssl=server_context(pair))
        await b.start({"a": a.address, "b": b.address})
        links = await a.start({"a": a.address, "b": middle.sockets[0].getsockname()})
        await until(lambda: "the proof of member a is wrong" in str(links.problem("b")))
        assert relayed > 0
        links.set_members({"a": a.address, "b": b.address})
        await until(lambda: linked(a, b))
        middle.close()
        await a.stop()
        await b.stop()

    run(scenario)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "cannot read haSecretFile"),
        (b"", "must have a secret of at least 16 random characters"),
        (b"short\n", "must have a secret of at least 16 random characters"),
        (b"a sufficiently long one\nshort\n", "must have a secret of at least 16 random characters"),
        (b"\n".join(b"secret number %06d" % number for number in range(5)), "has 5 secrets: keep at most 4"),
        (bytes(5_000), "exceeds 4096 bytes"),
    ],
)
def test_unusable_secret_is_an_error_that_says_what_to_do(tmp_path: Path, content: bytes | None, text: str) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SecretError, match=text):
        GroupSecret(str(path))


def test_replication_needs_a_secret() -> None:
    with pytest.raises(SecretError, match="replication needs a secret: write at least 16 random characters to a file"):
        GroupSecret("")


def test_secret_is_reloaded_and_an_unusable_file_keeps_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"the secret until now\n\n")
    secret = GroupSecret(str(path))
    assert list(secret.values) == [b"the secret until now"]
    path.write_bytes(b"the secret from now on\nthe secret until now\n")
    secret.refresh()
    assert secret.first == b"the secret from now on"
    for _ in range(3):
        path.write_bytes(b"short")
        secret.refresh()
    path.unlink()
    for _ in range(3):
        secret.refresh()
    assert list(secret.values) == [b"the secret from now on", b"the secret until now"]
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2
    assert all(line.endswith("the previous secret is kept") for line in errors)


def test_secret_is_replaced_without_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delaymq.server.replication.secret.CHECK_INTERVAL_S", 0.01)

    async def scenario() -> None:
        async with group(tmp_path, "a", "b") as (a, b):
            new = b"another secret of the tests"
            for content in (SECRET + b"\n" + new, new + b"\n" + SECRET, new):
                for member in (a, b):
                    replacement = tmp_path / "replacement"
                    replacement.write_bytes(content)
                    os.replace(replacement, member.secret_file)
                    assert member.links is not None
                    expected = tuple(content.split(b"\n"))
                    await until(lambda m=member, e=expected: m.links._secret.values == e)
                    before = member.links.counts("a" if member is b else "b").connected
                    member.links.disconnect("a" if member is b else "b", "connect with the current secret")
                    await until(lambda: linked(a, b))
                    assert member.links.counts("a" if member is b else "b").connected == before + 1

    run(scenario)
