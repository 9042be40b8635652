"""Register in etcd: endpoints, authentication, TLS, keys that are missing or contain something else."""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from delaymq.server.registers import Content, RegisterError, Unknown, Written
from delaymq.server.registers.etcd import NO_KEY, EtcdRegister
from delaymq.server.registers.opening import key_of
from delaymq_testing.certificates import Authority, client_context, server_context
from delaymq_testing.registers.backends import FakeEtcd
from delaymq_testing.registers.faulty_http import Answer, Fault, FaultyServer, Request
from delaymq_testing.registers.worlds import KEY, SHORT_S, TIMEOUT_S, record


@asynccontextmanager
async def members(count: int = 1) -> AsyncIterator[list[FaultyServer]]:
    """Members of one etcd cluster."""
    backend = FakeEtcd()
    servers = [FaultyServer(backend, late_s=SHORT_S) for _ in range(count)]
    if count == 1:
        async with servers[0].running():
            yield servers
    else:
        async with servers[0].running(), servers[1].running(), servers[2].running():
            yield servers


def etcd_of(server: FaultyServer) -> FakeEtcd:
    assert isinstance(server.backend, FakeEtcd)
    return server.backend


def test_first_write_creates_the_key() -> None:
    async def scenario() -> None:
        async with members() as (server,):
            register = EtcdRegister([server.url], KEY)
            assert await register.read(TIMEOUT_S) == Content(NO_KEY, None)
            written = await register.write(record(), NO_KEY, TIMEOUT_S)
            assert written == Written("2")
            assert await register.read(TIMEOUT_S) == Content("2", record())
            await register.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", [Fault.RESET_BEFORE, Fault.SILENT_BEFORE, Fault.UNAVAILABLE_AFTER, Fault.HTML])
def test_read_tries_the_other_members_within_its_deadline(fault: Fault) -> None:
    async def scenario() -> None:
        async with members(3) as servers:
            servers[0].choose = servers[1].choose = lambda request: fault
            register = EtcdRegister([server.url for server in servers], KEY)
            assert await register.read(SHORT_S * 10) == Content(NO_KEY, None)
            # The next request goes to the member that responded.
            assert isinstance(await register.write(record(), NO_KEY, TIMEOUT_S), Written)
            assert [server.writes for server in servers] == [0, 0, 1]
            await register.close()

    asyncio.run(scenario())


def test_write_is_sent_to_one_member_only() -> None:
    async def scenario() -> None:
        async with members(3) as servers:
            register = EtcdRegister([server.url for server in servers], KEY)
            servers[0].choose = lambda request: Fault.UNAVAILABLE_AFTER
            outcome = await register.write(record(), NO_KEY, TIMEOUT_S)
            assert isinstance(outcome, Unknown)
            assert servers[0].url in outcome.reason
            assert [server.writes for server in servers] == [1, 0, 0]
            assert await register.read(TIMEOUT_S) == Content("2", record())
            assert len(servers[0].requests) == 1
            await register.close()

    asyncio.run(scenario())


def test_response_to_another_request_is_no_outcome() -> None:
    async def scenario() -> None:
        async with members() as (server,):
            register = EtcdRegister([server.url], KEY)
            etcd, respond = etcd_of(server), server.backend.respond
            ranges = Request("POST", "/v3/kv/range", {}, b'{"key": "a2V5", "serializable": false}')
            for wrong in (
                respond(ranges).body,
                {"header": {"cluster_id": "7", "revision": "9"}, "responses": [], "succeeded": True},
                {"header": {"cluster_id": "7", "revision": "9"}, "responses": []},
                {"header": {"cluster_id": "7", "revision": "9"}, "responses": [{"response_put": {}}]},
            ):
                etcd.respond = lambda request, wrong=wrong: Answer(200, wrong)
                assert isinstance(await register.write(record(), NO_KEY, TIMEOUT_S), Unknown)
            await register.close()

    asyncio.run(scenario())


def test_member_of_another_cluster_is_rejected() -> None:
    async def scenario() -> None:
        async with members() as (server,), members() as (foreign,):
            etcd_of(foreign).cluster_id = "9"
            register = EtcdRegister([server.url, foreign.url], KEY)
            await register.read(TIMEOUT_S)
            server.choose = lambda request: Fault.CLOSE_BEFORE
            with pytest.raises(RegisterError, match="the member belongs to the etcd cluster 9, and others to 7"):
                await register.read(TIMEOUT_S)
            await register.close()

    asyncio.run(scenario())


