"""Topics of one broker, order settings and routes at NameServers, and a client without NameServers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from delaymq.client import (
    Admin,
    AnswerTimeoutError,
    Client,
    ClientError,
    ClientOptions,
    NoRouteError,
    RefusedError,
    TopicConfig,
    UnreachableError,
)
from delaymq.client.admin import ORDER_NAMESPACE
from delaymq.config import NamesrvConfig
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.server.namesrv_server import NamesrvServer
from delaymq.server.standalone import Standalone
from delaymq_testing.running_server import HOST, run, standalone, until
from harness.ports import free_port


def test_topics_are_created_listed_and_deleted_on_one_broker_without_a_nameserver(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server, Client(None) as client:
            admin = Admin(client)
            address = f"{HOST}:{server.broker.port}"
            wanted = TopicConfig(topic="Orders", write_queues=2, read_queues=6, permission=4)
            await admin.put_topic(address, wanted)
            found = await admin.topic_configs(address)
            assert found["Orders"] == wanted
            assert found["TBW102"].permission == 7
            assert '"Orders"' in (tmp_path / "store" / "config" / "topics.json").read_text()
            await admin.put_topic(address, TopicConfig(topic="Orders"))
            assert (await admin.topic_configs(address))["Orders"].write_queues == 8
            for _ in range(2):
                await admin.delete_topic_on(address, "Orders")
            assert "Orders" not in await admin.topic_configs(address)

    run(scenario)


@pytest.mark.parametrize(
    "config",
    [
        TopicConfig(topic="no good"),
        TopicConfig(topic=""),
        TopicConfig(topic="T", write_queues=-1),
        TopicConfig(topic="T", read_queues=-1),
        TopicConfig(topic="T", permission=8),
    ],
)
def test_invalid_requests_are_rejected_locally(config: TopicConfig) -> None:
    async def scenario() -> None:
        async with Client(None) as client:
            with pytest.raises(ValueError, match=r"illegal|blank|more, not|not 8"):
                await Admin(client).put_topic(f"{HOST}:1", config)

    run(scenario)


def test_system_topics_are_rejected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server, Client(None) as client:
            admin = Admin(client)
            address = f"{HOST}:{server.broker.port}"
            with pytest.raises(RefusedError, match="conflict with system topic"):
                await admin.put_topic(address, TopicConfig(topic="TBW102"))
            with pytest.raises(RefusedError, match="out of range"):
                await admin.put_topic(address, TopicConfig(topic="T", write_queues=1 << 20))

    run(scenario)


@contextlib.asynccontextmanager
async def two_name_servers(path: Path) -> AsyncIterator[tuple[Standalone, NamesrvServer, Client]]:
    """A broker with one NameServer, another NameServer, and a client of both."""
    other = NamesrvServer(NamesrvConfig(listen_port=0, kv_config_path=""))
    await other.start(http=False)
    try:
        async with standalone(path) as server:
            addresses = [f"{HOST}:{server.namesrv.port}", f"{HOST}:{other.port}"]
            async with Client(addresses) as client:
                yield server, other, client
    finally:
        await other.stop()


def test_order_settings_go_to_all_nameservers_and_from_there_to_brokers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_name_servers(tmp_path) as (server, other, client):
            admin = Admin(client)
            address = f"{HOST}:{server.broker.port}"
            await admin.put_topic(address, TopicConfig(topic="Orders", order=True))
            assert not (await admin.topic_configs(address))["Orders"].order
            name_server = f"{HOST}:{other.port}"
            assert await admin.orders(name_server) == {}
            await admin.put_order("Orders", "broker-a:4")
            assert await admin.orders(name_server) == {"Orders": "broker-a:4"}
            for namesrv in (server.namesrv, other):
                assert namesrv.namesrv.kv.get(ORDER_NAMESPACE, "Orders") == "broker-a:4"
            server.broker.registration.register_soon()
            await until(lambda: server.broker.broker.topics.table["Orders"].order)
            assert (await admin.topic_configs(address))["Orders"].order
            for _ in range(2):
                await admin.delete_order("Orders")
            assert other.namesrv.kv.get(ORDER_NAMESPACE, "Orders") is None
            server.broker.registration.register_soon()
            await until(lambda: not server.broker.broker.topics.table["Orders"].order)

    run(scenario)


def test_route_is_deleted_at_all_nameservers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_name_servers(tmp_path) as (server, _, client):
            admin = Admin(client)
            address = f"{HOST}:{server.broker.port}"
            await admin.put_topic(address, TopicConfig(topic="Orders"))
            await until(lambda: "Orders" in server.namesrv.namesrv.routes.topics)
            await admin.delete_topic_on(address, "Orders")
            await admin.delete_route("Orders", cluster="AnotherCluster")
            assert "Orders" in server.namesrv.namesrv.routes.topics
            await admin.delete_route("Orders")
            assert "Orders" not in server.namesrv.namesrv.routes.topics
            with pytest.raises(NoRouteError):
                await client.route("Orders", fresh=True)

    run(scenario)


def test_unavailable_nameserver_does_not_prevent_updates_of_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            down = f"{HOST}:{free_port()}"
            async with Client([down, f"{HOST}:{server.namesrv.port}"]) as client:
                with pytest.raises(UnreachableError, match=down):
                    await Admin(client).put_order("Orders", "broker-a:4")
            assert server.namesrv.namesrv.kv.get(ORDER_NAMESPACE, "Orders") == "broker-a:4"

    run(scenario)


def test_operations_that_need_a_nameserver_report_its_absence(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Client(None) as client:
            admin = Admin(client)
            for asked in (
                admin.delete_route("T"),
                admin.put_order("T", "a:1"),
                admin.masters(),
                client.route("T"),
            ):
                with pytest.raises(ClientError, match="has no NameServers"):
                    await asked

    run(scenario)


@pytest.mark.parametrize("nothing", ["", " ; ", [], [" "]])
def test_empty_nameserver_lists_are_errors(nothing: str | list[str]) -> None:
    with pytest.raises(ValueError, match="at least one NameServer"):
        Client(nothing)


def test_address_can_be_queried_without_a_start() -> None:
    async def scenario() -> None:
        namesrv = NamesrvServer(NamesrvConfig(listen_port=0, kv_config_path=""))
        await namesrv.start(http=False)
        client = Client(None)
        answer = await client.request(f"{HOST}:{namesrv.port}", request_command(RequestCode.GET_BROKER_CLUSTER_INFO))
        assert answer.code == 0
        await client.close()
        await namesrv.stop()

    run(scenario)


def test_request_to_an_unresponsive_peer_times_out() -> None:
    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def scenario() -> None:
        silent = await asyncio.start_server(ignore, HOST, 0)
        address = f"{HOST}:{silent.sockets[0].getsockname()[1]}"
        async with Client(None, ClientOptions(request_timeout_ms=50)) as client:
            with pytest.raises(AnswerTimeoutError, match="within 50 ms"):
                await Admin(client).topic_configs(address)
        silent.close()

    run(scenario)
