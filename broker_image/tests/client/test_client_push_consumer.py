"""Consumers against a scripted broker: what is committed, what goes back, and how it goes on after trouble."""

import asyncio
import zlib
from dataclasses import replace

import pytest
from client_fake_peer import FakeBroker, run, running, until
from delaymq.client import (
    Client,
    ConsumeFrom,
    MessageModel,
    Outcome,
    PushConsumer,
    PushConsumerOptions,
    ReceivedMessage,
    queue_calls,
)
from delaymq.client.options import ClientOptions
from delaymq.message.flags import COMPRESSED
from delaymq.message.properties import parse_properties
from delaymq.protocol.bodies import HeartbeatData, MessageQueue, ResetOffset
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, Response, encode_response

QUICK = PushConsumerOptions(
    consume_from=ConsumeFrom.FIRST, commit_interval_ms=20, close_timeout_ms=200, local_retry_ms=20
)


def subscribed(client: Client, handler: object, options: PushConsumerOptions = QUICK, tags: str = "*") -> PushConsumer:
    consumer = PushConsumer(client, "G", handler, options)  # type: ignore[arg-type]
    consumer.subscribe("T", tags)
    return consumer


class Collected:
    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


def test_messages_are_handled_and_their_offset_is_committed() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        got = Collected()
        async with running(broker) as (client, _), subscribed(client, got):
            for number in range(3):
                broker.add("T", b"%d" % number, TAGS="A")
            await until(lambda: broker.committed == 3)
        assert got.bodies == [b"0", b"1", b"2"]
        assert got.messages[2].queue == MessageQueue("broker-a", 0, "T")

    run(scenario)


def test_an_offset_is_never_committed_past_a_message_that_is_not_done() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        release = asyncio.Event()
        done: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"1":
                await release.wait()
            done.append(message.body)

        for number in range(4):
            broker.add("T", b"%d" % number)
        async with running(broker) as (client, _), subscribed(client, handle):
            await until(lambda: len(done) == 3 and broker.committed is not None)
            await asyncio.sleep(0.06)
            assert broker.committed == 1
            release.set()
            await until(lambda: broker.committed == 4)

    run(scenario)


def test_a_handler_that_hangs_at_close_is_cancelled_and_its_message_stays_uncommitted() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        started = asyncio.Event()

        async def hang(message: ReceivedMessage) -> None:
            if message.body == b"hang":
                started.set()
                await asyncio.Event().wait()

        broker.add("T", b"ok")
        broker.add("T", b"hang")
        async with running(broker) as (client, _):
            async with subscribed(client, hang):
                await started.wait()
            assert broker.committed == 1
            assert {command.fields["consumerGroup"] for command in broker.asked(RequestCode.UNREGISTER_CLIENT)} == {"G"}

    run(scenario)


def test_pulling_pauses_when_too_much_is_not_handled() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        release = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            await release.wait()

        for number in range(200):
            broker.add("T", b"%d" % number)
        options = PushConsumerOptions(
            consume_from=ConsumeFrom.FIRST, max_cached_messages=64, commit_interval_ms=20, concurrency=4
        )

        def pulled_from() -> list[int]:
            pulls = broker.asked(RequestCode.PULL_MESSAGE)
            return [int(each.fields["queueOffset"]) for each in pulls if each.fields["topic"] == "T"]

        async with running(broker) as (client, _), subscribed(client, handle, options):
            await until(lambda: len(pulled_from()) == 2)
            await asyncio.sleep(0.05)
            assert pulled_from() == [0, 32]
            release.set()
            await until(lambda: broker.committed == 200)

    run(scenario)


def test_a_failed_message_is_sent_back() -> None:
    async def scenario() -> None:
        broker = FakeBroker()

        async def fail(message: ReceivedMessage) -> Outcome:
            if message.body == b"0":
                raise ValueError("as scripted")
            return Outcome.RETRY

        broker.add("T", b"0")
        broker.add("T", b"1")
        async with running(broker) as (client, _), subscribed(client, fail):
            await until(lambda: broker.committed == 2)
        backs = sorted(broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK), key=lambda each: each.fields["offset"])
        assert [each.fields["offset"] for each in backs] == ["0", "1000"]
        assert backs[0].fields | {"offset": ""} == {
            "offset": "", "group": "G", "delayLevel": "0", "originMsgId": "ID0", "originTopic": "T",
            "unitMode": "false", "maxReconsumeTimes": "16",
        }  # fmt: skip

    run(scenario)


