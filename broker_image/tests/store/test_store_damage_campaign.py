"""Flipped bits in logs of mixed content affect only the messages that they hit.

DELAYMQ_DAMAGES (default 250) is the number of single flips, and a fifth of it that of double ones; DELAYMQ_SEED chooses
them. Each is tried on a store with a snapshot and on one without.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from delaymq.message.record import QUEUE_ID_AT, QUEUE_ID_BYTES, QUEUE_OFFSET_AT, QUEUE_OFFSET_BYTES
from delaymq_testing.repetitions import DAMAGES, SEED
from delaymq_testing.store.damage_campaign import (
    Outcome,
    Template,
    Workload,
    build,
    damage,
    flip,
    look,
    outcome,
    problems_of,
    run_case,
)
from delaymq_testing.store.plain_reader import read_log
from delaymq_testing.store.recording import QuietFiles

SHARES = 4
HEAD_BYTES = 88
KINDS = {"Orders", "Bills", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "Paid"}
KINDS |= {"Delayed", "Retried", "%RETRY%readers", "%DLQ%readers"}
TIMED_KINDS = ("rmq_sys_wheel_timer", "Timed", "%DLQ%SCHEDULE_CONSUMER", "rmq_sys_delaymq_marks")
"""Topics of pending timed messages, and of the records that end them."""
TIMED_FLIPS = 30


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A thousand recoveries report what they put right."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(300 + DAMAGES)
@pytest.mark.parametrize("share", range(SHARES))
def test_flipped_bits_affect_only_the_messages_that_they_hit(tmp_path: Path, share: int) -> None:
    templates = build(tmp_path, QuietFiles(), SEED * SHARES + share)
    assert {record.topic for record in templates[0].records} >= KINDS | {*TIMED_KINDS}
    assert any(":carried:" in record.properties.get("__DMQ_MARK", "") for record in templates[0].records)
    failures = []
    for number in range(share, DAMAGES + DAMAGES // 5, SHARES):
        chance = random.Random(f"{SEED} {number}")
        flips = damage(templates[0], chance, double=number >= DAMAGES)
        for with_snapshot in (True, False):
            template = chance.choice([each for each in templates if each.has_snapshot is with_snapshot])
            problems = run_case(template, tmp_path / "case", QuietFiles(), flips)
            failures += [f"flip {number}, {template.name}, {flips}: {problem}" for problem in problems]
    assert failures == []


@pytest.mark.timeout(900)
def test_bits_of_a_record_header_affect_only_its_message(tmp_path: Path) -> None:
    """Two runs with consecutive seeds try all bits."""
    templates = build(tmp_path, QuietFiles(), SEED, small=True)
    chance = random.Random(SEED)
    failures = []
    for position in range(SEED % 2, HEAD_BYTES * 8, 2):
        record = chance.choice(templates[0].records)
        template = chance.choice(templates)
        flips = [(record.at + position // 8, position % 8)]
        problems = run_case(template, tmp_path / "case", QuietFiles(), flips)
        failures += [f"byte {position // 8}, bit {position % 8}, {template.name}: {problem}" for problem in problems]
    assert failures == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("topic", TIMED_KINDS)
def test_flipped_place_of_a_timed_record_affects_no_message(tmp_path: Path, topic: str) -> None:
    """Queue id, queue offset and topic: no checksum covers them, but a statement with one names the queue."""
    templates = build(tmp_path, QuietFiles(), SEED)
    chance = random.Random(f"{SEED} {topic}")
    records = [record for record in templates[0].records if record.topic == topic]
    queues = Counter(record.queue_id for record in records)
    # Nothing shows that the only record of a real topic's queue is missing there.
    records = [record for record in records if queues[record.queue_id] > 1]
    failures = []
    for number in range(TIMED_FLIPS):
        record = chance.choice(records)
        place = [
            *range(QUEUE_ID_AT, QUEUE_ID_AT + QUEUE_ID_BYTES),
            *range(QUEUE_OFFSET_AT, QUEUE_OFFSET_AT + QUEUE_OFFSET_BYTES),
            *range(HEAD_BYTES + len(record.body) + 1, HEAD_BYTES + len(record.body) + 1 + len(topic)),
        ]
        # Recovery does not read the log before a snapshot.
        template = chance.choice([each for each in templates if not each.has_snapshot])
        flips = [(record.at + chance.choice(place), chance.randrange(8))]
        template.write(tmp_path / "case")
        flip(tmp_path / "case", flips)
        found = outcome(tmp_path / "case", QuietFiles(), template.end_ms, template.owners)
        failures += [f"flip {number}, {template.name}, {flips}: {each}" for each in problems_of(template, found, [])]
    assert failures == []


@pytest.fixture
def sound(tmp_path: Path) -> tuple[Template, Outcome]:
    template = build(tmp_path, QuietFiles(), SEED, small=True)[0]
    template.write(tmp_path / "case")
    return template, outcome(tmp_path / "case", QuietFiles(), template.end_ms, template.owners)


def test_campaign_counts_lost_duplicated_moved_and_unreachable_messages(sound: tuple[Template, Outcome]) -> None:
    template, found = sound
    assert problems_of(template, found, []) == []
    record = next(record for record in template.records if record.topic == "Orders")
    key = template.owners[record.at]
    found.fates[key]["Orders"] += 1
    assert problems_of(template, found, []) == [f"{key} is duplicated: {{'Orders': 1}} expected, {{'Orders': 2}} found"]
    assert problems_of(template, found, [(record.at, 0)]) == []
    found.fates[key] = Counter()
    assert problems_of(template, found, [])[0].startswith(f"{key} is lost")
    found.unreachable.add(key)
    assert problems_of(template, found, []) == [f"{key} is unreachable"]
    del found.numbers[record.at]
    assert "moved to None" in problems_of(template, found, [])[1]


def test_campaign_detects_a_queue_that_lost_an_entry(tmp_path: Path) -> None:
    work = Workload(tmp_path / "other", QuietFiles(), SEED)
    work.plain()
    work.broker.close()
    [record] = read_log(work.path)
    path = work.path / "consumequeue" / record.topic / str(record.queue_id) / f"{0:020d}"
    path.write_bytes(bytes(path.stat().st_size))
    (work.path / "delaymq/snapshot.json").unlink()
    found = outcome(work.path, QuietFiles(), work.clock(), {record.at: "M"})
    assert found.fates["M"] == {record.topic: 1}, "a start rebuilds it"
    path.write_bytes(bytes(path.stat().st_size))
    assert look(work.path, {record.at: "M"}, work.clock() + 1).unreachable == {"M"}
