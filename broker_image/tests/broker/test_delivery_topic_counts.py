"""Incremental counts of pending messages per topic, against a count over all records."""

import dataclasses
import random
from collections import Counter
from pathlib import Path

import pytest
from delaymq.broker.opening import open_broker
from delaymq.message.levels import queue_of_level
from delaymq.message.names import REAL_TOPIC, SCHEDULE_TOPIC
from delaymq.protocol.codes import RequestCode
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
    classes = harness.broker.delivery.timeline.partitions.classes()
    return Counter({(queue_of_level(key.level), key.topic): totals.messages for key, _, totals in classes})


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
                harness.restart()
            case 5:
                changed = rng.choice((LEVELS, "2s 2s", "10s 1s 1s 1s 3s"))
                set_levels(harness, changed)
            case 6:
                harness.answer(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": rng.choice(topics)})
            case _:
                harness.send(rng.choice(topics), b"x", {"DELAY": str(rng.randint(1, 4))})
        assert counted(harness) == brute_force(harness)
    assert sum(counted(harness).values()) == sum(harness.broker.delivery.pending().values())


def lose_snapshot(harness: Harness) -> None:
    """What the kernel keeps is there at the next start, without the snapshot: the whole log is replayed."""
    harness.broker.store.abandon()
    snapshot = harness.config.store_path / "delaymq/snapshot.json"
    snapshot.unlink()
    harness.broker = open_broker(harness.config, harness.clock)


def test_topics_are_known_after_a_replay_of_the_whole_log(tmp_path: Path) -> None:
    harness = Harness(tmp_path, message_delay_level=LEVELS)
    for number in range(40):
        harness.send(f"T{number % 3}", b"x", {"DELAY": "4"})
    harness.restart()
    assert harness.broker.delivery.pending_of_topic("T1") == 13
    lose_snapshot(harness)
    assert harness.broker.delivery.unknown_topics == 0
    assert counted(harness) == brute_force(harness) == {(3, "T0"): 14, (3, "T1"): 13, (3, "T2"): 13}
