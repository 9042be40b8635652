"""Incremental counts of pending messages per topic, against a count over all records."""

import dataclasses
import random
from array import array
from collections import Counter
from pathlib import Path

import pytest
from delaymq.broker.delivery.pending_topics import QueueTopics
from delaymq.broker.opening import open_broker
from delaymq.message.names import REAL_TOPIC, SCHEDULE_TOPIC
from delaymq.protocol.codes import RequestCode
from delaymq.schedule import LevelQueue, Settled
from delaymq.schedule.inspection import STEP_ENTRIES, Buckets, count_by_due, entries_of, next_entries
from delaymq.store.reader import QUEUE_ENTRY
from delaymq_testing.broker.harness import Harness

LEVELS = "1s 5s 10s 1m"


def kill(harness: Harness) -> None:
    """What the kernel keeps is there at the next start, as after kill -9."""
    harness.broker.store.abandon()
    harness.broker = open_broker(harness.config, harness.clock)


def set_levels(harness: Harness, table: str) -> None:
    harness.config = dataclasses.replace(harness.config, message_delay_level=table)
    harness.broker.apply(harness.config)


def brute_force(harness: Harness) -> Counter[tuple[int, str]]:
    """(queue, topic) → what waits, from every entry's record."""
    store, delivery = harness.broker.store, harness.broker.delivery
    counts: Counter[tuple[int, str]] = Counter()
    for topic, queue_id in store.queues():
        if topic != SCHEDULE_TOPIC:
            continue
        _, end = store.queue_bounds(topic, queue_id)
        for offset in range(end):
            if not delivery.is_settled(queue_id, offset):
                place = QUEUE_ENTRY.unpack(store.read_entries(topic, queue_id, offset, 1))
                record = store.record_at(place[0])
                assert record is not None
                counts[(queue_id, record.properties.get(REAL_TOPIC, ""))] += 1
    return counts


def counted(harness: Harness) -> Counter[tuple[int, str]]:
    queues = harness.broker.delivery.pending_topics.queues
    return Counter(
        {(queue_id, topic): count for queue_id, queue in queues.items() for topic, count in queue.counts().items()}
    )


def learn(harness: Harness, rng: random.Random, most: int) -> None:
    """Reads some of what the start left unknown, as the server does in the background."""
    delivery, store = harness.broker.delivery, harness.broker.store
    for queue_id, offsets in delivery.pending_topics.unknown_ranges(
        lambda *place: not delivery.is_settled(*place), rng.randint(1, 7)
    ):
        for offset in offsets:
            record = store.record_at(QUEUE_ENTRY.unpack(store.read_entries(SCHEDULE_TOPIC, queue_id, offset, 1))[0])
            delivery.pending_topics.queue(queue_id).learn(offset, record.properties[REAL_TOPIC] if record else "")
            most -= 1
        if most <= 0:
            return


