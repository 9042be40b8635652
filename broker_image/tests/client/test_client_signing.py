"""The client's choice of a signature for its requests."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from delaymq.client import Admin, Client, ClientOptions, Credentials, RefusedError, TlsOptions, UnreachableError
from delaymq.protocol.bodies import BrokerData, ClusterInfo
from delaymq.protocol.command import Command, Response
from delaymq.protocol.credential_fields import broker_server
from delaymq.protocol.second_signature import Channels
from delaymq_testing.certificates import Authority
from delaymq_testing.client.fake_peer import FakePeer
from delaymq_testing.running_server import run, standalone

ACCOUNT = Credentials("operators", "operators-secret")
RULES = "accounts:\n- {accessKey: operators, secretKey: operators-secret, admin: true}\n"


@asynccontextmanager
async def peer_saying(challenge: Callable[[Command], Response | None]) -> AsyncIterator[FakePeer]:
    peer = FakePeer()
    peer.scripts[101] = challenge
    peer.scripts[28] = lambda command: Response()
    await peer.start()
    try:
        yield peer
    finally:
        await peer.stop()


def challenges(server: str) -> Callable[[Command], Response]:
    channels = Channels()
    return lambda command: channels.challenge(1, server, command)


async def asked(address: str, name_servers: str | None = None, code: int = 28) -> None:
    async with Client(name_servers, ClientOptions(credentials=ACCOUNT, connect_timeout_ms=20_000)) as client:
        await client.request(address, Command(code))


@pytest.mark.parametrize(
    ("answer", "signed_with"),
    [
        (Response(3), "Signature"),
        (Response(22), "Signature"),
        (Response(1, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured"), "Signature"),
        (None, "DmqSignature"),
    ],
)
def test_peer_without_challenges_gets_rocketmqs_signature(answer: Response | None, signed_with: str) -> None:
    async def scenario() -> None:
        script = challenges("broker/C/broker-a/0/x") if answer is None else lambda command: answer
        async with peer_saying(script) as peer:
            await asked(peer.address)
            assert [len(each.fields) for each in peer.asked(101)] == [3]
            (request,) = peer.asked(28)
            assert {"Signature", "DmqSignature"} & set(request.fields) == {signed_with}

    run(scenario)


def test_nameserver_queries_are_unsigned_as_by_rocketmqs_clients() -> None:
    async def scenario() -> None:
        async with peer_saying(lambda command: Response(22)) as peer:
            for code in (105, 106, 100):
                peer.scripts[code] = lambda command: Response()
                await asked(peer.address, code=code)
                (request,) = peer.asked(code)
                assert ("Signature" in request.fields) is (code == 100)

    run(scenario)


def test_account_can_forbid_rocketmqs_signature() -> None:
    async def scenario() -> None:
        account = Credentials("operators", "operators-secret", rocketmq_signature=False)
        for script, fields in ((lambda command: Response(3), 0), (challenges("broker/C/broker-a/0/x"), 3)):
            async with peer_saying(script) as peer:
                async with Client(None, ClientOptions(credentials=account)) as client:
                    await client.request(peer.address, Command(28))
                assert [len(each.fields) for each in peer.asked(28)] == [fields]

    run(scenario)


@pytest.mark.parametrize("answer", [Response(2, "[OVERLOAD]"), Response(14), Response(1, "not now")])
def test_busy_peer_gets_no_request(answer: Response) -> None:
    async def scenario() -> None:
        async with peer_saying(lambda command: answer) as peer:
            with pytest.raises(UnreachableError, match="cannot obtain a challenge"):
                await asked(peer.address)
            assert not peer.asked(28)

    run(scenario)


def test_broker_responding_for_another_gets_no_request() -> None:
    async def scenario() -> None:
        addressed: list[str] = []

        def challenge(command: Command) -> Response:
            return Channels().challenge(1, addressed[0], command)

        async with peer_saying(challenge) as peer, peer_saying(lambda command: Response(22)) as name_server:
            info = ClusterInfo({"broker-a": BrokerData("C", "broker-a", {0: peer.address})}, {"C": ["broker-a"]})
            name_server.scripts[106] = lambda command: Response(body=info.encode())
            options = ClientOptions(credentials=ACCOUNT, connect_timeout_ms=20_000)
            for name, address, served in (
                ("broker-b", peer.address, False),
                ("broker-a", "10.0.0.1:1", False),
                ("broker-a", peer.address, True),
            ):
                addressed[:] = [broker_server("C", name, 0, address)]
                async with Client(name_server.address, options) as client:
                    await Admin(client).masters()
                    if served:
                        await client.request(peer.address, Command(28))
                    else:
                        with pytest.raises(UnreachableError, match="instead of broker broker-a"):
                            await client.request(peer.address, Command(28))
            assert len(peer.asked(28)) == 1

    run(scenario)


def test_connection_with_an_expired_challenge_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "rules.yml").write_text(RULES)
        changes: dict[str, Any] = {"acl_enable": True, "acl_config_path": str(tmp_path / "rules.yml")}
        async with standalone(tmp_path, **changes) as server:
            address = f"127.0.0.1:{server.broker.port}"
            access = server.broker.broker.access
            assert access is not None
            async with Client(None, ClientOptions(credentials=ACCOUNT, connect_timeout_ms=20_000)) as client:
                await client.request(address, Command(28))
                access.channels._max_silence_s = -1
                with pytest.raises(RefusedError, match="silent for too long"):
                    await client.request(address, Command(28))
                access.channels._max_silence_s = 300
                await client.request(address, Command(28))

    run(scenario)


def test_rocketmqs_signature_may_administer_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delaymq.server.requests.client_session.is_loopback", lambda host: False)
    monkeypatch.setattr("delaymq.transport.signing.challenge_in", lambda answer: None)  # as an older client
    authority = Authority(tmp_path)
    pair = authority.issue("127.0.0.1")
    (tmp_path / "rules.yml").write_text(RULES)

    async def scenario() -> None:
        changes: dict[str, Any] = {
            "acl_enable": True,
            "acl_config_path": str(tmp_path / "rules.yml"),
            "acl_admin_needs_tls": True,
        }
        changes |= {"tls_server_cert_path": str(pair.certificate), "tls_server_key_path": str(pair.key)}
        async with standalone(tmp_path, **changes) as server:
            address = f"127.0.0.1:{server.broker.port}"
            for tls in (None, TlsOptions(ca_path=authority.certificate)):
                options = ClientOptions(credentials=ACCOUNT, connect_timeout_ms=20_000, tls=tls)
                async with Client(None, options) as client:
                    making = Admin(client).put_account(address, Credentials("newcomer", "newcomer-secret"))
                    if tls is None:
                        with pytest.raises(RefusedError, match="request code=50 needs TLS"):
                            await making
                    else:
                        await making
            access = server.broker.broker.access
            assert access is not None
            assert "newcomer" in access.rules.accounts

    run(scenario)
