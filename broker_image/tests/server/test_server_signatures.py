"""Captured requests, replayed to a broker with access control over sockets from other peers."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from delaymq.client import AccessDeniedError, Admin, Client, ClientOptions, Credentials
from delaymq.protocol.command import Command, request_command
from delaymq.protocol.second_signature import ConnectionKey, ConnectionSigner, challenge_in, challenge_request
from delaymq.protocol.signatures import Signer
from delaymq.server.standalone import Standalone
from delaymq.transport.signing import sign_requests
from delaymq_testing.running_server import BrokerPeer, run, standalone

SECRETS = {"operators": "operators-secret", "careful1": "careful-secret", "application": "application-secret"}
RULES = """
accounts:
- {accessKey: operators, secretKey: operators-secret, admin: true}
- {accessKey: careful1, secretKey: careful-secret, admin: true, requireSecondSignature: true}
- {accessKey: application, secretKey: application-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
"""
TOPIC = {
    "topic": "Orders", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "order": "false",
}  # fmt: skip
GROUP = b'{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"groupName":"billing","retryMaxTimes":16}'


@pytest.fixture(autouse=True)
def remote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers on loopback count as any others."""
    monkeypatch.setattr("delaymq.server.requests.client_session.is_loopback", lambda host: False)


@asynccontextmanager
async def guarded(path: Path, **changes: Any) -> AsyncIterator[Standalone]:
    rules = path / "plain_acl.yml"
    if not rules.exists():
        rules.write_text(RULES)
    async with standalone(path, acl_enable=True, acl_config_path=str(rules), **changes) as server:
        yield server


class Peer(BrokerPeer):
    """A connection to the broker that keeps what it sent."""

    async def signed(self, code: int, fields: dict[str, str], body: bytes = b"", key: str = "operators") -> Command:
        """A request with RocketMQ's signature, served."""
        command = request_command(code, dict(fields), body)
        Signer(SECRETS[key]).sign(command, key)
        answer = await self.connection.request(command)
        assert answer.code == 0, answer.remark
        return command

    async def said(self, code: int, fields: dict[str, str], body: bytes = b"") -> str:
        """The broker's remark on an unchanged request; empty when it serves it."""
        answer = await self.connection.request(request_command(code, dict(fields), body))
        return str(answer.remark) if answer.code else ""

    async def challenged(self, key: str = "operators", secret: str | None = None) -> ConnectionSigner:
        """Asks for a challenge; what is sent is signed by hand."""
        nonce = bytes(range(16))
        told = challenge_in(await self.connection.request(challenge_request(nonce)))
        assert told is not None
        return ConnectionSigner(ConnectionKey(key, secret or SECRETS[key], told[0], nonce, told[1]), key)

    async def by(self, signer: ConnectionSigner, code: int, fields: dict[str, str]) -> Command:
        """The answer to a request with the second signature; the opaque is part of what is signed."""
        self.connection.sign = signer.sign
        answer = await self.connection.request(request_command(code, dict(fields)))
        self.connection.sign = None
        return answer


async def peer(server: Standalone) -> Peer:
    connected = await Peer.connect(server.broker.port)
    assert isinstance(connected, Peer)
    return connected


def flip(name: str, command: Command) -> None:
    value = command.fields[name]
    command.fields[name] = chr(ord(value[0]) ^ 1) + value[1:]


def has_topic(server: Standalone, topic: str = "Orders") -> bool:
    return server.broker.broker.topics.get(topic) is not None


def administrators(server: Standalone) -> list[str]:
    access = server.broker.broker.access
    assert access is not None
    return [key for key, account in access.rules.accounts.items() if account.admin]


def refused(server: Standalone) -> dict[str, int]:
    access = server.broker.broker.access
    assert access is not None
    return {reason: count for reason, count in access.refused.items() if count}


def test_captured_topic_query_deletes_no_topic(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, acl_admin_needs_tls=True) as server:
            honest = await peer(server)
            assert (await honest.by(await honest.challenged(), 17, TOPIC)).code == 0
            captured = await honest.signed(202, {"topic": "Orders"})
            said = await (await peer(server)).said(215, captured.fields)
            assert "request code=215 needs TLS, a connection from this machine, or the second signature" in said
            assert has_topic(server)
            assert refused(server) == {"plain": 1}

    run(scenario)


def test_captured_group_change_creates_no_account(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path) as server:
            captured = await (await peer(server)).signed(200, {}, GROUP)
            before, after = GROUP.decode().split("true", 1)
            cut = {name: captured.fields[name] for name in ("AccessKey", "Signature")}
            attacker = await peer(server)
            parts = {"accessKey": before, "admin": "true", "secretKey": after}
            assert "field accessKey: an access key consists of" in await attacker.said(50, cut | parts)
            parts = {"OnsChannel": before[:2], "accessKey": before[2:10], "bname": before[10:], "secretKey": after}
            assert "field OnsChannel contains characters" in await attacker.said(50, cut | parts)
            parts = {"aText": before, "accessKey": "attacker", "secretKey": after}
            assert "has no field aText" in await attacker.said(50, cut | parts)
            parts = {"accessKey": "attacker", "secretKey": "attacker-secret"}
            assert "has no body" in await attacker.said(50, cut | parts, GROUP)
            assert administrators(server) == ["operators", "careful1"]
            assert refused(server) == {"form": 4}

    run(scenario)


def test_captured_request_never_changes_rules(tmp_path: Path) -> None:
    # A tool that asks for all topics signs names that anybody chose.
    async def scenario() -> None:
        async with guarded(tmp_path) as server:
            honest, attacker = await peer(server), await peer(server)
            for parts in (
                {"accessKey": "myacct01", "admin": "true", "secretKey": "Secret77"},
                {"accessKey": "operators", "secretKey": "Secret77"},
                {"accessKey": "myacct01", "secretKey": "Secret77", "whiteRemoteAddress": "12"},
                {
                    "accessKey": "myacct01",
                    "defaultGroupPerm": "SUB",
                    "defaultTopicPerm": "SUB",
                    "secretKey": "Secret77",
                },
                {"accessKey": "application", "secretKey": "Secret77"},
            ):
                topic = "".join(parts.values())
                await honest.signed(17, TOPIC | {"topic": topic})
                captured = await honest.signed(202, {"topic": topic})
                cut = {name: captured.fields[name] for name in ("AccessKey", "Signature")}
                assert "request code=50 needs TLS" in await attacker.said(50, cut | parts)
            captured = await honest.signed(300, {"topic": "operators"})
            cut = {name: captured.fields[name] for name in ("AccessKey", "Signature")}
            assert "request code=51 needs TLS" in await attacker.said(51, cut | {"accessKey": "operators"})
            assert "request code=53 needs TLS" in await attacker.said(53, cut | {"globalWhiteAddrs": "operators"})
            access = server.broker.broker.access
            assert access is not None
            assert {key: each.entry.secret_key for key, each in access.rules.accounts.items()} == SECRETS

    run(scenario)


@pytest.mark.parametrize("name", ["OnsChannel", "SecurityToken", "bname", "lo", "ns", "nsd", "oway"])
def test_captured_query_of_a_chosen_topic_deletes_no_other(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path) as server:
            honest = await peer(server)
            await honest.signed(17, TOPIC)
            await honest.signed(17, TOPIC | {"topic": "trueOrders"})
            captured = await honest.signed(202, {"topic": "trueOrders"})
            # SecurityToken and OnsChannel come behind AccessKey, as all others do.
            cut = {each: captured.fields[each] for each in ("AccessKey", "Signature")}
            said = await (await peer(server)).said(215, cut | {name: "true", "topic": "Orders"})
            assert "request code=215 needs TLS, a connection from this machine" in said
            assert has_topic(server)

    run(scenario)


def test_request_with_the_second_signature_counts_once_and_on_its_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path) as server:
            honest = await peer(server)
            signer = await honest.challenged()
            command = request_command(17, TOPIC)
            honest.connection.sign = signer.sign
            assert (await honest.connection.request(command)).code == 0
            honest.connection.sign = None
            assert "Signature" not in command.fields
            frame = command.fields
            command = request_command(17, dict(frame))
            command.opaque = 1
            again = await honest.connection.request(command)
            assert "the request was sent before" in str(again.remark)
            other = await peer(server)
            assert "not signed for this connection" in await other.said(17, frame)
            await other.challenged()
            assert "not signed for this connection" in await other.said(17, frame)
        async with guarded(tmp_path) as server:
            fresh = await peer(server)
            assert "not signed for this connection" in await fresh.said(17, frame)
            await fresh.challenged()
            assert "not signed for this connection" in await fresh.said(17, frame)

    run(scenario)


