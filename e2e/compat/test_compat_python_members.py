"""Python group members respond to RocketMQ's tools like Java members, with either broker."""

import asyncio
import re
from dataclasses import replace

from compat.python_scenario import FROM_FIRST, Collected, new_name, run, subscribed, until
from delaymq.client import (
    Client,
    LitePullConsumer,
    LitePullOptions,
    Message,
    MessageQueue,
    Outcome,
    Producer,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
)
from harness.brokers import Cluster
from harness.clients import Workbench

PROPERTY = re.compile(r"^(PROP_\w+)\s+: (.*)$", re.MULTILINE)
SECTIONS = ("Consumer Properties", "Consumer Subscription", "Consumer Offset", "Consumer MQ Detail", "Consumer RT&TPS")


def test_running_info_of_python_member_has_the_form_of_a_java_member(cluster: Cluster, clients: Workbench) -> None:
    topic, group = clients.topic(queues=2), clients.group(retry_topic=True)

    async def scenario(client: Client) -> None:
        java = await asyncio.to_thread(clients.push, topic, group=group, **{"from": "CONSUME_FROM_FIRST_OFFSET"})
        got, stuck = Collected(), asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            await got(message)
            if message.body == b"stuck":
                await stuck.wait()

        consumer = subscribed(client, group, topic, handle, replace(FROM_FIRST, concurrency=7))
        async with Producer(client) as producer, consumer:
            await until(lambda: len(_of(consumer, topic)) == 1)
            # Until it has released the queue that is now assigned to the other member, both would receive its messages.
            while len(await asyncio.to_thread(_queue_lines_of, clients, group, java.client_id, topic)) != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            (queue,) = _of(consumer, topic)
            await producer.send(Message(topic=topic, body=b"done"), queue=queue)
            await producer.send(Message(topic=topic, body=b"stuck"), queue=queue)
            await until(lambda: got.bodies == [b"done", b"stuck"])
            await until(lambda: consumer.stats().topics[topic].consumed == 1)
            ours = await asyncio.to_thread(_status, clients, group, client.client_id)
            theirs = await asyncio.to_thread(_status, clients, group, java.client_id)
            stuck.set()
        assert all(f"#{section}#" in shown for section in SECTIONS for shown in (ours, theirs))
        properties = dict(PROPERTY.findall(ours))
        assert properties.keys() == dict(PROPERTY.findall(theirs)).keys()
        assert properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert properties["PROP_CONSUMEORDERLY"] == "false"
        assert properties["PROP_THREADPOOL_CORE_SIZE"] == "7"
        assert properties["PROP_NAMESERVER_ADDR"] == f"{cluster.namesrv_address};"
        assert _subscriptions(ours) == _subscriptions(theirs) == {topic: "*", f"%RETRY%{group}": "*"}
        (line,) = _queue_lines(ours, topic)
        assert "commitOffset=1, cachedMsgMinOffset=1, cachedMsgMaxOffset=1, cachedMsgCount=1" in line
        assert "locked=false" in line
        assert "droped=false" in line
        # Its tasks are shown as threads, including the one that waits in the handler.
        assert "#Consumer jstack#" in ours
        assert "scenario.<locals>.handle(" in ours

    run(cluster, scenario)


