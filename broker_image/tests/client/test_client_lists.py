"""Messages handled in lists: decoding of a pull, offsets, ids and batches, compared with a message at a time."""

import asyncio
import copy
import pickle
import random
from collections.abc import Sequence

import pytest
from delaymq.client import BatchPushConsumer, ConsumeFrom, Message, PushConsumerOptions, ReceivedMessage, decoding
from delaymq.client.consumer.queues.process_queue import CacheTotal, ProcessQueue
from delaymq.client.consumer.queues.queue_reader import QueueReader
from delaymq.client.core.queue_calls import _check_order
from delaymq.client.decoding import received, stored_messages
from delaymq.client.errors import BadAnswerError
from delaymq.client.messages import next_attempt
from delaymq.client.sending.batches import batch_body
from delaymq.client.sending.properties import outgoing_properties, properties_text
from delaymq.message.errors import RecordError
from delaymq.message.ids import UniqueIds, offset_message_id, pack_host
from delaymq.message.record import decode_record, encode_record
from delaymq.protocol.batch import decode_batch
from delaymq.protocol.bodies import MessageQueue
from delaymq_testing.client.fake_peer import FakeBroker, run, running, until
from msgspec.structs import replace

SEEDS = range(5)
QUEUE = MessageQueue("b", 3, "T")
RETRY = MessageQueue("b", 0, "%RETRY%G")


def cached(offset: int, size_bytes: int) -> ReceivedMessage:
    return ReceivedMessage(
        topic="T", body=bytes(size_bytes), queue=QUEUE, queue_offset=offset, physical_offset=0, message_id="",
        offset_message_id="", properties={}, born_timestamp_ms=0, store_timestamp_ms=0, reconsume_times=0,
    )  # fmt: skip


# Offsets.