def test_counters_rise_across_accounts_of_a_connection_and_current_secrets_apply(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path) as server:
            connected = await peer(server)
            operators = await connected.challenged()
            for _ in range(3):
                assert (await connected.by(operators, 28, {})).code == 0
            nonce = bytes(range(16))
            access = server.broker.broker.access
            assert access is not None
            channel = next(iter(access.channels._channels.values()))
            key = ConnectionKey("application", SECRETS["application"], channel.challenge, nonce, channel.server)
            assert "was sent before" in str((await connected.by(ConnectionSigner(key, "application"), 28, {})).remark)
            changed = RULES.replace("operators-secret", "another-secret")
            (tmp_path / "plain_acl.yml").write_text(changed)
            task = access.rules.reload_task()
            await asyncio.get_running_loop().run_in_executor(None, task.run)
            task.finish()
            assert "compare the secret keys" in str((await connected.by(operators, 28, {})).remark)
            renewed = await connected.challenged(secret="another-secret")
            assert (await connected.by(renewed, 28, {})).code == 0

    run(scenario)


def test_modified_request_with_the_second_signature_is_rejected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path) as server:
            connected = await peer(server)
            signer = await connected.challenged()

            async def changed(change: Any) -> str:
                def sign(command: Command) -> None:
                    signer.sign(command)
                    change(command)

                connected.connection.sign = sign
                answer = await connected.connection.request(request_command(17, TOPIC), 5_000)
                connected.connection.sign = None
                return str(answer.remark) if answer.code else ""

            assert await changed(lambda command: None) == ""
            for name in [*TOPIC, "DmqSignature"]:
                said = await changed(partial(flip, name))
                assert "not signed for this connection" in said, name
            for change in (
                lambda command: command.fields.update(bname="x"),
                lambda command: command.fields.pop("order"),
                lambda command: command.fields.update(DmqCounter="99"),
                lambda command: command.fields.update(DmqCounter="+99"),
                lambda command: command.fields.update(DmqCounter=""),
                lambda command: command.fields.update(Signature="x"),
                lambda command: setattr(command, "version", 1),
                lambda command: setattr(command, "language", "JAVA"),
                lambda command: setattr(command, "remark", ""),
                lambda command: setattr(command, "code", 28),
            ):
                assert "not signed for this connection" in await changed(change)

    run(scenario)


