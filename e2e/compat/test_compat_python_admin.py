"""The Python client's Admin with either broker: groups, resets, messages by time, newest messages, deletions."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from compat.python_scenario import new_name, run, subscribed
from delaymq.client import (
    EARLIEST,
    LATEST,
    Admin,
    Client,
    ClientError,
    ClientOptions,
    ConsumeFrom,
    GroupConfig,
    Message,
    NoRouteError,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
    SendResult,
)
from delaymq.message.names import retry_topic
from harness.brokers import Cluster

PATIENT_MS = 30_000
"""Every request must succeed: on a busy machine, a broker may stall for longer than the default of 3 s."""
POLL_S = 0.05
PATIENT = ClientOptions(request_timeout_ms=PATIENT_MS, connect_timeout_ms=PATIENT_MS)


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Wait, within the scenario's time limit."""
    while not await is_so():  # noqa: ASYNC110 - no event to wait for
        await asyncio.sleep(POLL_S)


async def send(client: Client, topic: str, *bodies: bytes) -> list[SendResult]:
    async with Producer(client, options=ProducerOptions(send_timeout_ms=PATIENT_MS)) as producer:
        return [await producer.send(Message(topic=topic, body=body)) for body in bodies]


async def offsets(admin: Admin, group: str, topic: str) -> list[int]:
    """Return the offset of each queue; none while no NameServer has the group's retry topic."""
    try:
        return [each.consumer_offset for each in (await admin.consumer_progress(group, topic)).values()]
    except NoRouteError:
        return []


@contextlib.asynccontextmanager
async def member(client: Client, group: str, topic: str, got: list[bytes]) -> AsyncIterator[PushConsumer]:
    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body)

    options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, commit_interval_ms=100)
    consumer = subscribed(client, group, topic, handle, options)
    async with consumer:
        yield consumer


def test_groups_are_created_changed_listed_and_deleted(cluster: Cluster) -> None:
    group = new_name("Group")

    async def scenario(client: Client) -> None:
        admin = Admin(client)
        config = GroupConfig(group=group, retry_queues=2, retry_max_times=5, broadcast=False)
        await admin.put_group(config)
        assert group in await admin.groups()
        [address] = (await admin.masters()).values()
        assert (await admin.group_configs(address))[group] == config
        await admin.put_group_on(address, GroupConfig(group=group, consume=False))
        assert not (await admin.group_configs(address))[group].consume
        assert (await admin.group_members(group)).members == {}
        await admin.delete_group(group)
        assert group not in await admin.groups()
        await admin.delete_group(group)  # a missing group is no error

    run(cluster, scenario, PATIENT)


