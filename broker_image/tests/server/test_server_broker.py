"""Broker and NameServer on real sockets, in one process."""

import asyncio
import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from delaymq.config import NamesrvConfig
from delaymq.protocol.bodies import ConsumerData, HeartbeatData, ProducerData
from delaymq.protocol.command import Command, encode_command, request_command
from delaymq.server.broker_server import BrokerServer
from delaymq.server.errors import ServerError
from delaymq.server.listening import FAST_PORT_DISTANCE, bind, port_of
from delaymq.server.namesrv_server import NamesrvServer
from delaymq.server.standalone import Standalone
from delaymq.store.errors import StoreLockedError
from delaymq.transport import ConnectError, ConnectionClosedError, connect
from delaymq_testing.broker.harness import broker_config
from delaymq_testing.running_server import (
    BOUND_S,
    BROKER_FIELDS,
    HOST,
    BrokerPeer,
    run,
    send_command,
    standalone,
    until,
)


async def route(port: int, topic: str) -> Command:
    connection = await connect(HOST, port)
    answer = await connection.request(request_command(105, {"topic": topic}))
    connection.close()
    return answer


def test_sent_message_is_pulled(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            sent = await peer.send("T", b"hello", TAGS="a")
            assert (sent.code, sent.fields["queueOffset"]) == (0, "0")
            pulled = await peer.pull("T", 0)
            assert (pulled.code, pulled.fields["nextBeginOffset"]) == (0, "1")
            assert b"hello" in pulled.body

    run(scenario)


def test_new_message_wakes_a_held_pull_immediately(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            consumer = await BrokerPeer.connect(server.broker.port)
            producer = await BrokerPeer.connect(server.broker.port)
            await producer.send("T", b"first")
            # Its own time would end after the test's.
            waiting = consumer.pull("T", 1, wait_ms=2_000 * BOUND_S)
            await until(lambda: len(server.broker.held_pulls) == 1)
            await producer.send("T", b"second")
            pulled = await waiting
            assert pulled.code == 0
            assert b"second" in pulled.body
            assert len(server.broker.held_pulls) == 0

    run(scenario)


def test_held_pull_ends_with_its_time_or_its_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            peer, other = await BrokerPeer.connect(server.broker.port), await BrokerPeer.connect(server.broker.port)
            await peer.send("T")
            answer = await peer.pull("T", 1, wait_ms=100)
            assert answer.code == 19
            other.pull("T", 1)
            await until(lambda: len(server.broker.held_pulls) == 1)
            other.connection.abort()
            await until(lambda: len(server.broker.held_pulls) == 0)

    run(scenario)


def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            reader, writer = await asyncio.open_connection(HOST, server.broker.port)
            frames = []
            for opaque in range(100):
                command = send_command("T", b"%d" % opaque)
                command.opaque = opaque
                frames.append(encode_command(command))
            writer.write(b"".join(frames))
            for opaque in range(100):
                length = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(length)
                assert json.loads(frame[4 : 4 + int.from_bytes(frame[1:4], "big")])["opaque"] == opaque
            writer.close()
            assert server.broker.broker.store.queue_bounds("T", 0) == (0, 100)

    run(scenario)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_send_responses_wait_for_the_configured_durability(tmp_path: Path, flush: str) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, flush_disk_type=flush, flush_interval_commit_log=60_000) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            answers = await asyncio.gather(*(peer.send("T") for _ in range(20)))
            assert [answer.code for answer in answers] == [0] * 20
            store = server.broker.broker.store
            assert (store.flushed_offset == store.end_offset) == (flush == "SYNC_FLUSH")
            pulled = await peer.pull("T", 0)
            assert pulled.fields["nextBeginOffset"] == "20"

    run(scenario)


def test_held_pull_sees_a_message_only_once_confirmed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, flush_disk_type="SYNC_FLUSH") as server:
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T", b"first")
            waiting = peer.pull("T", 1)
            await until(lambda: len(server.broker.held_pulls) == 1)
            await peer.send("T", b"second")
            pulled = await waiting
            assert b"second" in pulled.body

    run(scenario)


def test_delayed_message_is_delivered_when_due(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, message_delay_level="1s 2s") as server:
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T", b"now")
            loop = asyncio.get_running_loop()
            began = loop.time()
            await peer.send("T", b"later", DELAY="1")
            pulled = await peer.pull("T", 1)
            assert b"later" in pulled.body
            assert loop.time() - began >= 0.999

    run(scenario)


