"""Queues of a consumer against a scripted broker: start positions, rebalances, and recovery."""

import asyncio
from dataclasses import replace

import pytest
from delaymq.client import (
    ConsumeFrom,
    PushConsumerOptions,
    ReceivedMessage,
)
from delaymq.protocol.bodies import MessageQueue, ResetOffset
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response, encode_response
from delaymq_testing.client.consuming import QUICK, Collected, subscribed
from delaymq_testing.client.fake_peer import FakeBroker, run, running, until


def test_consumer_continues_and_reregisters_after_the_broker_returns() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        got = Collected()
        broker.add("T", b"0")
        async with running(broker) as (client, _), subscribed(client, got):
            await until(lambda: broker.committed == 1)
            await broker.stop()
            broker.requests.clear()
            broker.members.clear()
            broker.add("T", b"1")
            await broker.start()
            await until(lambda: broker.committed == 2)
            assert broker.requests[0].code == RequestCode.HEART_BEAT
        assert got.bodies == [b"0", b"1"]

    run(scenario)


def test_notification_of_a_new_member_rebalances_immediately() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker, queues=2) as (client, _):
            consumer = subscribed(client, Collected())
            async with consumer:
                await until(lambda: sum(queue.topic == "T" for queue in consumer.assigned) == 2)
                broker.members.append("zzz@other")
                broker.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "G"})
                await until(lambda: [q.queue_id for q in consumer.assigned if q.topic == "T"] == [0])

    run(scenario)


def test_deleted_offset_is_corrected_to_the_brokers_range() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.committed = 99
        broker.add("T", b"lost")
        got = Collected()
        async with running(broker) as (client, _), subscribed(client, got):
            await until(lambda: broker.committed == 1)
            broker.add("T", b"new")
            # The held pull is not answered by the fake: what breaks the connection lets it be asked again.
            for connection in broker.connections:
                connection.abort()
            await until(lambda: broker.committed == 2)
        assert got.bodies == [b"new"]

    run(scenario)


def test_administrator_can_reset_the_group() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        got = Collected()
        broker.add("T", b"0")
        broker.add("T", b"1")
        async with running(broker) as (client, _), subscribed(client, got):
            await until(lambda: broker.committed == 2)
            table = ResetOffset(offset_table={MessageQueue("broker-a", 0, "T"): 1})
            fields = {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true"}
            broker.tell(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, table.encode())
            await until(lambda: len(got.messages) == 3)
        assert got.bodies == [b"0", b"1", b"1"]

    run(scenario)


def test_reset_not_stored_by_the_broker_survives_a_rebalance() -> None:
    async def scenario() -> None:
        broker, got, go_on = FakeBroker(), Collected(), asyncio.Event()
        held: list[Command] = []

        async def handle(message: ReceivedMessage) -> None:
            await got(message)
            if message.body == b"2":
                await go_on.wait()

        def hold(command: Command) -> None:
            held.append(command)

        for number in range(3):
            broker.add("T", b"%d" % number)
        options = replace(QUICK, concurrency=1, close_timeout_ms=60_000)
        async with running(broker) as (client, _), subscribed(client, handle, options) as consumer:
            await until(lambda: broker.committed == 2 and len(got.messages) == 3)
            broker.scripts[RequestCode.UPDATE_CONSUMER_OFFSET] = hold
            former = [reader for reader in consumer._assignment.readers if reader.queue.topic == "T"]
            consumer.reset_offsets({MessageQueue("broker-a", 0, "T"): 1})
            await until(lambda: any(command.fields["commitOffset"] == "1" for command in held))
            consumer.subscribe("T")
            await until(lambda: [r for r in consumer._assignment.readers if r.queue.topic == "T"] not in ([], former))
            [connection] = [each for each in broker.connections if not each.closing]
            del broker.scripts[RequestCode.UPDATE_CONSUMER_OFFSET]
            for command in held:
                connection.send(encode_response(command, Response(ResponseCode.SYSTEM_ERROR, "no")))
            await until(lambda: not consumer._assignment._saving.locked())
            go_on.set()
            await until(lambda: len(got.messages) == 5)
            assert got.bodies == [b"0", b"1", b"2", b"1", b"2"]

    run(scenario)


def test_nothing_is_pulled_by_old_tags_after_a_change_during_a_rebalance() -> None:
    async def scenario() -> None:
        broker, got = FakeBroker(), Collected()
        members, asked = broker.scripts[RequestCode.GET_CONSUMER_LIST_BY_GROUP], []

        def hold_the_second(command: Command) -> Response | None:
            asked.append(command)  # for the retry topic, then for T
            return None if len(asked) == 2 else members(command)

        broker.add("T", b"1", TAGS="A")
        async with running(broker) as (client, _), subscribed(client, got, tags="A") as consumer:
            await until(lambda: broker.committed == 1)
            broker.scripts[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = hold_the_second
            broker.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "G"})
            await until(lambda: len(asked) == 2)
            consumer.subscribe("T", "B")
            broker.add("T", b"3", TAGS="A")
            broker.add("T", b"4", TAGS="B")
            [connection] = [each for each in broker.connections if not each.closing]
            answer = members(asked[1])
            assert answer is not None
            connection.send(encode_response(asked[1], answer))
            await until(lambda: broker.committed == 3)
        assert got.bodies == [b"1", b"4"]

    run(scenario)


