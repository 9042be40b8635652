"""Consumers against a scripted broker: handling, commits, send-backs and heartbeats."""

import asyncio
import zlib
from dataclasses import replace

import pytest
from delaymq.client import ConsumeFrom, MessageModel, Outcome, PushConsumerOptions, ReceivedMessage
from delaymq.client.core import queue_calls
from delaymq.message.flags import COMPRESSED
from delaymq.message.properties import parse_properties
from delaymq.protocol.bodies import HeartbeatData, MessageQueue, ResetOffset
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Response
from delaymq_testing.client.consuming import QUICK, Collected, subscribed
from delaymq_testing.client.fake_peer import FakeBroker, run, running, until


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


def test_offset_is_never_committed_past_an_unfinished_message() -> None:
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


def test_pulling_pauses_above_the_unhandled_limit() -> None:
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


def test_failed_message_is_sent_back() -> None:
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


def test_rejected_send_back_is_copied_to_the_retry_topic() -> None:
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


def test_broadcasting_sends_nothing_back_and_keeps_offsets_locally(tmp_path: object) -> None:
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


def test_heartbeats_contain_the_subscriptions() -> None:
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


def test_client_has_one_consumer_per_group() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        async with running(broker) as (client, _), subscribed(client, Collected()):
            with pytest.raises(ValueError, match="create another Client"):
                await subscribed(client, Collected()).start()

    run(scenario)


def test_uninflatable_body_does_not_block_the_queue() -> None:
    async def scenario() -> None:
        broker = FakeBroker()
        got = Collected()
        broker.add("T", b"not zlib", sys_flag=1)
        broker.add("T", b"next")
        async with running(broker) as (client, _), subscribed(client, got):
            await until(lambda: broker.committed == 2)
        assert got.bodies == [b"not zlib", b"next"]

    run(scenario)


def test_large_inflated_bodies_are_inflated_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
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