def test_when_sending_back_is_refused_its_copy_goes_to_the_retry_topic() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.scripts[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda _: Response(ResponseCode.SYSTEM_ERROR, "no")

        async def fail(message: ReceivedMessage) -> Outcome:
            return Outcome.RETRY

        broker.add("T", b"0", TAGS="A", REAL_TOPIC="T", __DMQ_MARK="delivered:0:0:0")
        async with running(broker) as (client, _), subscribed(client, fail):
            await until(lambda: broker.committed == 1)
        [(body, fields)] = broker.sent()
        properties = parse_properties(fields["i"])
        assert (body, fields["b"], fields["j"], fields["l"]) == (b"0", "%RETRY%G", "1", "16")
        assert properties == {
            "UNIQ_KEY": "ID0", "TAGS": "A", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": "ID0",
            "RECONSUME_TIME": "1", "MAX_RECONSUME_TIMES": "16", "DELAY": "3",
        }  # fmt: skip

    run(scenario)


def test_in_broadcasting_nothing_is_sent_back_and_offsets_stay_here(tmp_path: object) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        path = tmp_path / "offsets.json"  # type: ignore[operator]
        options = PushConsumerOptions(
            model=MessageModel.BROADCASTING, consume_from=ConsumeFrom.FIRST, commit_interval_ms=20, offsets_path=path
        )
        got = Collected()

        async def fail_once(message: ReceivedMessage) -> Outcome | None:
            await got(message)
            return Outcome.RETRY if message.body == b"0" else None

        broker.add("T", b"0")
        broker.add("T", b"1")
        for _ in range(2):
            async with running(broker) as (client, _), subscribed(client, fail_once, options):
                await until(lambda: path.exists() and len(got.messages) >= 2)
                await asyncio.sleep(0.05)
        assert got.bodies == [b"0", b"1"]
        assert ResetOffset.decode(path.read_bytes()).offset_table == {MessageQueue("broker-a", 0, "T"): 2}
        assert broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK) == []
        assert broker.committed is None

    run(scenario)


def test_it_goes_on_where_it_was_after_the_broker_came_back_and_tells_it_who_it_is() -> None:
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


def test_heartbeats_tell_what_is_subscribed() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), subscribed(client, Collected(), tags="A || B"):
            await until(lambda: bool(broker.members))
            data = HeartbeatData.decode(broker.asked(RequestCode.HEART_BEAT)[-1].body)
        assert data.client_id == client.client_id
        [consumer] = data.consumer_data_set
        assert (consumer.group_name, consumer.consume_type) == ("G", "CONSUME_PASSIVELY")
        subscriptions = {each.topic: each for each in consumer.subscription_data_set}
        assert subscriptions.keys() == {"T", "%RETRY%G"}
        assert subscriptions["T"].sub_string == "A || B"
        assert subscriptions["T"].tags_set == ["A", "B"]
        assert subscriptions["T"].code_set == [65, 66]

    run(scenario)


def test_queues_move_at_once_when_the_broker_tells_of_a_new_member() -> None:
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


def test_an_offset_that_is_gone_is_corrected_to_what_the_broker_has() -> None:
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


def test_an_administrator_can_set_the_group_back() -> None:
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


def test_a_reset_that_the_broker_does_not_take_holds_though_the_shares_were_worked_out_meanwhile() -> None:
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


@pytest.mark.parametrize(
    ("options", "first"),
    [
        (PushConsumerOptions(consume_from=ConsumeFrom.LAST), "3"),
        (PushConsumerOptions(consume_from=ConsumeFrom.FIRST), "0"),
        (PushConsumerOptions(consume_from=ConsumeFrom.TIMESTAMP, consume_timestamp_ms=5), "2"),
    ],
)
def test_a_new_group_begins_where_its_options_say(options: PushConsumerOptions, first: str) -> None:
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


def test_an_ordered_consumer_does_not_pull_before_it_has_the_lock() -> None:
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


def test_a_client_without_any_peer_closes_cleanly() -> None:
    async def scenario() -> None:
        async with Client("127.0.0.1:1", ClientOptions(connect_timeout_ms=200)) as client:
            consumer = subscribed(client, Collected())
            await consumer.start()
            await asyncio.sleep(0.05)

    run(scenario)