@pytest.mark.parametrize(
    ("options", "first"),
    [
        (PushConsumerOptions(consume_from=ConsumeFrom.LAST), "3"),
        (PushConsumerOptions(consume_from=ConsumeFrom.FIRST), "0"),
        (PushConsumerOptions(consume_from=ConsumeFrom.TIMESTAMP, consume_timestamp_ms=5), "2"),
    ],
)
def test_new_group_starts_where_its_options_say(options: PushConsumerOptions, first: str) -> None:
    async def scenario() -> None:
        broker = FakeBroker()

        def search(command: Command) -> Response:
            assert command.fields["timestamp"] == "5"
            return Response(fields={"offset": "2"})

        broker.scripts[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = search
        for number in range(3):
            broker.add("T", b"%d" % number)

        def pulls() -> list[str]:
            asked = broker.asked(RequestCode.PULL_MESSAGE)
            return [each.fields["queueOffset"] for each in asked if each.fields["topic"] == "T"]

        async with running(broker) as (client, _), subscribed(client, Collected(), options):
            await until(lambda: bool(pulls()))
        assert pulls()[0] == first

    run(scenario)


def test_ordered_consumer_does_not_pull_before_it_holds_the_lock() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        lock = broker.scripts[RequestCode.LOCK_BATCH_MQ]
        broker.scripts[RequestCode.LOCK_BATCH_MQ] = lambda _: Response(body=b'{"lockOKMQSet":[]}')
        got = Collected()
        for number in range(5):
            broker.add("T", b"%d" % number)
        options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, ordered=True, commit_interval_ms=20)
        async with running(broker) as (client, _):
            async with subscribed(client, got, options):
                await until(lambda: bool(broker.asked(RequestCode.LOCK_BATCH_MQ)))
                assert broker.asked(RequestCode.PULL_MESSAGE) == []
                broker.scripts[RequestCode.LOCK_BATCH_MQ] = lock
                await until(lambda: broker.committed == 5)
            assert len(broker.asked(RequestCode.UNLOCK_BATCH_MQ)) == 1
        assert got.bodies == [b"0", b"1", b"2", b"3", b"4"]

    run(scenario)


def test_offsets_are_committed_again_after_a_broker_was_killed() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.add("T", b"0")
        async with running(broker) as (client, _), subscribed(client, Collected()):
            await until(lambda: broker.committed == 1)
            await broker.stop()
            broker.committed = 0  # what was not yet on its disk
            await broker.start()
            await until(lambda: broker.committed == 1)

    run(scenario)