@pytest.mark.parametrize("seed", range(4))
def test_counts_equal_a_full_count_through_sends_deliveries_kills_and_level_changes(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    harness = Harness(tmp_path, message_delay_level=LEVELS)
    topics = [f"T{number}" for number in range(6)]
    for _ in range(250):
        match rng.randrange(12):
            case 0:
                harness.clock.advance(rng.choice((100, 2_000, 20_000)))
            case 1 | 2:
                harness.broker.hand_over(harness.clock(), rng.randint(1, 9))
            case 3:
                kill(harness)
            case 4:
                learn(harness, rng, rng.randint(1, 20))
            case 5:
                changed = rng.choice((LEVELS, "2s 2s", "10s 1s 1s 1s 3s"))
                set_levels(harness, changed)
            case 6:
                harness.answer(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": rng.choice(topics)})
            case _:
                harness.send(rng.choice(topics), b"x", {"DELAY": str(rng.randint(1, 4))})
        # What is known and what is not make up all that waits, at any time.
        for queue_id, queue in harness.broker.delivery.pending_topics.queues.items():
            source = harness.broker.delivery.source(queue_id)
            assert source is not None
            assert sum(queue.counts().values()) + queue.unknown == source.pending
        if harness.broker.delivery.pending_topics.complete:
            assert counted(harness) == brute_force(harness)
    learn(harness, rng, 1 << 30)
    assert harness.broker.delivery.pending_topics.complete
    assert counted(harness) == brute_force(harness)
    assert sum(counted(harness).values()) == sum(harness.broker.delivery.pending().values())


def test_topics_are_not_reported_before_counting_after_a_start_is_done(tmp_path: Path) -> None:
    harness = Harness(tmp_path, message_delay_level=LEVELS)
    harness.send("T", b"x", {"DELAY": "4"})
    assert harness.broker.delivery.pending_of_topic("T") == 1
    harness.restart()
    assert harness.broker.delivery.pending_of_topic("T") is None
    learn(harness, random.Random(0), 10)
    assert harness.broker.delivery.pending_of_topic("T") == 1
    assert harness.broker.delivery.pending_of_topic("U") == 0


def test_settled_entries_use_no_memory_for_long() -> None:
    queue = QueueTopics()
    for offset in range(100_000):
        queue.add(offset, f"T{offset}")
        queue.settle(offset, offset + 1)
    assert len(queue.entries) < 20_000
    assert queue.counts() == {}
    assert len(queue._names) == 1


@pytest.mark.parametrize("seed", range(4))
def test_buckets_by_due_time_equal_a_full_count(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    harness = Harness(tmp_path, message_delay_level=LEVELS)
    for _ in range(120):
        harness.send(rng.choice("TU"), b"x", {"DELAY": str(rng.randint(1, 4))})
        harness.clock.advance(rng.randint(0, 400))
        if rng.random() < 0.1:
            harness.broker.hand_over(harness.clock(), rng.randint(1, 5))
        if rng.random() < 0.05:
            table = rng.choice((LEVELS, "3s 1s 20s 2s"))
            set_levels(harness, table)
    now_ms, delivery = harness.clock(), harness.broker.delivery
    width_ms, until_ms = rng.choice((500, 1_000, 7_000)), now_ms + rng.choice((3_000, 90_000))
    buckets = Buckets(now_ms, width_ms, 8, until_ms)
    expected = Buckets(now_ms, width_ms, 8, until_ms)
    for queue_id in range(4):
        source = delivery.source(queue_id)
        if source is None:
            continue
        # What is settled out of order is counted out as well.
        if source.pending > 3:
            source.settled.settle(source.settled.low + 2)
        for _ in count_by_due(source, buckets):
            pass
        waiting = [entry for entry in entries_of(source, lambda offset: True) if entry is not None]
        for due_ms, _ in waiting:
            expected.add(due_ms)
        wanted = sorted(entry for entry in waiting if entry[1] % 3 == 0)[:5]
        first = [entry for entry in entries_of(source, lambda offset: offset % 3 == 0, 5) if entry is not None]
        assert sorted(first)[:5] == wanted
        coming = next_entries(source, 5)
        assert coming == sorted(coming)
        assert all(offset not in source.settled for _, offset in coming)
    assert buckets.counts == expected.counts
    assert buckets.first_ms[1:] == expected.first_ms[1:]


def test_reading_unordered_entries_yields_to_others() -> None:
    count = 5 * STEP_ENTRIES
    queue = LevelQueue(0, Settled())
    queue.give_back([(count - offset, 0, offset, 0) for offset in range(count)])
    assert [len(run.dues) for run in queue.runs() if run.offsets is not None] == [count]
    buckets = Buckets(0, count, 1)
    assert sum(1 for _ in count_by_due(queue, buckets)) == count // STEP_ENTRIES + 1
    assert sum(buckets.counts) == count
    found = list(entries_of(queue, lambda offset: offset % 2 == 0))
    assert found.count(None) == count // STEP_ENTRIES
    assert sorted(each[0] for each in found if each is not None) == list(range(2, count + 1, 2))


def test_first_entries_of_a_topic_are_found_behind_others_and_end_the_search() -> None:
    count = 20 * STEP_ENTRIES
    queue = LevelQueue(0, Settled())
    queue.extend(0, array("q", range(count)))
    rare = list(entries_of(queue, lambda offset: offset >= count - 3, 2))
    assert [each for each in rare if each is not None] == [(count - 3, count - 3), (count - 2, count - 2)]
    common = list(entries_of(queue, lambda offset: True, 2))
    assert common == [(0, 0), (1, 1), None]
