"""The Python client against either broker: what it sends arrives, once, with all that belongs to it."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import pytest
from delaymq.client import (
    Admin,
    Client,
    ConsumeFrom,
    Message,
    MessageModel,
    NoRouteError,
    NoSuchDelayError,
    Outcome,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
    SendStatus,
)
from delaymq.message.names import dead_letter_topic
from harness.brokers import Cluster

LIMIT_S = 60.0
NewCluster = Callable[..., Cluster]
POLL_S = 0.02
HELD_MS = 10_000
FROM_FIRST = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, local_retry_ms=200)

_names = count(1)


def new_name(kind: str) -> str:
    """A topic or group that no other test has."""
    return f"Py{kind}{next(_names)}_{time.monotonic_ns() % 1_000_000}"


def run(cluster: Cluster, scenario: Callable[[Client], Awaitable[None]]) -> None:
    """Runs `scenario` with a client of the cluster, within a limit."""

    async def with_client() -> None:
        async with asyncio.timeout(LIMIT_S), Client(cluster.namesrv_address) as client:
            await scenario(client)

    asyncio.run(with_client())


async def until(is_so: Callable[[], bool]) -> None:
    """Waits, within the scenario's limit."""
    while not is_so():  # noqa: ASYNC110 - what it waits for is no event
        await asyncio.sleep(POLL_S)


