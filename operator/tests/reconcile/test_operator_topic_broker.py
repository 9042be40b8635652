"""Topics on real brokers through the real adapter: requests, and effects visible to clients."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from delaymq.client import Admin, Client, TopicConfig
from delaymq.protocol.codes import ResponseCode
from delaymq.server.standalone import Standalone
from delaymq_operator.reconcile.topic import reconcile_topic, release_topic
from delaymq_operator_testing.loopback_admin import HOST, LoopbackAdmin
from delaymq_operator_testing.worlds.topic import TopicWorld
from delaymq_testing.running_server import BrokerPeer, run, send_command, standalone, until

POD_0, POD_1 = "127.0.0.2", "127.0.0.3"


class Brokers:
    """A Broker `demo` with two running groups and two NameServers."""

    def __init__(self, world: TopicWorld, servers: list[Standalone], client: Client) -> None:
        self.world = world
        self.servers = servers
        self.admin = Admin(client)

    def address(self, group: int) -> str:
        return f"{HOST}:{self.servers[group].broker.port}"

    async def on(self, group: int, topic: str) -> TopicConfig | None:
        return (await self.admin.topic_configs(self.address(group))).get(topic)

    def route(self, group: int, topic: str) -> bool:
        return topic in self.servers[group].namesrv.namesrv.routes.topics

    def order(self, group: int, topic: str) -> str | None:
        return self.servers[group].namesrv.namesrv.kv.get("ORDER_TOPIC_CONFIG", topic)


@asynccontextmanager
async def brokers(path: Path) -> AsyncIterator[Brokers]:
    named: dict[str, Any] = {"broker_cluster_name": "demo", "auto_create_topic_enable": False}
    async with (
        standalone(path / "0", broker_name="demo-0", **named) as first,
        standalone(path / "1", broker_name="demo-1", **named) as second,
        Client(None) as client,
    ):
        servers = [first, second]
        world = TopicWorld(groups=2)
        world.settings = replace(world.settings, name_server_addresses=(HOST,))
        addresses = [f"{HOST}:{server.namesrv.port}" for server in servers]
        world.kube.change("Broker", "demo", nameServers={"addresses": addresses})
        for group, pod in enumerate((POD_0, POD_1)):
            world.kube.objects["Pod", "ns", f"demo-broker-{group}-0"]["status"]["podIP"] = pod
        admin = LoopbackAdmin({POD_0: first.broker.port, POD_1: second.broker.port})
        world.use_admin(admin)
        try:
            yield Brokers(world, servers, client)
        finally:
            await admin.close()


def test_topic_is_created_routed_corrected_and_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with brokers(tmp_path) as demo:
            key = demo.world.add_topic("orders", queues=3)
            await reconcile_topic(key, demo.world.world)
            assert demo.world.condition(key)[1] == "InEveryGroup"
            for group in (0, 1):
                assert await demo.on(group, "orders") == TopicConfig(topic="orders", write_queues=3, read_queues=3)
                await until(lambda group=group: demo.route(group, "orders"))
            # Same request as mqadmin updateTopic.
            by_hand = TopicConfig(
                topic="orders", write_queues=7, read_queues=7, permission=4, filter_type="MULTI_TAG", sys_flag=1
            )
            await demo.admin.put_topic(demo.address(1), by_hand)
            demo.world.later()
            await reconcile_topic(key, demo.world.world)
            assert await demo.on(1, "orders") == TopicConfig(
                topic="orders", write_queues=3, read_queues=7, permission=4, filter_type="MULTI_TAG", sys_flag=1
            )
            demo.world.kube.mark_deleted("Topic", "orders")
            assert await release_topic(key, demo.world.world) is None
            for group in (0, 1):
                assert await demo.on(group, "orders") is None
                assert not demo.route(group, "orders")

    run(scenario)


def test_messages_in_removed_write_queue_stay_readable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with brokers(tmp_path) as demo:
            key = demo.world.add_topic("orders", queues=4)
            await reconcile_topic(key, demo.world.world)
            peer = await BrokerPeer.connect(demo.servers[0].broker.port)
            sent = await peer.connection.request(send_command("orders", b"last", queue_id=3))
            assert sent.code == ResponseCode.SUCCESS
            demo.world.kube.change("Topic", "orders", queues=1)
            await reconcile_topic(key, demo.world.world)
            assert "remain readable" in demo.world.condition(key)[2]
            pulled = await peer.pull("orders", 0, queue_id=3)
            assert pulled.code == ResponseCode.SUCCESS
            assert b"last" in pulled.body
            peer.connection.close()

    run(scenario)


def test_order_reaches_name_servers_and_brokers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with brokers(tmp_path) as demo:
            key = demo.world.add_topic("orders", queues=2, order=True)
            await reconcile_topic(key, demo.world.world)
            for group, server in enumerate(demo.servers):
                assert demo.order(group, "orders") == "demo-0:2;demo-1:2"
                server.broker.registration.register_soon()
                await until(lambda server=server: server.broker.broker.topics.table["orders"].order)
            # A change of another field keeps the order setting.
            demo.world.kube.change("Topic", "orders", queues=5)
            await reconcile_topic(key, demo.world.world)
            assert (await demo.on(0, "orders")).order  # type: ignore[union-attr]
            assert demo.order(1, "orders") == "demo-0:5;demo-1:5"
            demo.world.kube.mark_deleted("Topic", "orders")
            assert await release_topic(key, demo.world.world) is None
            assert demo.order(0, "orders") is demo.order(1, "orders") is None

    run(scenario)


def test_deletion_of_topic_waits_for_stopped_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with brokers(tmp_path) as demo:
            key = demo.world.add_topic("orders")
            await reconcile_topic(key, demo.world.world)
            await demo.servers[1].broker.stop()
            demo.world.kube.mark_deleted("Topic", "orders")
            waiting = await release_topic(key, demo.world.world)
            assert waiting is not None
            assert "demo-1: its broker does not respond" in waiting.message
            assert await demo.on(0, "orders") is None

    run(scenario)
