"""Accounts that client certificates name: which names count, what they permit, and when they end."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from delaymq.client import Client, ClientOptions, Message, Producer, TlsOptions
from delaymq.config import BrokerConfig, ConfigError
from delaymq.protocol.command import Command, request_command
from delaymq.protocol.signatures import Signer
from delaymq.server.standalone import Standalone
from delaymq.transport import RemotingConnection, connect
from delaymq_testing.audit_lines import lines_of
from delaymq_testing.certificates import Authority, Pair, client_context
from delaymq_testing.running_server import HOST, BrokerPeer, run, send_command, standalone, until

RULES = """
accounts:
- {accessKey: operators, certificateOnly: true, admin: true}
- {accessKey: application, secretKey: application-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
- {accessKey: billing.app_1-b, certificateOnly: true, topicPerms: [Bills=PUB|SUB], groupPerms: [G=SUB]}
"""
TOPIC = {
    "topic": "Orders", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "order": "false",
}  # fmt: skip


@pytest.fixture(autouse=True)
def remote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers on loopback count as any others."""
    monkeypatch.setattr("delaymq.server.requests.client_session.is_loopback", lambda host: False)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue(HOST)


def keys(authority: Authority, pair: Pair, **more: Any) -> dict[str, Any]:
    return {
        "acl_enable": True,
        "acl_certificate_accounts": True,
        "tls_server_cert_path": str(pair.certificate),
        "tls_server_key_path": str(pair.key),
        "tls_server_auth_client": True,
        "tls_server_need_client_auth": "optional",
        "tls_server_trust_cert_path": str(authority.certificate),
    } | more


@asynccontextmanager
async def guarded(path: Path, authority: Authority, pair: Pair, **more: Any) -> AsyncIterator[Standalone]:
    rules = path / "plain_acl.yml"
    rules.write_text(RULES)
    async with standalone(path / "store", **keys(authority, pair, acl_config_path=str(rules), **more)) as server:
        yield server


async def connected(server: Standalone, authority: Authority, shown: Pair | None) -> RemotingConnection:
    tls = client_context(authority)
    if shown is not None:
        tls.load_cert_chain(shown.certificate, shown.key)
    return await connect(HOST, server.broker.port, tls=tls)


async def remark(connection: RemotingConnection, command: Command) -> str:
    """Empty when the request is served."""
    answer = await connection.request(command)
    return str(answer.remark) if answer.code else ""


def test_unsigned_requests_are_those_of_the_account_that_the_certificate_names(
    tmp_path: Path, authority: Authority, pair: Pair
) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, authority, pair) as server:
            billing = await connected(server, authority, authority.issue("billing.app_1-b"))
            assert await remark(billing, send_command("Bills")) == ""
            assert "No default permission for topic:Orders" in await remark(billing, send_command("Orders"))
            assert "Need admin permission" in await remark(billing, request_command(17, dict(TOPIC)))
            nobody = await connected(server, authority, None)
            assert "No accessKey is configured" in await remark(nobody, send_command("Bills"))
            plain = await connect(HOST, server.broker.port)
            assert "No accessKey is configured" in await remark(plain, send_command("Bills"))
            assert billing_requests(server) == 3

    run(scenario)


def billing_requests(server: Standalone) -> int:
    access = server.broker.broker.access
    assert access is not None
    usage = access.usages.of("billing.app_1-b")
    return usage.requests


def test_certificate_of_an_administrator_suffices_where_administration_needs_tls(
    tmp_path: Path, authority: Authority, pair: Pair
) -> None:
    async def scenario() -> None:
        more = {"acl_admin_needs_tls": True, "audit_log_enable": True}
        async with guarded(tmp_path, authority, pair, **more) as server:
            operators = await connected(server, authority, authority.issue("operators"))
            assert await remark(operators, request_command(17, dict(TOPIC))) == ""
            line = lines_of(server.broker.config.audit_folder or tmp_path)[-1]
            assert (line["account"], line["verified"]) == ("operators", True)

    run(scenario)


def test_signed_request_keeps_its_own_account_and_must_be_valid(
    tmp_path: Path, authority: Authority, pair: Pair
) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, authority, pair) as server:
            billing = await connected(server, authority, authority.issue("billing.app_1-b"))
            command = send_command("Orders")
            Signer("application-secret").sign(command, "application")
            assert await remark(billing, command) == ""
            for secret, key in (
                ("wrong", "application"),
                # A signature is verified even if the certificate would suffice.
                ("", "billing.app_1-b"),
                ("billing.app_1-b", "billing.app_1-b"),
            ):
                command = send_command("Bills")
                Signer(secret).sign(command, key)
                assert key in await remark(billing, command)
            command = send_command("Bills")
            command.fields["AccessKey"] = "operators"
            assert "operators" in await remark(billing, command)

    run(scenario)


def test_certificate_only_account_is_refused_without_a_certificate(
    tmp_path: Path, authority: Authority, pair: Pair
) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, authority, pair) as server:
            for connection in (
                await connected(server, authority, None),
                await connect(HOST, server.broker.port),
                await connected(server, authority, authority.issue("application")),
            ):
                for secret in ("", "operators"):
                    command = request_command(17, dict(TOPIC))
                    Signer(secret).sign(command, "operators")
                    assert "it needs a client certificate (certificateOnly)" in await remark(connection, command)
                command = request_command(17, dict(TOPIC))
                command.fields["AccessKey"] = "operators"
                assert "it needs a client certificate (certificateOnly)" in await remark(connection, command)
            assert server.broker.broker.topics.get("Orders") is None

    run(scenario)