def test_members_of_a_group_and_groups_of_a_topic_are_returned(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        admin = Admin(client)
        await admin.create_topic(topic, queues=2)
        got: list[bytes] = []
        async with member(client, group, topic, got):

            async def is_known() -> bool:
                return bool((await admin.group_members(group)).members)

            await until(is_known)
            seen = await admin.group_members(group)
            [connection] = seen.members.values()
            assert connection.client_id == client.client_id
            assert (seen.model, seen.consume_type) == ("CLUSTERING", "CONSUME_PASSIVELY")
            assert set(seen.subscriptions) == {topic, retry_topic(group)}
            assert group in await admin.topic_groups(topic)

    run(cluster, scenario, PATIENT)


def test_group_without_members_resumes_at_the_offset_set_by_an_administrator(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        admin = Admin(client)
        await admin.create_topic(topic, queues=1)
        await send(client, topic, *(b"%d" % number for number in range(5)))
        got: list[bytes] = []
        async with member(client, group, topic, got):

            async def is_read() -> bool:
                return len(got) == 5 and await offsets(admin, group, topic) == [5]

            await until(is_read)

        async def is_alone() -> bool:
            return not (await admin.group_members(group)).members

        await until(is_alone)
        outcome = await admin.reset_offset(group, topic, EARLIEST)
        assert not outcome.told_members
        [(queue, reset)] = outcome.queues.items()
        assert (reset.old, reset.new) == (5, 0)
        [progress] = (await admin.consumer_progress(group, topic)).values()
        assert progress.consumer_offset == 0
        assert (await admin.reset_offset(group, topic, LATEST)).queues[queue].new == 5
        await admin.set_offset(group, queue, 3)
        again: list[bytes] = []
        async with member(client, group, topic, again):

            async def has_come() -> bool:
                return len(again) >= 2

            await until(has_come)
        assert again == [b"3", b"4"]

    run(cluster, scenario, PATIENT)


def test_offset_reset_takes_effect_in_running_members(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        admin = Admin(client)
        await admin.create_topic(topic, queues=1)
        await send(client, topic, b"a", b"b", b"c")
        got: list[bytes] = []
        async with member(client, group, topic, got):

            async def is_read() -> bool:
                return len(got) == 3 and await offsets(admin, group, topic) == [3]

            await until(is_read)
            outcome = await admin.reset_offset(group, topic, EARLIEST)
            assert outcome.told_members
            assert [(each.old, each.new) for each in outcome.queues.values()] == [(3, 0)]

            async def has_come_again() -> bool:
                return len(got) >= 6

            await until(has_come_again)
            assert got == [b"a", b"b", b"c"] * 2

    run(cluster, scenario, PATIENT)


def test_reset_by_time_starts_at_messages_stored_at_that_time(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        admin = Admin(client)
        await admin.create_topic(topic, queues=1)
        await admin.put_group(GroupConfig(group=group))
        await send(client, topic, b"before")
        await asyncio.sleep(0.05)
        await send(client, topic, *[b"then"] * 40)
        stored = await admin.last_messages(topic, 41)
        outcome = await admin.reset_offset(group, topic, stored[1].store_timestamp_ms)
        assert [each.new for each in outcome.queues.values()] == [1]
        future_ms = stored[-1].store_timestamp_ms + 3_600_000
        assert [each.new for each in (await admin.reset_offset(group, topic, future_ms)).queues.values()] == [41]

    run(cluster, scenario, PATIENT)


def test_messages_are_read_by_time_and_from_the_end_without_a_group(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        admin = Admin(client)
        await admin.create_topic(topic, queues=3)
        groups = await admin.groups()
        await send(client, topic, *(b"%d" % number for number in range(100)))
        await asyncio.sleep(0.05)
        await send(client, topic, b"last")
        everything = await admin.query_by_time(topic, 0, 1 << 41, max_messages=1_000)
        assert sorted(message.body for message in everything) == sorted([b"last", *(b"%d" % n for n in range(100))])
        times = [message.store_timestamp_ms for message in everything]
        assert times == sorted(times)
        middle_ms = times[50]
        found = await admin.query_by_time(topic, middle_ms, middle_ms, max_messages=1_000)
        assert {message.body for message in found} == {
            message.body for message in everything if message.store_timestamp_ms == middle_ms
        }
        [last] = await admin.last_messages(topic, 1)
        assert last.body == b"last"
        assert [message.body for message in await admin.query_by_time(topic, times[-1], times[-1])] == [b"last"]
        assert await admin.query_by_time(topic, times[-1] + 1, 1 << 41) == []
        assert await admin.query_by_time(topic, 0, times[0] - 1) == []
        of_queue = await admin.last_messages(topic, 1_000, queue_id=last.queue.queue_id)
        assert {message.queue for message in of_queue} == {last.queue}
        assert len(await admin.last_messages(topic, 2, of_each_queue=True)) == 6
        assert len(await admin.query_by_time(topic, 0, 1 << 41, max_messages=7)) == 7
        assert await admin.groups() == groups
        assert await admin.topic_groups(topic) == []
        for wrong in (admin.last_messages(topic, 1, queue_id=9), admin.last_messages(topic, 0)):
            with pytest.raises(ValueError, match=r"no readable queue 9|can be read in one call"):
                await wrong

    run(cluster, scenario, PATIENT)


def test_unknown_topics_groups_and_clusters_raise_client_errors(cluster: Cluster) -> None:
    async def scenario(client: Client) -> None:
        admin = Admin(client)
        for unknown in (
            admin.topic_groups("NoSuchTopicEver"),
            admin.last_messages("NoSuchTopicEver", 1),
            admin.reset_offset("NoSuchGroup", "NoSuchTopicEver", LATEST),
        ):
            with pytest.raises(NoRouteError):
                await unknown
        with pytest.raises(ClientError, match="in cluster Nowhere"):
            await admin.put_group(GroupConfig(group="g"), cluster="Nowhere")

    run(cluster, scenario, PATIENT)