def test_after_a_broker_was_killed_offsets_are_committed_again() -> None:
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


def test_a_group_is_set_back_also_when_the_broker_does_not_take_the_offset() -> None:
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


def test_a_client_that_is_closed_while_a_consumer_closes_lets_it_commit_first() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        broker.add("T", b"0")
        started, end = asyncio.Event(), asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            started.set()
            await end.wait()

        async with running(broker) as (client, _):
            consumer = subscribed(client, handle, replace(QUICK, close_timeout_ms=10_000))
            await consumer.start()
            await started.wait()
            closes = [asyncio.create_task(consumer.close())]
            await asyncio.sleep(0.01)
            closes += [asyncio.create_task(client.close()), asyncio.create_task(client.close())]
            await asyncio.sleep(0.05)
            end.set()
            await asyncio.gather(*closes)
            assert broker.committed == 1

    run(scenario)


def test_a_client_has_one_consumer_of_a_group() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), subscribed(client, Collected()):
            with pytest.raises(ValueError, match="make another Client"):
                await subscribed(client, Collected()).start()

    run(scenario)


def test_a_close_that_is_cancelled_leaves_nothing_running() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        started = asyncio.Event()

        async def hang(message: ReceivedMessage) -> None:
            started.set()
            await asyncio.Event().wait()

        broker.add("T", b"0")
        async with running(broker) as (client, _):
            consumer = subscribed(client, hang, PushConsumerOptions(consume_from=ConsumeFrom.FIRST))
            await consumer.start()
            await started.wait()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await consumer.close()
            assert consumer.assigned == []
            assert broker.committed is None
        await asyncio.sleep(0)

    run(scenario)


def test_a_body_that_cannot_be_inflated_does_not_hold_up_the_queue() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        got = Collected()
        broker.add("T", b"not zlib", sys_flag=1)
        broker.add("T", b"next")
        async with running(broker) as (client, _), subscribed(client, got):
            await until(lambda: broker.committed == 2)
        assert got.bodies == [b"not zlib", b"next"]

    run(scenario)


@pytest.mark.parametrize("at", [1, 0, -5])
def test_an_answer_that_does_not_move_on_is_refused_and_the_queue_is_asked_again(at: int) -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        got = Collected()
        for body in (b"0", b"1", b"2"):
            broker.add("T", body)
        pull = broker.scripts[RequestCode.PULL_MESSAGE]
        wrong = []

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


def test_what_inflates_to_much_is_not_inflated_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_calls, "ENOUGH_BYTES", 250_000)

    async def scenario() -> None:
        broker = FakeBroker()
        release = asyncio.Event()
        got: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            await release.wait()
            got.append(len(message.body))

        for _ in range(10):
            broker.add("T", zlib.compress(bytes(100_000)), sys_flag=COMPRESSED)
        options = replace(QUICK, max_cached_bytes=250_000)
        async with running(broker) as (client, _), subscribed(client, handle, options) as consumer:
            await until(lambda: consumer.stats().cached_messages > 0)
            await asyncio.sleep(0.05)  # for what would come too much
            assert consumer.stats().cached_messages == 3
            release.set()
            await until(lambda: broker.committed == 10)
        assert got == [100_000] * 10

    run(scenario)


def test_a_queue_is_given_up_with_what_its_running_handlers_have_done() -> None:
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


def test_a_queue_that_another_member_may_still_have_is_not_begun_at_once() -> None:
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


def test_a_close_while_shares_are_worked_out_commits_what_is_done() -> None:
    async def scenario() -> None:
        options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, commit_interval_ms=60_000, close_timeout_ms=100)
        for changed_meanwhile in ("members", "nothing"):
            broker = FakeBroker()
            done = asyncio.Event()

            async def handle(message: ReceivedMessage, done: asyncio.Event = done) -> None:
                if message.body == b"hangs":
                    done.set()
                    await asyncio.Event().wait()

            for body in (b"0", b"1", b"hangs"):
                broker.add("T", body)
            async with running(broker) as (client, _):
                async with subscribed(client, handle, options):
                    await done.wait()
                    if changed_meanwhile == "members":
                        broker.members.append("0")
                    broker.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "G"})
                    await asyncio.sleep(0.1)  # the queue is being given up, or all is as before
                assert broker.committed == 2

    run(scenario)


def test_a_member_that_leaves_right_after_a_brokers_restart_tells_it() -> None:
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
