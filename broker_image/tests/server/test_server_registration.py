"""Registration with some NameServers down, and the registered data."""

import asyncio
import socket
from pathlib import Path
from typing import Any

from delaymq.config import NamesrvConfig
from delaymq.message.ids import parse_offset_message_id
from delaymq.server.broker_server import BrokerServer
from delaymq.server.namesrv_server import NamesrvServer
from delaymq_testing.broker.harness import broker_config
from delaymq_testing.running_server import BROKER_FIELDS, HOST, BrokerPeer, run, standalone, until
from delaymq_testing.step_runner import at_once


async def ignored(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


def test_broker_starts_and_registers_with_available_nameservers(tmp_path: Path) -> None:
    async def scenario() -> None:
        namesrv = NamesrvServer(NamesrvConfig(listen_port=0, kv_config_path=""))
        await namesrv.start(http=False)
        silent = await asyncio.start_server(ignored, HOST, 0)
        with socket.socket() as refused:
            refused.bind((HOST, 0))
            ports = (refused.getsockname()[1], silent.sockets[0].getsockname()[1], namesrv.port)
            addresses = [*(f"{HOST}:{port}" for port in ports), "no-such-host.invalid:9876"]
            # A silent peer would hold a start that waited for it for longer than the scenario may take.
            fields = BROKER_FIELDS | {"register_broker_timeout_mills": 60_000, "namesrv_addr": ";".join(addresses)}
            server = BrokerServer.open(broker_config(tmp_path, **fields), http=False)
            await server.start()
            await until(lambda: not server.not_ready())
            await (await BrokerPeer.connect(server.port)).send("T")
            await until(lambda: "T" in namesrv.namesrv.routes.topics)
            await until(lambda: all(link.problem != "not tried yet" for link in server.registration.links[::3]))
            problems = [link.problem for link in server.registration.links]
            assert "cannot connect" in str(problems[0])
            assert problems[2] is None
            assert "cannot connect" in str(problems[3])
            assert [link.registered for link in server.registration.links] == [False, False, True, False]
            await server.stop()
        silent.close()
        await namesrv.stop()

    run(scenario)


def test_clients_get_an_address_that_need_not_be_local(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, broker_ip1="203.0.113.7") as server:
            peer = await BrokerPeer.connect(server.broker.port)
            sent = await peer.send("T")
            host, port, offset = parse_offset_message_id(sent.fields["msgId"])
            assert (host, port, offset) == ("203.0.113.7", server.broker.port, 0)
            address = f"203.0.113.7:{server.broker.port}"
            assert server.namesrv.namesrv.routes.groups["broker-a"].addresses == {0: address}
            assert server.broker.broker.address == address

    run(scenario)


def test_broker_registers_again_only_where_topics_are_unknown(tmp_path: Path) -> None:
    async def scenario() -> None:
        fields: dict[str, Any] = {
            "register_name_server_period": 20,
            "force_register": False,
            "compressed_register": True,
        }
        async with standalone(tmp_path, **fields) as server:
            routes = server.namesrv.namesrv.routes
            (link,) = server.broker.registration.links
            await until(lambda: link.registered)
            address = server.broker.broker.address
            asked_ms = routes.live[address].seen_ms
            await until(lambda: routes.live[address].seen_ms > asked_ms + 100)
            assert link.registrations == 1
            routes.drop(address)
            # The broker counts it when the answer has come: a moment after the NameServer has it.
            await until(lambda: link.registrations > 1)
            assert link.registrations == 2
            assert address in routes.live
            assert "TBW102" in routes.topics

    run(scenario)


def test_first_nameservers_order_settings_apply_with_the_next_topic(tmp_path: Path) -> None:
    async def scenario() -> None:
        servers = [NamesrvServer(NamesrvConfig(listen_port=0, kv_config_path="")) for _ in range(2)]
        for server in servers:
            await server.start(http=False)
        # They disagree: a broker that followed both would never come to rest.
        at_once(servers[0].namesrv.kv.put("ORDER_TOPIC_CONFIG", "Ordered", "broker-a:1"))
        at_once(servers[1].namesrv.kv.put("ORDER_TOPIC_CONFIG", "Elsewhere", "broker-a:1"))
        addresses = ";".join(f"{HOST}:{server.port}" for server in servers)
        broker = BrokerServer.open(broker_config(tmp_path, **BROKER_FIELDS | {"namesrv_addr": addresses}), http=False)
        await broker.start()
        await until(lambda: all(link.registered for link in broker.registration.links))
        peer = await BrokerPeer.connect(broker.port)
        await peer.send("Ordered")
        await peer.send("Elsewhere")
        topics = broker.broker.topics
        await until(lambda: topics.table["Ordered"].order)
        counted = topics.version.counter
        await asyncio.sleep(0.2)
        assert topics.version.counter == counted
        assert not topics.table["Elsewhere"].order
        await broker.stop()
        for server in servers:
            await server.stop()

    run(scenario)
