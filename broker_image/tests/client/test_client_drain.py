"""A producer while one of two brokers is withdrawn, refuses and restarts: no send fails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from delaymq.broker.admin.drain import DrainMode
from delaymq.client import Admin, Client, ClientOptions, Message, Producer, ProducerOptions, TopicConfig
from delaymq.config import NamesrvConfig
from delaymq.server.broker_server import BrokerServer
from delaymq.server.namesrv_server import NamesrvServer
from delaymq_testing.broker.harness import broker_config
from delaymq_testing.running_server import BROKER_FIELDS, HOST, run, until

LEASE_MS = 60_000
ROUTE_INTERVAL_MS = 50
SENDERS = 4


@contextlib.asynccontextmanager
async def two_brokers(path: Path) -> AsyncIterator[tuple[NamesrvServer, dict[str, BrokerServer]]]:
    """Brokers `a` and `b` with topic T; what is in the dictionary at the end is stopped."""
    namesrv = NamesrvServer(NamesrvConfig(listen_port=0, kv_config_path=""))
    await namesrv.start(http=False)
    brokers: dict[str, BrokerServer] = {}
    try:
        for name in ("a", "b"):
            brokers[name] = await start_broker(path, name, namesrv.port)
        async with Client(None) as client:
            for broker in brokers.values():
                await Admin(client).put_topic(f"{HOST}:{broker.port}", TopicConfig(topic="T"))
        await until(lambda: len(namesrv.namesrv.routes.topics.get("T", ())) == 2)
        yield namesrv, brokers
    finally:
        for broker in brokers.values():
            await broker.stop()
        await namesrv.stop()


async def start_broker(path: Path, name: str, namesrv_port: int, port: int = 0) -> BrokerServer:
    fields = BROKER_FIELDS | {"listen_port": port, "broker_name": name, "namesrv_addr": f"{HOST}:{namesrv_port}"}
    server = BrokerServer.open(broker_config(path / name, **fields), http=False)
    await server.start()
    await until(lambda: server.registration.is_registered)
    return server


def test_no_send_fails_while_a_broker_is_drained_and_restarted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            two_brokers(tmp_path) as (namesrv, brokers),
            Client(f"{HOST}:{namesrv.port}", ClientOptions(route_interval_ms=ROUTE_INTERVAL_MS)) as client,
            Producer(client) as producer,
        ):
            counts = {"a": 0, "b": 0}
            going_on = True

            async def keep_sending(number: int) -> None:
                while going_on:
                    if number % 2:
                        result = await producer.send(Message(topic="T", body=b"x"))
                    else:
                        result = await producer.send_batch([Message(topic="T", body=b"x")] * 2)
                    counts[result.queue.broker_name] += 1

            async def sent_to(name: str, more: int) -> None:
                wanted = counts[name] + more
                await until(lambda: counts[name] >= wanted or sending.done())

            sending = asyncio.gather(*(keep_sending(number) for number in range(SENDERS)))
            await sent_to("a", 20)
            first = brokers["a"]
            first.draining.set(DrainMode.WITHDRAW, LEASE_MS)
            await sent_to("b", 20)
            known = client.known_route("T")
            await until(lambda: client.known_route("T") is not known)
            before = first.broker.stats.sends
            await sent_to("b", 100)
            # Sends that were under way when the route changed are all that may still come.
            assert first.broker.stats.sends - before <= 2 * SENDERS
            first.draining.set(DrainMode.REFUSE, LEASE_MS)
            await brokers.pop("a").stop()
            await sent_to("b", 20)
            brokers["a"] = await start_broker(tmp_path, "a", namesrv.port, first.port)
            await sent_to("a", 20)
            going_on = False
            await sending

    run(scenario)


@pytest.mark.parametrize("batch", [False, True])
def test_rejected_send_goes_to_the_other_broker_without_a_new_route(tmp_path: Path, batch: bool) -> None:
    async def scenario() -> None:
        async with (
            two_brokers(tmp_path) as (namesrv, brokers),
            Client(f"{HOST}:{namesrv.port}") as client,
            Producer(client, options=ProducerOptions(retries=1)) as producer,
        ):
            await client.route("T")
            brokers["a"].broker.drain.take(DrainMode.REFUSE, LEASE_MS, 0)  # no NameServer is notified
            for _ in range(20):
                message = Message(topic="T", body=b"x")
                result = await (producer.send_batch([message]) if batch else producer.send(message))
                assert result.queue.broker_name == "b"

    run(scenario)
