"""Peers that claim a broker's name, over sockets: clients stay with the broker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from delaymq.config import NamesrvConfig
from delaymq.protocol.bodies import RegisterBody, TopicConfig, TopicRoute, TopicTable
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, request_command
from delaymq.protocol.signatures import Signer
from delaymq.server.broker_server import BrokerServer
from delaymq.server.namesrv_server import NamesrvServer
from delaymq.server.standalone import Standalone
from delaymq.transport import RemotingConnection, connect
from delaymq_testing.broker.harness import broker_config
from delaymq_testing.running_server import BROKER_FIELDS, CONNECT_TIMEOUT_MS, HOST, BrokerPeer, run, standalone, until

THEIRS = "203.0.113.66:10911"


async def dial(server: NamesrvServer) -> RemotingConnection:
    return await connect(HOST, server.port, lambda connection, commands: None, timeout_ms=CONNECT_TIMEOUT_MS)


def claim(name: str, address: str = THEIRS, broker_id: int = 0, **more: str) -> Command:
    """Request 103 with a topic that clients use."""
    fields = {
        "brokerName": name,
        "brokerAddr": address,
        "clusterName": "DefaultCluster",
        "haServerAddr": address,
        "brokerId": str(broker_id),
    }
    body = RegisterBody(TopicTable(topic_config_table={"T": TopicConfig("T")})).encode()
    return request_command(RequestCode.REGISTER_BROKER, fields | more, body)


async def addresses_of(server: NamesrvServer, topic: str = "T") -> dict[int, str]:
    peer = await dial(server)
    answer = await peer.request(request_command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
    peer.close()
    return TopicRoute.decode(answer.body).broker_datas[0].broker_addrs


async def with_topic(server: Standalone) -> None:
    await (await BrokerPeer.connect(server.broker.port)).send("T")
    await until(lambda: "T" in server.namesrv.namesrv.routes.topics)


def test_another_address_cannot_take_over_a_broker_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            await with_topic(server)
            before = await addresses_of(server.namesrv)
            peer = await dial(server.namesrv)
            answer = await peer.request(claim("broker-a"))
            assert await addresses_of(server.namesrv) == before
            assert answer.code == 1
            assert "is registered at" in str(answer.remark)
            assert server.namesrv.namesrv.refused["owner"] == 1

    run(scenario)


def test_address_is_taken_neither_by_another_name_nor_by_unregistering(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            await with_topic(server)
            before = await addresses_of(server.namesrv)
            peer = await dial(server.namesrv)
            leaving = claim("broker-a", before[0])
            leaving.code = RequestCode.UNREGISTER_BROKER
            answers = [await peer.request(each) for each in (claim("evil", before[0]), leaving, claim("broker-a"))]
            assert [answer.code for answer in answers] == [1, 1, 1]
            assert await addresses_of(server.namesrv) == before

    run(scenario)


def test_only_the_signing_broker_registers_its_name_under_rules(tmp_path: Path) -> None:
    rules, account = tmp_path / "namesrv_acl.yml", tmp_path / "account.yml"
    write_account(rules, account, "first-account", "first-secret")
    namesrv = NamesrvConfig(listen_port=0, kv_config_path="", namesrv_acl_config_path=str(rules))
    broker = broker_config(tmp_path, **BROKER_FIELDS, namesrv_account_file=str(account))

    async def scenario() -> None:
        async with running(Standalone(broker, namesrv)) as server:
            await with_topic(server)
            before = await addresses_of(server.namesrv)
            peer = await dial(server.namesrv)
            assert [(await peer.request(claim(name))).code for name in ("broker-a", "another")] == [1, 1]
            wrong = claim("broker-a")
            Signer("a wrong secret").sign(wrong, "first-account")
            assert "Check signature failed" in str((await peer.request(wrong)).remark)
            assert await addresses_of(server.namesrv) == before
            # A new account counts for the next registration, and with it a moved broker immediately.
            write_account(rules, account, "second-account", "second-secret")
            loaded = server.namesrv.namesrv.rules
            assert loaded is not None
            await until(lambda: "second-account" in loaded.accounts)
            link = server.broker.registration.links[0]
            done = link.registrations
            link.register_soon()
            await until(lambda: link.registrations > done)
            moved = claim("broker-a", "203.0.113.7:10911")
            Signer("second-secret").sign(moved, "second-account")
            assert (await peer.request(moved)).code == 0
            assert await addresses_of(server.namesrv) == {0: "203.0.113.7:10911"}

    run(scenario)


def test_broker_without_its_account_logs_why_it_is_not_registered(tmp_path: Path) -> None:
    async def scenario() -> None:
        namesrv = NamesrvServer(NamesrvConfig(listen_port=0, kv_config_path=""))
        await namesrv.start(http=False)
        missing = tmp_path / "account.yml"
        fields = {"namesrv_addr": f"{HOST}:{namesrv.port}", "namesrv_account_file": str(missing)}
        server = BrokerServer.open(broker_config(tmp_path, **(BROKER_FIELDS | fields)), http=False)
        await server.start()
        link = server.registration.links[0]
        await until(lambda: "account.yml: No such file" in str(link.problem))
        missing.write_text("accessKey: short\nsecretKey: short\n")
        await until(lambda: "length should longer than 6" in str(link.problem))
        missing.write_text("accessKey: long-enough\nsecretKey: long-enough\n")
        await until(lambda: link.registered)
        await server.stop()
        await namesrv.stop()

    run(scenario)


@asynccontextmanager
async def running(server: Standalone) -> AsyncIterator[Standalone]:
    await server.start(http=False)
    try:
        await until(lambda: server.broker.registration.is_registered)
        yield server
    finally:
        await server.stop()


def write_account(rules: Path, account: Path, key: str, secret: str) -> None:
    text = f"accessKey: {key}\nsecretKey: {secret}\n"
    account.write_text(text)
    rules.write_text(f"accounts:\n- {text.rstrip().replace(chr(10), chr(10) + '  ')}\n  brokerNames: [broker-a]\n")