def test_lite_pull_and_ordered_members_return_running_info(cluster: Cluster, clients: Workbench) -> None:
    topic = clients.topic(queues=1)
    polled, ordered = clients.group(), clients.group(retry_topic=True)

    async def scenario(client: Client) -> None:
        lite = LitePullConsumer(client, polled, LitePullOptions(consume_from=FROM_FIRST.consume_from))
        lite.subscribe(topic)
        got = Collected()
        push = subscribed(client, ordered, topic, got, replace(FROM_FIRST, ordered=True, lock_retry_ms=100))
        async with Producer(client) as producer, lite, push:
            await producer.send(Message(topic=topic, body=b"one"))
            assert [each.body for each in await lite.poll(60_000)] == [b"one"]
            await until(lambda: got.bodies == [b"one"])
            shown = await asyncio.to_thread(_status, clients, polled, client.client_id)
            assert dict(PROPERTY.findall(shown))["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
            assert _subscriptions(shown) == {topic: "*"}
            shown = await asyncio.to_thread(_status, clients, ordered, client.client_id)
            assert dict(PROPERTY.findall(shown))["PROP_CONSUMEORDERLY"] == "true"
            (line,) = _queue_lines(shown, topic)
            assert "locked=true" in line

    run(cluster, scenario)


def test_python_member_consumes_a_message_directly(cluster: Cluster, clients: Workbench) -> None:
    topic, group = clients.topic(queues=1), clients.group(retry_topic=True)

    async def scenario(client: Client) -> None:
        got = Collected()

        async def handle(message: ReceivedMessage) -> Outcome | None:
            await got(message)
            times = got.bodies.count(message.body)
            if message.body == b"later" and times > 1:
                return Outcome.RETRY
            if message.body == b"failing" and times > 1:
                raise RuntimeError("the printer is out of paper")
            return None

        consumer = subscribed(client, group, topic, handle)
        async with Producer(client) as producer, consumer:
            ids = {}
            for body in ("good", "later", "failing"):
                result = await producer.send(Message(topic=topic, body=body.encode(), keys=(body,)))
                ids[body] = result.offset_message_id
            await until(lambda: len(got.messages) == 3)
            before = consumer.stats()

            def consume(body: str) -> str:
                return clients.mqadmin("queryMsgById", "-i", ids[body], "-g", group, "-d", client.client_id)

            shown = {body: await asyncio.to_thread(consume, body) for body in ids}
            assert "consumeResult=CR_SUCCESS" in shown["good"]
            assert "consumeResult=CR_LATER" in shown["later"]
            assert "consumeResult=CR_THROW_EXCEPTION" in shown["failing"]
            assert "remark=RuntimeError: the printer is out of paper" in shown["failing"]
            assert got.bodies[3:] == [b"good", b"later", b"failing"]
            again = got.messages[3]
            assert (again.topic, again.keys, again.queue_offset) == (topic, ("good",), 0)
            # Independent of the queues' progress: nothing was retried, committed or counted.
            assert consumer.stats() == before

    run(cluster, scenario)


def test_python_members_return_their_offsets(cluster: Cluster, clients: Workbench) -> None:
    topic, group = clients.topic(queues=1), clients.group(retry_topic=True)

    async def scenario(client: Client) -> None:
        got = Collected()
        consumer = subscribed(client, group, topic, got, PushConsumerOptions(consume_from=FROM_FIRST.consume_from))
        async with Producer(client, new_name("Producers")) as producer, consumer:
            for number in range(3):
                await producer.send(Message(topic=topic, body=b"%d" % number))
            await until(lambda: consumer.stats().topics[topic].consumed == 3)
            for asked in ({}, {"member": client.client_id}):
                offsets = await asyncio.to_thread(clients.admin.member_offsets, topic, group, **asked)
                assert offsets == [(client.client_id, 0, 3)]
            assert await asyncio.to_thread(clients.admin.member_offsets, topic, group, member="nobody") == []
            await consumer.commit()
            # The owner of a queue is determined from the running info of each member.
            shown = await asyncio.to_thread(clients.mqadmin, "consumerProgress", "-g", group, "-s", "true")
            (line,) = [each for each in shown.splitlines() if each.startswith(topic)]
            assert "127.0.0.1" in line

    run(cluster, scenario)


def _status(clients: Workbench, group: str, client_id: str) -> str:
    return clients.mqadmin("consumerStatus", "-g", group, "-i", client_id, "-s")


def _queue_lines_of(clients: Workbench, group: str, client_id: str, topic: str) -> list[str]:
    return _queue_lines(_status(clients, group, client_id), topic)


def _queue_lines(shown: str, topic: str) -> list[str]:
    return [each for each in shown.splitlines() if each.startswith(topic) and "ProcessQueueInfo" in each]


def _subscriptions(shown: str) -> dict[str, str]:
    return {match[1]: match[2] for match in re.finditer(r"Topic: (\S+)\s.*SubExpression: (.*)", shown)}


def _of(consumer: PushConsumer, topic: str) -> list[MessageQueue]:
    return [queue for queue in consumer.assigned if queue.topic == topic]