def test_token_is_renewed_when_etcd_has_forgotten_it() -> None:
    async def scenario() -> None:
        async with members() as (server,):
            etcd = etcd_of(server)
            etcd.password = "secret"
            register = EtcdRegister([server.url], KEY, user="broker", password=lambda: "secret")
            assert isinstance(await register.write(record(), NO_KEY, TIMEOUT_S), Written)
            etcd.expire_tokens()
            assert (await register.read(TIMEOUT_S)).record == record()
            etcd.expire_tokens()
            assert isinstance(await register.write(record(2), "2", TIMEOUT_S), Unknown)
            assert isinstance(await register.write(record(2), "2", TIMEOUT_S), Written)
            await register.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("user", "password", "advice"),
    [
        ("", "", "user name is empty: set replicaRegisterUser"),
        ("broker", "wrong", "authentication failed.*: check replicaRegisterUser"),
    ],
)
def test_rejected_account_is_an_error_with_advice(user: str, password: str, advice: str) -> None:
    async def scenario() -> None:
        async with members() as (server,):
            etcd_of(server).password = "secret"
            register = EtcdRegister([server.url], KEY, user=user, password=lambda: password)
            with pytest.raises(RegisterError, match=advice):
                await register.read(TIMEOUT_S)
            outcome = await register.write(record(), NO_KEY, TIMEOUT_S)
            assert isinstance(outcome, Unknown)
            assert "wrong" not in outcome.reason
            await register.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "value", [b"", b"{", b"null", b"[]", b'{"version":2}', b"\xff\xfe", b"{}" * 20_000, b"[" * 9_000]
)
def test_foreign_value_is_an_error(value: bytes) -> None:
    async def scenario() -> None:
        async with members() as (server,):
            etcd_of(server).value = (b64encode(KEY.encode()).decode(), b64encode(value).decode(), 5)
            register = EtcdRegister([server.url], KEY)
            with pytest.raises(RegisterError, match=r"the value of /delaymq/.* is invalid: "):
                await register.read(TIMEOUT_S)
            await register.close()

    asyncio.run(scenario())


def test_deleted_key_is_a_register_without_a_record() -> None:
    async def scenario() -> None:
        async with members() as (server,):
            register = EtcdRegister([server.url], KEY)
            await register.write(record(), NO_KEY, TIMEOUT_S)
            etcd_of(server).delete()
            assert await register.read(TIMEOUT_S) == Content(NO_KEY, None)
            await register.close()

    asyncio.run(scenario())


def test_client_certificate_is_presented_and_the_server_verified(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, other = authority.issue("127.0.0.1"), Authority(tmp_path / "other").issue("127.0.0.1")

    def presenting(pair_name: str) -> ssl.SSLContext:
        context = client_context(authority)
        pair = own if pair_name == "own" else other
        context.load_cert_chain(pair.certificate, pair.key)
        return context

    async def scenario() -> None:
        server = FaultyServer(FakeEtcd(), late_s=SHORT_S)
        asking = server_context(own)
        asking.load_verify_locations(authority.certificate)
        asking.verify_mode = ssl.CERT_REQUIRED
        async with server.running(asking):
            for context, is_accepted in (
                (presenting("own"), True), (presenting("other"), False), (ssl.create_default_context(), False)
            ):  # fmt: skip
                register = EtcdRegister([server.url], KEY, tls=context)
                if is_accepted:
                    assert await register.read(TIMEOUT_S) == Content(NO_KEY, None)
                else:
                    with pytest.raises(RegisterError, match="cannot read etcd"):
                        await register.read(TIMEOUT_S)
                await register.close()
        assert len(server.requests) == 1

    asyncio.run(scenario())


def test_keys_of_different_groups_differ() -> None:
    keys = {key_of("/delaymq", *names) for names in (("a", "b/c"), ("a/b", "c"), ("a", "b%2Fc"), ("a%2Fb", "c"))}
    assert len(keys) == 4
    assert key_of("/delaymq", "DefaultCluster", "broker-a") == KEY