ODD_NAMES: dict[str, list[str]] = {
    "unknown": ["someone-else"],
    "none": [],
    "two": ["operators", "application"],
    "twice": ["operators", "operators"],
    "nul": ["operators\0"],
    "nul-and-suffix": ["operators\0.example"],
    "wildcard": ["*"],
    "wildcard-part": ["operator*"],
    "letter-of-another-script": ["оperators"],
    "full-width": ["ｏperators"],
    "space": ["operators "],
    "newline": ["operators\n"],
    "other-case": ["Operators"],
    "long": ["operators" * 1_000],
    "path": ["operators/CN=operators"],
}


@pytest.mark.parametrize("kind", ODD_NAMES)
def test_certificates_with_odd_names_count_as_none(tmp_path: Path, authority: Authority, pair: Pair, kind: str) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, authority, pair) as server:
            shown = authority.issue("client.example", file=kind, common_names=ODD_NAMES[kind])
            connection = await connected(server, authority, shown)
            assert "No accessKey is configured" in await remark(connection, request_command(17, dict(TOPIC)))

    run(scenario)


def test_certificate_names_no_account_unless_it_is_set(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, authority, pair, acl_certificate_accounts=False) as server:
            operators = await connected(server, authority, authority.issue("operators"))
            assert "No accessKey is configured" in await remark(operators, request_command(17, dict(TOPIC)))

    run(scenario)


def test_expired_and_foreign_certificates_are_rejected_in_the_handshake(
    tmp_path: Path, authority: Authority, pair: Pair
) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, authority, pair) as server:
            stranger = Authority(tmp_path / "strangers", "strangers")
            for shown in (authority.issue("operators", days=-1, file="expired"), stranger.issue("operators")):
                with pytest.raises(Exception, match="certificate"):
                    await (await connected(server, authority, shown)).request(request_command(17, dict(TOPIC)))

    run(scenario)


def test_deleted_account_ends_for_connections_and_held_pulls(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, authority, pair) as server:
            shown = authority.issue("billing.app_1-b")
            billing = await connected(server, authority, shown)
            assert await remark(billing, send_command("Bills")) == ""
            held = BrokerPeer(billing, []).pull("Bills", 1)
            await until(lambda: len(server.broker.held_pulls))
            rules = tmp_path / "plain_acl.yml"
            # Another change leaves the pull held, although no secret key admitted it.
            change(rules, RULES.replace("G=SUB", "G=SUB, Readers=SUB"))
            await until(lambda: "Readers" in rules_text(server))
            assert not held.done()
            change(rules, RULES.replace("billing.app_1-b", "billing.app_2-b"))
            assert "No acl config for billing.app_1-b" in str((await held).remark)
            assert "No accessKey is configured" in await remark(billing, send_command("Bills"))

    run(scenario)


def change(rules: Path, text: str) -> None:
    rules.with_suffix(".new").write_text(text)
    os.replace(rules.with_suffix(".new"), rules)


def rules_text(server: Standalone) -> str:
    access = server.broker.broker.access
    assert access is not None
    return str(access.rules.accounts["billing.app_1-b"].entry.group_perms)


def test_renewed_certificate_continues_the_account(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, authority, pair) as server:
            for number in range(3):
                shown = authority.issue("billing.app_1-b", file=f"renewed-{number}")
                assert await remark(await connected(server, authority, shown), send_command("Bills")) == ""

    run(scenario)


def test_python_client_needs_no_credentials(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    async def scenario() -> None:
        of_namesrv = {"tls_server_cert_path": str(pair.certificate), "tls_server_key_path": str(pair.key)}
        more = {f"namesrv_{key}": value for key, value in of_namesrv.items()}
        async with guarded(tmp_path, authority, pair, **more) as server:
            shown = authority.issue("billing.app_1-b")
            tls = TlsOptions(ca_path=authority.certificate, certificate_path=shown.certificate, key_path=shown.key)
            namesrv = f"{HOST}:{server.namesrv.port}"
            async with Client(namesrv, ClientOptions(tls=tls)) as client, Producer(client) as producer:
                result = await producer.send(Message(topic="Bills", body=b"x"))
                assert result.queue.topic == "Bills"

    run(scenario)


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"acl_enable": False}, "aclEnable=true"),
        ({"tls_server_auth_client": False}, "tls.server.authClient=true"),
        ({"tls_server_need_client_auth": "none"}, "tls.server.need.client.auth=optional or require"),
        ({"tls_server_trust_cert_path": ""}, "tls.server.trustCertPath"),
        ({"tls_server_cert_path": "", "tls_server_key_path": ""}, "tls.server.certPath"),
        ({"tls_server_mode": "disabled"}, "tls.server.mode=permissive or enforcing"),
    ],
)
def test_incomplete_settings_prevent_the_start(
    authority: Authority, pair: Pair, changes: dict[str, Any], missing: str
) -> None:
    with pytest.raises(ConfigError, match=f"aclCertificateAccounts=true also needs {missing}: set these keys"):
        BrokerConfig(**keys(authority, pair, **changes))