def test_fast_port_accepts_sends_and_rejects_pulls(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            assert server.broker.fast_port == server.broker.port - 2
            peer = await BrokerPeer.connect(server.broker.fast_port)
            assert (await peer.send("T")).code == 0
            refused = await peer.pull("T", 0)
            assert (refused.code, refused.remark) == (3, " request type 11 not supported")

    run(scenario)


def test_new_topic_is_registered_immediately(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            assert (await route(server.namesrv.port, "Fresh")).code == 17
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("Fresh")
            await asyncio.sleep(0.05)
            found = json.loads((await route(server.namesrv.port, "Fresh")).body)
            address = f"{HOST}:{server.broker.port}"
            assert found["brokerDatas"][0]["brokerAddrs"] == {"0": address}
            assert found["queueDatas"][0]["writeQueueNums"] == 4

    run(scenario)


def test_consumers_are_notified_of_joins_and_leaves(tmp_path: Path) -> None:
    async def scenario() -> None:
        def heartbeat(client_id: str) -> Command:
            consumer = ConsumerData("G", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET")
            return request_command(34, body=HeartbeatData(client_id, [ProducerData("P")], [consumer]).encode())

        async with standalone(tmp_path) as server:
            first, second = await BrokerPeer.connect(server.broker.port), await BrokerPeer.connect(server.broker.port)
            await first.connection.request(heartbeat("one"))
            first.told.clear()
            await second.connection.request(heartbeat("two"))
            await until(lambda: first.told)
            assert (first.told[0].code, first.told[0].fields) == (40, {"consumerGroup": "G"})
            first.told.clear()
            second.connection.abort()
            await until(lambda: first.told)

    run(scenario)


def test_stop_resets_connections_and_fails_held_pulls_immediately(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T")
            waiting = [peer.pull("T", 1), peer.pull("T", 1)]
            await until(lambda: len(server.broker.held_pulls) == 2)
            ended: list[Exception | None] = []
            peer.connection._on_closed = lambda connection, error: ended.append(error)
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(answer) for answer in answers] == [ConnectionClosedError, ConnectionClosedError]
        await until(lambda: ended)
        assert isinstance(ended[0], ConnectionResetError)
        with pytest.raises(ConnectError):
            await BrokerPeer.connect(server.broker.port)

    run(scenario)


def test_stopping_broker_accepts_no_requests_so_busy_producers_cannot_delay_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        late: list[asyncio.Future[Command]] = []
        async with standalone(tmp_path) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T")
            stop = server.broker.flushing.stop

            async def ask_while_it_stops() -> None:
                await stop()
                late.append(asyncio.ensure_future(peer.send("T")))
                await asyncio.sleep(0.05)
                assert not late[0].done()

            monkeypatch.setattr(server.broker.flushing, "stop", ask_while_it_stops)
        with pytest.raises(ConnectionClosedError):
            await late[0]

    run(scenario)


def test_messages_survive_a_clean_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            for number in range(10):
                await peer.send("T", b"m%d" % number)
        async with standalone(tmp_path) as server:
            assert server.broker.broker.store.recovery.clean
            peer = await BrokerPeer.connect(server.broker.port)
            pulled = await peer.pull("T", 0)
            assert pulled.fields["nextBeginOffset"] == "10"
            assert (await peer.send("T")).fields["queueOffset"] == "10"

    run(scenario)


def test_restart_keeps_the_routes_and_decommissioning_drops_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        namesrv = NamesrvServer(NamesrvConfig(listen_port=0, kv_config_path=""))
        await namesrv.start(http=False)
        config = broker_config(tmp_path, **BROKER_FIELDS, namesrv_addr=f"{HOST}:{namesrv.port}")
        for decommissioned in (False, True):
            server = BrokerServer.open(config, http=False)
            await server.start()
            # Under another address, the name would be refused for 45 s.
            config = replace(config, listen_port=server.port)
            await until(lambda: server.registration.is_registered)  # noqa: B023 - called before the next round
            peer = await BrokerPeer.connect(server.port)
            if decommissioned:
                server.decommission()
                assert (await peer.send("TBW102")).code != 0
                await until(lambda: namesrv.namesrv.routes.topics["TBW102"]["broker-a"].perm == 4)
            await server.stop()
            found = await route(namesrv.port, "TBW102")
            assert found.code == (17 if decommissioned else 0)
        await namesrv.stop()

    run(scenario)


def test_broker_registers_again_when_its_nameserver_returns(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = NamesrvServer(NamesrvConfig(listen_port=0, kv_config_path=""))
        await first.start(http=False)
        port = first.port
        await first.stop()
        server = BrokerServer.open(broker_config(tmp_path, **BROKER_FIELDS, namesrv_addr=f"{HOST}:{port}"), http=False)
        await server.start()
        await until(lambda: "cannot connect" in "".join(server.not_ready()))
        for _ in range(2):
            namesrv = NamesrvServer(NamesrvConfig(listen_port=port, kv_config_path=""))
            await namesrv.start(http=False)
            await until(lambda: "TBW102" in namesrv.namesrv.routes.topics)  # noqa: B023 - called in this round only
            await until(lambda: not server.not_ready())
            await namesrv.stop()
        await server.stop()

    run(scenario)


def test_nameserver_decides_which_topics_are_ordered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T")
            topics, link = server.broker.broker.topics, server.broker.registration.links[0]
            namesrv = await connect(HOST, server.namesrv.port)
            names = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}
            for code, fields, ordered in ((100, names | {"value": "broker-a:4"}, True), (102, names, False)):
                assert (await namesrv.request(request_command(code, fields))).code == 0
                before = link.registrations
                server.broker.registration.register_soon()
                await until(lambda: link.registrations > before)  # noqa: B023 - called in this round only
                await until(lambda: topics.table["T"].order is ordered)  # noqa: B023 - called in this round only
            namesrv.close()

    run(scenario)


def test_hostile_peers_are_disconnected_without_effect_on_others(tmp_path: Path) -> None:
    hostile = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03",
        b"\xff" * 64,
        b'\x00\x00\x00\x08\x00\x00\x00\x04{"a"',
        b"\x00\x00\x00\x04\x07\x00\x00\x00",
    ]

    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            good = await BrokerPeer.connect(server.broker.port)
            for port in (server.broker.port, server.broker.fast_port, server.namesrv.port):
                for data in hostile:
                    reader, writer = await asyncio.open_connection(HOST, port)
                    writer.write(data)
                    with contextlib.suppress(ConnectionResetError):
                        assert await reader.read() == b""
                    writer.close()
                    assert (await good.send("T")).code == 0

    run(scenario)


def test_excess_connections_are_closed_without_effect_on_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, max_connections=2) as server:
            first, second = await BrokerPeer.connect(server.broker.port), await BrokerPeer.connect(server.broker.port)
            assert (await first.send("T")).code == 0
            third = await BrokerPeer.connect(server.broker.port)
            with pytest.raises(ConnectionClosedError):
                await third.send("T")
            assert (await second.send("T")).code == 0

    run(scenario)


def test_idle_connections_are_closed_and_busy_ones_are_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        # Far more than the busy one's pauses take on a slow machine.
        async with standalone(tmp_path, channel_idle_ms=4_000, namesrv_channel_idle_ms=60_000) as server:
            idle, busy = await BrokerPeer.connect(server.broker.port), await BrokerPeer.connect(server.broker.port)
            loop = asyncio.get_running_loop()
            began = loop.time()
            while not idle.connection.closing:
                assert (await busy.send("T")).code == 0
                await asyncio.sleep(0.1)
            assert loop.time() - began > 3.7
            assert not busy.connection.closing

    run(scenario)


def test_duplicate_port_is_rejected(tmp_path: Path) -> None:
    async def scenario() -> None:
        with bind(HOST, 0, "a free port") as probe:
            port = port_of(probe)
        for listen_port, http_host in ((port, HOST), (port + FAST_PORT_DISTANCE, HOST), (port, "0.0.0.0")):
            config = broker_config(tmp_path, listen_port=listen_port, http_host=http_host, http_port=port)
            with pytest.raises(ServerError, match=f"the HTTP port .*{port} is in use: .* choose another port"):
                BrokerServer.open(config)
        namesrv = NamesrvConfig(listen_port=port, http_host=HOST, http_port=port, kv_config_path="")
        with pytest.raises(ServerError, match=f"the NameServer's HTTP port .*{port} is in use"):
            await NamesrvServer(namesrv).start()

    run(scenario)


def test_port_or_store_in_use_is_rejected_and_releases_everything(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            port = server.broker.port
            other = Standalone(
                broker_config(tmp_path / "other", **(BROKER_FIELDS | {"listen_port": port})),
                NamesrvConfig(listen_port=0, kv_config_path=""),
            )
            with pytest.raises(ServerError, match=f"{port} is in use"):
                await other.start(http=False)
            with pytest.raises(ConnectError):
                await connect(HOST, other.namesrv.port)
            with pytest.raises(ServerError, match=r"fast port .* is in use.*fastPortEnable=false"):
                BrokerServer.open(broker_config(tmp_path, listen_port=port + 2), http=False)
            with pytest.raises(StoreLockedError):
                BrokerServer.open(broker_config(tmp_path, **BROKER_FIELDS), http=False)
            peer = await BrokerPeer.connect(port)
            assert (await peer.send("T")).code == 0

    run(scenario)
