"""Broadcasting Python consumers with either broker, and their offset file in RocketMQ's format."""

import asyncio
from collections import Counter
from pathlib import Path

from compat.python_scenario import Collected, new_name, run, subscribed, until
from delaymq.client import (
    Admin,
    Client,
    ConsumeFrom,
    Message,
    MessageModel,
    Producer,
    PushConsumerOptions,
)
from harness.brokers import Cluster
from harness.clients import Workbench
from harness.driver import Driver


def test_each_broadcasting_member_receives_each_message(cluster: Cluster, tmp_path: Path) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=2)
        async with Client(cluster.namesrv_address) as second_client, Producer(client) as producer:
            collected = [Collected(), Collected()]
            for each, handler in zip((client, second_client), collected, strict=True):
                options = PushConsumerOptions(
                    model=MessageModel.BROADCASTING,
                    consume_from=ConsumeFrom.FIRST,
                    offsets_path=tmp_path / each.client_id / "offsets.json",
                )
                consumer = subscribed(each, group, topic, handler, options)
                await consumer.start()
            for number in range(10):
                await producer.send(Message(topic=topic, body=b"%d" % number))
            await until(lambda: all(len(each.messages) >= 10 for each in collected))
        for handler in collected:
            assert Counter(handler.bodies) == Counter(b"%d" % number for number in range(10))

    run(cluster, scenario)


def test_broadcasting_members_of_java_and_python_resume_from_the_same_offset_file(
    cluster: Cluster, clients: Workbench, driver: Driver
) -> None:
    topic, group, instance = clients.topic(queues=2), new_name("Group"), new_name("instance")
    path = driver.home_path / ".rocketmq_offsets" / f"127.0.0.1@{instance}" / group / "offsets.json"
    options = PushConsumerOptions(model=MessageModel.BROADCASTING, consume_from=ConsumeFrom.FIRST, offsets_path=path)

    def java_gets(*bodies: bytes) -> None:
        member = clients.push(
            topic, group=group, broadcasting=True, instance=instance, **{"from": "CONSUME_FROM_FIRST_OFFSET"}
        )
        got = member.inbox.wait_count(len(bodies))
        clients.stop(member)
        assert sorted(message.body for message in got) == sorted(bodies)

    async def python_gets(client: Client, *bodies: bytes) -> None:
        got = Collected()
        consumer = subscribed(client, group, topic, got, options)
        async with consumer:
            await until(lambda: len(got.messages) >= len(bodies))
        assert sorted(got.bodies) == sorted(bodies)

    async def scenario(client: Client) -> None:
        async with Producer(client) as producer:

            async def send(*bodies: bytes) -> None:
                for body in bodies:
                    await producer.send(Message(topic=topic, body=body))

            await send(b"1", b"2", b"3")
            await asyncio.to_thread(java_gets, b"1", b"2", b"3")
            await send(b"4", b"5")
            await python_gets(client, b"4", b"5")
            await send(b"6")
            await asyncio.to_thread(java_gets, b"6")
            # Java keeps the previous file as .bak; if only that exists, both clients resume from it.
            path.replace(path.with_name("offsets.json.bak"))
            await send(b"7")
            await python_gets(client, b"7")
            path.replace(path.with_name("offsets.json.bak"))
            await send(b"8")
            await asyncio.to_thread(java_gets, b"8")

    run(cluster, scenario)