@pytest.mark.parametrize("seed", SEEDS)
def test_lists_finished_in_any_order_leave_the_state_of_a_simple_model(seed: int) -> None:
    chance = random.Random(seed)
    total = CacheTotal(200, 10_000, lambda: None)
    queue = ProcessQueue(7, total)
    unfinished: dict[int, int] = {}
    following = 7
    for _ in range(300):
        if chance.random() < 0.4:
            new = {following + step: chance.randrange(50) for step in chance.sample(range(20), chance.randrange(12))}
            following += 20 if new else chance.randrange(3)
            queue.add([cached(offset, new[offset]) for offset in sorted(new)], following)
            unfinished |= new
        else:
            known = list(unfinished)
            done = chance.sample(known, chance.randrange(min(len(known), 9) + 1))
            # Also offsets that are finished, unknown or repeated.
            queue.finish([*done, *done[:1], chance.randrange(following + 5) if not known else -1])
            for offset in done:
                del unfinished[offset]
            if not known:
                unfinished.clear()
        first = min(unfinished, default=following)
        assert (queue.commit_offset, queue.pulled_to, queue.span) == (first, following, following - first)
        assert queue.offsets == ((first, max(unfinished)) if unfinished else None)
        assert (queue.count, queue.size_bytes) == (len(unfinished), sum(unfinished.values()))
        assert (total.count, total.size_bytes) == (queue.count, queue.size_bytes)
    queue.release()
    assert (total.count, total.size_bytes) == (0, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_commits_never_pass_an_unfinished_message(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    unfinished = set(range(150))
    ahead: list[tuple[int | None, int]] = []
    finish = QueueReader.finish

    def finished(reader: QueueReader, messages: Sequence[ReceivedMessage]) -> None:
        unfinished.difference_update(message.queue_offset for message in messages)
        finish(reader, messages)
        offset, first = reader.commit_offset, min(unfinished, default=150)
        if offset is None or offset > first:
            ahead.append((offset, first))

    async def handle(messages: Sequence[ReceivedMessage]) -> int:
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        return chance.randrange(len(messages) + 1)

    async def scenario() -> None:
        broker = FakeBroker()
        for number in range(150):
            broker.add("T", b"%d" % number)
        options = PushConsumerOptions(consume_from=ConsumeFrom.FIRST, batch=chance.randrange(2, 9), concurrency=5)
        async with running(broker) as (client, _):
            consumer = BatchPushConsumer(client, "G", handle, options)
            consumer.subscribe("T")
            async with consumer:
                await until(lambda: not unfinished)
        assert broker.committed == 150

    monkeypatch.setattr(QueueReader, "finish", finished)
    run(scenario)
    assert not ahead


@pytest.mark.parametrize("seed", SEEDS)
def test_pulls_are_accepted_only_with_ascending_offsets(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(500):
        offsets = [chance.randrange(6) for _ in range(chance.randrange(4))]
        offset, following = chance.randrange(4), chance.randrange(8)
        valid = sorted(set(offsets)) == offsets and all(offset <= each < following for each in offsets)
        if valid and offset < following:
            _check_order("b:1", offset, offsets, following)
        else:
            with pytest.raises(BadAnswerError):
                _check_order("b:1", offset, offsets, following)


# Decoding.


def some_record(chance: random.Random) -> bytes:
    hosts = [pack_host("10.0.0.1", 80), pack_host("2001:db8::1", 81)]
    properties = {"UNIQ_KEY": "U1", "KEYS": "a b", "TAGS": "Ä", "RETRY_TOPIC": "First", "DELAY": "3"}
    kept = {name: value for name, value in properties.items() if chance.random() < 0.6}
    return encode_record(
        topic=chance.choice(["T", "Täg", "%RETRY%G"]).encode(), queue_id=chance.choice([0, 3]),
        queue_offset=chance.randrange(2**40), physical_offset=chance.randrange(2**50), flag=chance.randrange(-5, 5),
        sys_flag=chance.choice([0, 2, 4]), born_timestamp_ms=chance.randrange(2**42), born_host=chance.choice(hosts),
        store_timestamp_ms=chance.randrange(2**42), store_host=chance.choice(hosts),
        reconsume_times=chance.randrange(9), prepared_transaction_offset=chance.randrange(9),
        body=chance.randbytes(chance.randrange(40)),
        properties="\x02".join(f"{name}\x01{value}" for name, value in kept.items()).encode(),
    )  # fmt: skip


@pytest.mark.parametrize("source", [QUEUE, RETRY, None])
def test_messages_of_a_pull_have_the_values_of_their_records(source: MessageQueue | None) -> None:
    chance = random.Random(1)
    records = [some_record(chance) for _ in range(300)]
    messages = stored_messages(b"".join(records), "b", retry_topic="%RETRY%G", source=source)
    assert len(messages) == len(records)
    for data, message in zip(records, messages, strict=True):
        record = decode_record(data)
        own_id = offset_message_id(record.store_host, record.physical_offset)
        wanted = ReceivedMessage(
            topic=record.properties.get("RETRY_TOPIC", record.topic) if record.topic == "%RETRY%G" else record.topic,
            body=record.body, queue=MessageQueue("b", record.queue_id, record.topic), queue_offset=record.queue_offset,
            physical_offset=record.physical_offset, message_id=record.properties.get("UNIQ_KEY", own_id),
            offset_message_id=own_id, properties=record.properties, born_timestamp_ms=record.born_timestamp_ms,
            store_timestamp_ms=record.store_timestamp_ms, reconsume_times=record.reconsume_times, flag=record.flag,
            sys_flag=record.sys_flag,
        )  # fmt: skip
        assert repr(message) == repr(wanted)
        assert message == wanted == received(record, "b", "%RETRY%G")
        assert (message.tags, message.keys) == (wanted.tags, wanted.keys)


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_pulls_give_the_messages_that_a_record_at_a_time_gives(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(300):
        damaged = bytearray(b"".join(some_record(chance) for _ in range(3)))
        for _ in range(chance.randrange(3)):
            damaged[chance.randrange(len(damaged))] = chance.choice([0, 0x7F, 0xFF, chance.randrange(256)])
        data = bytes(damaged)
        wanted: list[ReceivedMessage] | None = []
        at = 0
        while wanted is not None and at < len(data):
            try:
                record = decode_record(data, at)
                wanted.append(received(record, "b", "%RETRY%G"))
                at += record.size
            except RecordError:
                size = decoding._bytes_of_damaged(data, at)
                wanted = None if size is None else wanted
                at += size or 0
        for source in (QUEUE, RETRY):
            try:
                found = stored_messages(data, "b", retry_topic="%RETRY%G", source=source)
            except RecordError:
                assert wanted is None
            else:
                assert found == wanted


def test_received_messages_are_compared_copied_and_pickled_by_value_and_cannot_be_assigned() -> None:
    [message] = stored_messages(some_record(random.Random(2)), "b")
    for same in (copy.copy(message), copy.deepcopy(message), pickle.loads(pickle.dumps(message))):
        assert same == message
    again = next_attempt(message)
    assert again != message
    assert again.reconsume_times == message.reconsume_times + 1
    assert (again.message_id, again.queue_offset) == (message.message_id, message.queue_offset)
    assert message != "another type"
    with pytest.raises(AttributeError):
        message.body = b"other"
    with pytest.raises(TypeError):
        hash(message)


# Sends.


def test_ids_created_together_are_unique() -> None:
    ids = UniqueIds()
    found = [ids.next(), *ids.next_ones(3_000), *ids.next_ones(0), ids.next(), *ids.next_ones(1)]
    assert len(set(found)) == len(found) == 3_003
    assert {len(each) for each in found} == {len(found[0])}


def test_messages_of_a_batch_have_the_properties_of_single_sends() -> None:
    chance = random.Random(3)
    messages = [
        Message(
            topic="T", body=b"%d" % number, flag=chance.randrange(3), tags=chance.choice(["", "Ä"]),
            keys=chance.choice([(), ("k", "l")]), properties=chance.choice([{}, {"color": "rot", "Größe": "5"}]),
            delay=chance.choice([None, "0s", "5s"]),
        )
        for number in range(100)
    ]  # fmt: skip
    body, has_timed = batch_body(messages, [f"ID{number}" for number in range(100)])
    assert has_timed
    for number, (message, entry) in enumerate(zip(messages, decode_batch(body), strict=True)):
        wanted = outgoing_properties(message, f"ID{number}") | (
            {"TIMER_DELAY_MS": "5000"} if message.delay == "5s" else {}
        )
        assert entry == (message.flag, message.body, properties_text(wanted).encode())
    assert not batch_body([replace(messages[0], delay=None)], ["ID"])[1]