def test_account_can_require_the_second_signature_and_rocketmqs_tools_preserve_that(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path) as server:
            connected = await peer(server)
            command = request_command(28)
            Signer(SECRETS["careful1"]).sign(command, "careful1")
            said = await connected.said(28, command.fields)
            assert "accessKey=careful1 requires the second signature" in said
            signer = await connected.challenged("careful1")
            assert (await connected.by(signer, 28, {})).code == 0
            stated = {"accessKey": "careful1", "secretKey": "careful-secret", "admin": "true", "topicPerms": "T=PUB"}
            assert (await connected.by(signer, 50, stated)).code == 0
            assert "requires the second" in await connected.said(28, command.fields)
            assert "requireSecondSignature: true" in (tmp_path / "plain_acl.yml").read_text()

    run(scenario)


def test_client_signs_for_its_connection_and_creates_administrators_that_require_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, acl_admin_needs_tls=True) as server:
            address = f"127.0.0.1:{server.broker.port}"
            options = ClientOptions(credentials=Credentials("careful1", SECRETS["careful1"]))
            async with Client(None, options) as client:
                admin = Admin(client)
                await admin.put_account(address, Credentials("newcomer", "newcomer-secret"), admin=True)
                await admin.put_account(address, Credentials("operators", "operators-secret"), admin=True)
            access = server.broker.broker.access
            assert access is not None
            required = {key: each.entry.require_second_signature for key, each in access.rules.accounts.items()}
            assert required == {"operators": False, "careful1": True, "application": False, "newcomer": True}
            wrong = ClientOptions(credentials=Credentials("careful1", "wrong-secret"))
            async with Client(None, wrong) as client:
                with pytest.raises(AccessDeniedError, match="secret key does not match"):
                    await Admin(client).delete_account(address, "newcomer")

    run(scenario)


def test_sequential_and_concurrent_requests_are_all_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path) as server:
            connected = await peer(server)
            await sign_requests(connected.connection, "application", SECRETS["application"])
            asked = []
            for number in range(300):
                asked.append(connected.connection.start_request(request_command(28), 60_000))
                if number % 7 == 0:
                    connected.connection.send_oneway(request_command(28))
                if number % 50 == 0:
                    await asyncio.sleep(0)
            assert {answer.code for answer in await asyncio.gather(*asked)} == {0}
            assert refused(server) == {}

    run(scenario)


def test_capturable_administrators_are_warned_about_at_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(expected: int, **changes: Any) -> None:
        caplog.clear()
        async with guarded(tmp_path, **changes):
            warned = [each.message for each in caplog.records if "aclAdminNeedsTls=true" in each.message]
            assert len(warned) == expected
            assert all("(accounts: operators)" in each for each in warned)

    caplog.set_level(logging.WARNING)
    run(lambda: scenario(1))
    run(lambda: scenario(0, acl_admin_needs_tls=True))


def test_rocketmqs_signature_is_used_without_access_control_and_with_rocketmq(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            for port in (server.broker.port, server.namesrv.port):
                connected = await BrokerPeer.connect(port)
                assert await sign_requests(connected.connection, "operators", "operators-secret") is None
                command = request_command(28)
                assert connected.connection.sign is not None
                connected.connection.sign(command)
                assert sorted(command.fields) == ["AccessKey", "Signature"]

    run(scenario)