class Collected:
    """A handler that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


async def settled(client: Client, topic: str, *consumers: PushConsumer) -> None:
    """Waits until the consumers have all queues of the topic between them: each at least one, none twice."""
    queues = set((await client.route(topic)).readable)

    def shared() -> bool:
        assigned = [{queue for queue in consumer.assigned if queue.topic == topic} for consumer in consumers]
        return all(assigned) and set().union(*assigned) == queues and sum(map(len, assigned)) == len(queues)

    await until(shared)


def test_a_message_arrives_with_tags_keys_and_properties(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=2)
        got = Collected()
        consumer = PushConsumer(client, group, got, FROM_FIRST)
        consumer.subscribe(topic)
        async with consumer, Producer(client) as producer:
            text, more = "größer", {"color": "grün"}
            result = await producer.send(
                Message(topic=topic, body=text.encode(), tags="TagA", keys=("k1", "k2"), properties=more, flag=7)
            )
            await until(lambda: bool(got.messages))
        [received] = got.messages
        assert result.status is SendStatus.OK
        assert received.body == "größer".encode()
        assert (received.topic, received.tags, received.keys, received.flag) == (topic, "TagA", ("k1", "k2"), 7)
        assert received.properties["color"] == "grün"
        assert received.message_id == result.message_id
        assert received.offset_message_id == result.offset_message_id
        assert (received.queue, received.queue_offset) == (result.queue, result.queue_offset)

    run(cluster, scenario)


def test_delays_are_kept_to_the_level_and_never_early(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        got = Collected()
        await Admin(client).create_topic(topic, queues=1)
        consumer = PushConsumer(client, group, got, FROM_FIRST)
        consumer.subscribe(topic)
        async with consumer, Producer(client) as producer:
            for delay in ("3s", "2s", "1s"):
                await producer.send(Message(topic=topic, body=delay.encode()), delay=delay)
            await until(lambda: len(got.messages) == 3)
        assert got.bodies == [b"1s", b"2s", b"3s"]
        assert [message.delay_level for message in got.messages] == [1, 2, 5]
        for message, delay_ms in zip(got.messages, (1000, 2000, 3000), strict=True):
            late_ms = message.store_timestamp_ms - message.born_timestamp_ms - delay_ms
            assert 0 <= late_ms < 1500

    run(cluster, scenario)


def test_a_delay_without_a_level_is_refused_with_the_levels_that_there_are(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=1)
        async with Producer(client) as producer:
            with pytest.raises(NoSuchDelayError, match=r"no delay of exactly 7s; it has: 1s 2s 1s 1s 3s 4s 10s 1h"):
                await producer.send(Message(topic=topic, body=b"x"), delay="7s")
        stats = await Admin(client).topic_stats(topic)
        assert [each.max_offset for each in stats.values()] == [0]

    run(cluster, scenario)


def test_a_large_body_travels_compressed_and_arrives_whole(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        got = Collected()
        await Admin(client).create_topic(topic, queues=1)
        consumer = PushConsumer(client, group, got, FROM_FIRST)
        consumer.subscribe(topic)
        body = bytes(range(256)) * 200
        async with consumer, Producer(client) as producer:
            await producer.send(Message(topic=topic, body=body))
            await until(lambda: bool(got.messages))
        assert got.bodies == [body]
        assert got.messages[0].sys_flag & 1

    run(cluster, scenario)


def test_a_batch_is_stored_in_order_in_one_queue(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=4)
        async with Producer(client) as producer, PullConsumer(client, new_name("Group")) as consumer:
            batch = [Message(topic=topic, body=b"%d" % number, tags="Even") for number in range(10)]
            result = await producer.send_batch(batch)
            pulled: list[ReceivedMessage] = []
            while len(pulled) < 10:
                offset = result.queue_offset + len(pulled)
                pulled += (await consumer.pull(result.queue, offset, suspend_ms=HELD_MS)).messages
        assert [message.body for message in pulled] == [b"%d" % number for number in range(10)]
        assert ",".join(message.message_id for message in pulled) == result.message_id
        assert ",".join(message.offset_message_id for message in pulled) == result.offset_message_id

    run(cluster, scenario)


def test_one_way_sends_arrive(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        got = Collected()
        await Admin(client).create_topic(topic, queues=2)
        consumer = PushConsumer(client, group, got, FROM_FIRST)
        consumer.subscribe(topic)
        async with consumer, Producer(client) as producer:
            ids = [await producer.send_oneway(Message(topic=topic, body=b"x")) for _ in range(20)]
            await until(lambda: len(got.messages) == 20)
        assert sorted(message.message_id for message in got.messages) == sorted(ids)

    run(cluster, scenario)


def test_the_first_send_creates_the_topic(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        async with Producer(client) as producer:
            result = await producer.send(Message(topic=topic, body=b"first"))
            assert result.status is SendStatus.OK
            assert len({queue.queue_id for queue in await producer.queues(topic)}) == 4
        # Brokers tell the NameServer without waiting for it.
        while not await Admin(client).topic_exists(topic):  # noqa: ASYNC110 - at the NameServer
            await asyncio.sleep(POLL_S)

    run(cluster, scenario)


def test_only_messages_with_the_subscribed_tags_come(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        got = Collected()
        await Admin(client).create_topic(topic, queues=1)
        consumer = PushConsumer(client, group, got, FROM_FIRST)
        # "Aa" and "BB" have the same hash: the broker lets both pass, the client must not.
        consumer.subscribe(topic, "TagA || Aa")
        async with consumer, Producer(client) as producer:
            for tag in ("TagB", "BB", "", "TagA", "Aa"):
                await producer.send(Message(topic=topic, body=tag.encode(), tags=tag))
            await until(lambda: len(got.messages) >= 2)
            await asyncio.sleep(0.5)
        assert got.bodies == [b"TagA", b"Aa"]

    run(cluster, scenario)


def test_members_of_a_group_share_and_each_group_gets_everything(cluster: Cluster) -> None:
    topic, group, other = new_name("Topic"), new_name("Group"), new_name("Group")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=4)
        async with Client(cluster.namesrv_address) as second_client, Producer(client) as producer:
            collected = [Collected(), Collected(), Collected()]
            consumers = [
                PushConsumer(client, group, collected[0], FROM_FIRST),
                PushConsumer(second_client, group, collected[1], FROM_FIRST),
                PushConsumer(client, other, collected[2], FROM_FIRST),
            ]
            for consumer in consumers:
                consumer.subscribe(topic)
                await consumer.start()
            await settled(client, topic, *consumers[:2])
            assert [len([q for q in consumer.assigned if q.topic == topic]) for consumer in consumers[:2]] == [2, 2]
            bodies = [b"%d" % number for number in range(40)]
            for body in bodies:
                await producer.send(Message(topic=topic, body=body))
            await until(lambda: len(collected[0].messages) + len(collected[1].messages) >= 40)
            await until(lambda: len(collected[2].messages) >= 40)
            await second_client.close()
            await settled(client, topic, consumers[0])
        assert Counter(collected[0].bodies + collected[1].bodies) == Counter(bodies)
        assert collected[0].messages
        assert collected[1].messages
        assert Counter(collected[2].bodies) == Counter(bodies)

    run(cluster, scenario)


def test_in_broadcasting_each_member_gets_each_message(cluster: Cluster, tmp_path: Path) -> None:
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
                consumer = PushConsumer(each, group, handler, options)
                consumer.subscribe(topic)
                await consumer.start()
            for number in range(10):
                await producer.send(Message(topic=topic, body=b"%d" % number))
            await until(lambda: all(len(each.messages) >= 10 for each in collected))
        for each in collected:
            assert Counter(each.bodies) == Counter(b"%d" % number for number in range(10))

    run(cluster, scenario)


def test_a_failed_message_comes_again_and_at_last_goes_to_the_dead_letters(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=1)
        times: list[int] = []

        async def fail(message: ReceivedMessage) -> Outcome | None:
            if message.body == b"good":
                return None
            assert message.topic == topic
            times.append(message.reconsume_times)
            if len(times) == 1:
                raise ValueError("the handler's own error")
            return Outcome.RETRY

        options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, max_reconsume_times=2)
        consumer = PushConsumer(client, group, fail, options)
        consumer.subscribe(topic)
        async with consumer, Producer(client) as producer:
            await producer.send(Message(topic=topic, body=b"bad", tags="T", keys=("k",)))
            await producer.send(Message(topic=topic, body=b"good"))
            await until(lambda: len(times) == 3)
            dead = await _first_of(client, dead_letter_topic(group))
        assert times == [0, 1, 2]
        assert (dead.body, dead.tags, dead.keys) == (b"bad", "T", ("k",))

    run(cluster, scenario)


async def _first_of(client: Client, topic: str) -> ReceivedMessage:
    async with PullConsumer(client, new_name("Group")) as consumer:
        while True:
            try:
                for queue in await consumer.queues(topic):
                    result = await consumer.pull(queue, 0)
                    if result.messages:
                        return result.messages[0]
            except NoRouteError:
                pass
            await asyncio.sleep(POLL_S * 5)


def test_ordered_consumers_handle_a_queue_in_order_also_when_a_message_fails(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=2)
        handled: dict[int, list[bytes]] = {0: [], 1: []}
        failures = Counter[bytes]()

        async def handle(message: ReceivedMessage) -> Outcome | None:
            await asyncio.sleep(0.001)
            if message.body == b"3" and failures[message.body] < 2:
                failures[message.body] += 1
                return Outcome.RETRY
            handled[message.queue.queue_id].append(message.body)
            return None

        options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, ordered=True, local_retry_ms=100)
        consumer = PushConsumer(client, group, handle, options)
        consumer.subscribe(topic)
        async with consumer, Producer(client) as producer:
            queues = await producer.queues(topic)
            for number in range(40):
                await producer.send(Message(topic=topic, body=b"%d" % number), queue=queues[number % 2])
            await until(lambda: sum(map(len, handled.values())) >= 40)
        assert handled[0] == [b"%d" % number for number in range(0, 40, 2)]
        assert handled[1] == [b"%d" % number for number in range(1, 40, 2)]
        assert failures[b"3"] == 2

    run(cluster, scenario)


def test_a_group_goes_on_where_it_stopped_and_shows_its_progress(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=2)
        first, second = Collected(), Collected()
        async with Producer(client) as producer:
            for handler, bodies in ((first, (b"1", b"2", b"3")), (second, (b"4", b"5"))):
                for body in bodies:
                    await producer.send(Message(topic=topic, body=body))
                consumer = PushConsumer(client, group, handler, FROM_FIRST)
                consumer.subscribe(topic)
                async with consumer:
                    await until(lambda handler=handler, bodies=bodies: len(handler.messages) >= len(bodies))
        assert Counter(first.bodies) == Counter((b"1", b"2", b"3"))
        assert Counter(second.bodies) == Counter((b"4", b"5"))
        progress = await Admin(client).consumer_progress(group, topic)
        assert sum(each.consumer_offset for each in progress.values()) == 5
        assert all(each.consumer_offset == each.broker_offset for each in progress.values())

    run(cluster, scenario)


def test_a_new_group_begins_where_it_is_told_to(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=1)
        async with Producer(client) as producer, PullConsumer(client, new_name("Group")) as consumer:
            for body in (b"1", b"2"):
                await producer.send(Message(topic=topic, body=body))
            await asyncio.sleep(1.2)
            middle_ms = time.time_ns() // 1_000_000
            await asyncio.sleep(0.2)
            await producer.send(Message(topic=topic, body=b"3"))
            [queue] = await consumer.queues(topic)
            assert await consumer.calls.min_offset(queue) == 0
            await consumer.pull(queue, 2, suspend_ms=HELD_MS)
            assert await consumer.calls.max_offset(queue) == 3
            assert await consumer.calls.offset_at(queue, middle_ms) == 2

    run(cluster, scenario)


def test_pulls_report_what_they_found_and_wait_when_asked_to(cluster: Cluster) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client) -> None:
        await Admin(client).create_topic(topic, queues=1)
        async with Producer(client) as producer, PullConsumer(client, group) as consumer:
            [queue] = await consumer.queues(topic)
            await producer.send(Message(topic=topic, body=b"1", tags="A"))
            found = await consumer.pull(queue, 0, suspend_ms=HELD_MS)  # the real broker shows it a moment later
            assert (found.status, found.next_offset, found.max_offset) == (PullStatus.FOUND, 1, 1)
            assert (await consumer.pull(queue, 0, tags="B")).status is PullStatus.NOTHING_MATCHED
            assert (await consumer.pull(queue, 1)).status is PullStatus.NOTHING_NEW
            beyond = await consumer.pull(queue, 99)
            assert (beyond.status, beyond.next_offset) == (PullStatus.ILLEGAL_OFFSET, 1)

            began = time.monotonic()
            held = asyncio.ensure_future(consumer.pull(queue, 1, suspend_ms=HELD_MS))
            await asyncio.sleep(0.5)
            assert not held.done()
            await producer.send(Message(topic=topic, body=b"2"))
            assert [message.body for message in (await held).messages] == [b"2"]
            assert time.monotonic() - began < 5

            assert await consumer.calls.committed_offset(queue) in (None, 0)
            await consumer.calls.commit(queue, 2)
            assert await consumer.calls.committed_offset(queue) == 2

    run(cluster, scenario)


def test_messages_are_found_by_id_and_by_key(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        admin = Admin(client)
        await admin.create_topic(topic, queues=2)
        async with Producer(client) as producer:
            results = [
                await producer.send(Message(topic=topic, body=b"%d" % number, keys=("all", f"k{number}")))
                for number in range(3)
            ]
        viewed = await admin.view_message(results[1].offset_message_id)
        assert (viewed.body, viewed.message_id) == (b"1", results[1].message_id)

        async def found(key: str, number: int) -> list[bytes]:
            while len(messages := await admin.query_by_key(topic, key)) < number:  # noqa: ASYNC110 - at the broker
                await asyncio.sleep(POLL_S)
            return sorted(message.body for message in messages)

        assert await found("all", 3) == [b"0", b"1", b"2"]
        assert await found("k2", 1) == [b"2"]
        assert await found(results[0].message_id, 1) == [b"0"]
        assert await admin.query_by_key(topic, "nobody") == []

    run(cluster, scenario)


def test_an_administrator_sees_brokers_topics_settings_and_figures(cluster: Cluster) -> None:
    topic = new_name("Topic")

    async def scenario(client: Client) -> None:
        admin = Admin(client)
        await admin.create_topic(topic, queues=3)
        assert topic in await admin.topics()
        assert await admin.masters() == {"broker-a": cluster.broker_address}
        assert len(await admin.topic_stats(topic)) == 3
        assert (await admin.broker_config(cluster.broker_address))["brokerName"] == "broker-a"
        assert "putTps" in await admin.runtime_info(cluster.broker_address)
        await admin.delete_topic(topic)
        assert not await admin.topic_exists(topic)

    run(cluster, scenario)


@pytest.mark.ours_only
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_it_goes_on_within_seconds_after_the_broker_was_restarted(new_cluster: NewCluster, clean: bool) -> None:
    topic, group = new_name("Topic"), new_name("Group")

    async def scenario(client: Client, cluster: Cluster) -> None:
        await Admin(client).create_topic(topic, queues=4)
        got = Collected()
        consumer = PushConsumer(client, group, got, FROM_FIRST)
        consumer.subscribe(topic)
        async with consumer, Producer(client) as producer:
            await settled(client, topic, consumer)
            for number in range(20):
                await producer.send(Message(topic=topic, body=b"%d" % number), delay="2s" if number % 2 else None)
            await until(lambda: len(got.messages) >= 10)
            await asyncio.to_thread(cluster.stop if clean else cluster.kill)
            await asyncio.to_thread(cluster.start)
            ready = time.monotonic()
            await producer.send(Message(topic=topic, body=b"after"), timeout_ms=4_000)
            await until(lambda: b"after" in got.bodies)
            assert time.monotonic() - ready < 4
            await until(lambda: len(got.messages) >= 21)
            await asyncio.sleep(1)
        assert Counter(got.bodies) == Counter([*(b"%d" % number for number in range(20)), b"after"])

    with new_cluster() as cluster:
        run(cluster, lambda client: scenario(client, cluster))