def test_group_is_reset_even_when_the_broker_rejects_the_offset() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        got = Collected()
        commit = broker.scripts[RequestCode.UPDATE_CONSUMER_OFFSET]

        def refuse_the_first(command: Command) -> Response | None:
            if command.fields["commitOffset"] == "1" and len(got.messages) == 2:
                return Response(ResponseCode.SYSTEM_BUSY, "no")
            return commit(command)

        for body in (b"0", b"1"):
            broker.add("T", body)
        async with running(broker) as (client, _), subscribed(client, got):
            await until(lambda: broker.committed == 2)
            broker.scripts[RequestCode.UPDATE_CONSUMER_OFFSET] = refuse_the_first
            table = ResetOffset(offset_table={MessageQueue("broker-a", 0, "T"): 1})
            fields = {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true"}
            broker.tell(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, table.encode())
            await until(lambda: len(got.messages) == 3)
        assert got.bodies == [b"0", b"1", b"1"]
        assert broker.committed == 2

    run(scenario)


@pytest.mark.parametrize("at", [1, 0, -5])
def test_response_without_progress_is_rejected_and_the_pull_retried(at: int) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        got = Collected()
        for body in (b"0", b"1", b"2"):
            broker.add("T", body)
        pull = broker.scripts[RequestCode.PULL_MESSAGE]
        wrong: list[Command] = []

        def goes_back(command: Command) -> Response | None:
            response = pull(command)
            if response is None or wrong:
                return response
            wrong.append(command)
            return Response(response.code, fields={**response.fields, "nextBeginOffset": str(at)}, body=response.body)

        broker.scripts[RequestCode.PULL_MESSAGE] = goes_back
        async with running(broker) as (client, _), subscribed(client, got):
            await until(lambda: broker.committed == 3)
        assert got.bodies == [b"0", b"1", b"2"]

    run(scenario)


def test_dropped_queue_commits_finished_messages_of_running_handlers() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        started = asyncio.Event()

        async def slow(message: ReceivedMessage) -> None:
            started.set()
            await asyncio.sleep(0.1)

        options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, commit_interval_ms=60_000)
        broker.add("T", b"0")
        async with running(broker) as (client, _):
            consumer = subscribed(client, slow, options)
            async with consumer:
                await started.wait()
                # Sorted before this client, so that the only queue becomes the other member's.
                broker.members.append("0")
                broker.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "G"})
                await until(lambda: broker.committed is not None)
                assert broker.committed == 1
                assert [queue for queue in consumer.assigned if queue.topic == "T"] == []

    run(scenario)


def test_queue_possibly_held_by_another_member_is_not_started_immediately() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.members.append("zzz@other")
        got = Collected()
        broker.add("T", b"old")
        broker.add("T", b"new")
        async with running(broker) as (client, _):
            consumer = subscribed(client, got)
            async with consumer:
                await until(lambda: any(queue.topic == "T" for queue in consumer.assigned))
                broker.committed = 1  # the other member's last word
                await until(lambda: broker.committed == 2)
        assert got.bodies == [b"new"]

    run(scenario)


def test_member_leaving_right_after_a_brokers_restart_unregisters() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _):
            async with subscribed(client, Collected()):
                # Both queues' offsets are saved: a close has nothing to say but goodbye.
                saved = RequestCode.UPDATE_CONSUMER_OFFSET
                await until(lambda: len({each.fields["topic"] for each in broker.asked(saved)}) == 2)
                await broker.stop()
                broker.requests.clear()
                # A pause between two tries of the readers: nobody else connects before the close.
                await asyncio.sleep(0.05)
                await broker.start()
            [goodbye] = broker.asked(RequestCode.UNREGISTER_CLIENT)
            assert goodbye.fields["consumerGroup"] == "G"

    run(scenario)
