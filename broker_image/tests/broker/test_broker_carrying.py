"""Carrying forward: retention deletes old segments although messages in them are pending."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from delaymq.broker.delivery.timed import carrying
from delaymq.broker.opening import open_broker
from delaymq.message import names
from delaymq.message.marks import parse_due
from delaymq.message.timed_marks import TimedMarkKind, parse_own_due, parse_own_mark
from delaymq.store.disk.files import FileFacts, Files
from delaymq.store.reader import StoreReader
from delaymq_testing.broker.harness import Harness, response_of
from delaymq_testing.broker.smoothing import limit

SEGMENT_BYTES = 64 * 1024
LEVELS = "1s 6d 12d"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

Open = Callable[..., Harness]


class Disk:
    """The disk and the file times, by the clock of the test."""

    def __init__(self) -> None:
        self.used_ratio = 0.5
        self.free_bytes = 1 << 40
        self.modified_ms: dict[str, int] = {}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    facts_of = Files.facts

    def facts(self: Files, path: str) -> FileFacts | None:
        found = facts_of(self, path)
        return found and found._replace(modified_ms=disk.modified_ms.get(path, found.modified_ms))

    monkeypatch.setattr(Files, "facts", facts)
    monkeypatch.setattr(Files, "disk_used_ratio", lambda self, path: disk.used_ratio)
    monkeypatch.setattr(Files, "free_bytes", lambda self, path: disk.free_bytes)
    return disk


@pytest.fixture
def harness(open_harness: Open, disk: Disk) -> Harness:
    return open_harness(mapped_file_size_commit_log=SEGMENT_BYTES, message_delay_level=LEVELS)


def send(harness: Harness, unique: str, due_ms: int, body: bytes = b"x" * 300, **more: str) -> None:
    properties = {"UNIQ_KEY": unique, "TIMER_DELIVER_MS": str(due_ms), **more}
    answer = response_of(harness.send("Orders", body, properties))
    assert answer.code == 0, answer.remark


def send_level(harness: Harness, unique: str, level: int) -> None:
    answer = response_of(harness.send("Orders", b"x" * 300, {"UNIQ_KEY": unique, "DELAY": str(level)}))
    assert answer.code == 0, answer.remark


def fill(harness: Harness, segments: int = 1) -> None:
    """Sends other messages until the log has as many more segments."""
    end = harness.broker.store.end_offset // SEGMENT_BYTES + segments
    while harness.broker.store.end_offset // SEGMENT_BYTES < end:
        assert response_of(harness.send("Other", bytes(2_000))).code == 0


def note_times(harness: Harness, disk: Disk) -> None:
    """The active segment was written now."""
    base = harness.broker.store.end_offset // SEGMENT_BYTES * SEGMENT_BYTES
    disk.modified_ms[f"{harness.config.store_path_root_dir}/commitlog/{base:020d}"] = harness.clock()


def carry(harness: Harness, rounds: int = 2_000) -> None:
    harness.flush()
    for _ in range(rounds):
        harness.broker.delivery.carry(harness.clock())
        harness.clock.advance(20)


def damage_first_record(harness: Harness) -> None:
    harness.flush()
    path = Path(harness.config.store_path_root_dir, "commitlog", f"{0:020d}")
    data = bytearray(path.read_bytes())
    data[120] ^= 1
    path.write_bytes(data)


def clean(harness: Harness) -> None:
    harness.flush()
    for _ in range(3):
        harness.broker.store.clean(harness.clock(), at_any_hour=True)


def deliver(harness: Harness) -> None:
    harness.flush()
    while harness.broker.hand_over(harness.clock(), 64):
        pass


def delivered(harness: Harness) -> list[str]:
    return [
        record.properties["UNIQ_KEY"]
        for record in StoreReader(harness.config.store_path_root_dir).records()
        if record.topic == "Orders"
    ]


def test_pending_message_is_carried_and_its_segment_deleted(harness: Harness, disk: Disk) -> None:
    due_ms = harness.clock() + 30 * DAY_MS + 250
    send(harness, "far", due_ms, KEYS="k")
    note_times(harness, disk)
    fill(harness, 3)
    carry(harness, 5)
    clean(harness)
    assert harness.broker.store.min_offset == 0
    harness.clock.advance(4 * DAY_MS)
    clean(harness)
    assert harness.broker.store.min_offset == 0, "the message has not been carried yet"
    end = harness.broker.store.end_offset
    carry(harness, 5)
    record = harness.broker.store.record_at(end)
    assert record is not None
    due = parse_own_due(record.properties[names.DUE], end)
    assert due is not None
    assert (due.due_ms, due.identity, record.properties["KEYS"]) == (due_ms, 0, "k")
    # Appended, but not flushed: a loss of power could remove the copy.
    harness.broker.store.clean(harness.clock(), at_any_hour=True)
    assert harness.broker.store.min_offset == 0
    clean(harness)
    assert harness.broker.store.min_offset >= SEGMENT_BYTES
    assert harness.broker.delivery.pending_total() == 1
    assert harness.broker.store.query_index(names.TIMER_TOPIC, "far", 9, 0, 1 << 62)[0] == end
    for restart in (harness.restart, lambda: None):
        restart()
        harness.clock.now_ms = due_ms - 1
        deliver(harness)
        assert delivered(harness) == []
    harness.clock.advance(1)
    deliver(harness)
    assert delivered(harness) == ["far"]


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_carried_messages_survive_a_kill(harness: Harness, disk: Disk, has_snapshot: bool) -> None:
    start_ms = harness.clock()
    for number in range(40):
        send(harness, f"U{number}", start_ms + 10 * DAY_MS + number % 7)
    note_times(harness, disk)
    fill(harness, 2)
    harness.clock.advance(4 * DAY_MS)
    carry(harness, 60)
    clean(harness)
    assert harness.broker.delivery.carrier.carried_messages == 40
    if has_snapshot:
        task = harness.broker.store.snapshot_task(force=True)
        assert task is not None
        task.run()
        assert task.finish() is None
    # Ends of carried messages follow.
    harness.clock.now_ms = start_ms + 10 * DAY_MS + 3
    deliver(harness)
    before = delivered(harness)
    assert 0 < len(before) < 40
    harness.broker.store.abandon()
    harness.broker = open_broker(harness.config, harness.clock)
    assert harness.broker.delivery.pending_total() == 40 - len(before)
    harness.clock.advance(DAY_MS)
    deliver(harness)
    assert sorted(delivered(harness)) == sorted(f"U{number}" for number in range(40))
    order = [int(unique[1:]) for unique in delivered(harness)]
    assert order == sorted(range(40), key=lambda number: (number % 7, number))


def test_pending_message_with_a_delay_level_is_carried_and_its_segment_deleted(harness: Harness, disk: Disk) -> None:
    start_ms = harness.clock()
    send_level(harness, "far", 3)
    note_times(harness, disk)
    fill(harness, 3)
    harness.clock.advance(4 * DAY_MS)
    assert harness.broker.store.format_version == 1
    first = harness.broker.store.record_at(0)
    end = harness.broker.store.end_offset
    carry(harness, 5)
    record = harness.broker.store.record_at(end)
    assert record is not None
    assert first is not None
    mark = parse_own_mark(record.properties[names.MARK], end)
    assert mark is not None
    assert (record.topic, record.queue_id, record.queue_offset) == (names.SCHEDULE_TOPIC, 2, 1)
    assert (mark.kind, mark.identity, mark.record, mark.queue) == (TimedMarkKind.CARRIED, 0, 0, (2, 0))
    assert parse_due(record.properties[names.DUE], 2, 1) == mark.due_ms == mark.next_due_ms == start_ms + 12 * DAY_MS
    delivery = harness.broker.delivery
    assert (delivery.is_settled(2, 0), delivery.is_pending(first), delivery.is_pending(record)) == (True, True, True)
    assert (harness.broker.store.format_version, delivery.delay_offsets()) == (2, {3: 1})
    harness.broker.store.clean(harness.clock(), at_any_hour=True)
    assert harness.broker.store.min_offset == 0, "the copy is not flushed"
    clean(harness)
    assert harness.broker.store.min_offset >= SEGMENT_BYTES
    for restart in (harness.restart, lambda: lose_snapshot(harness), lambda: None):
        restart()
        assert harness.broker.delivery.pending() == {3: 1}
        harness.clock.now_ms = start_ms + 12 * DAY_MS - 1
        deliver(harness)
        assert delivered(harness) == []
    lose_snapshot(harness)
    harness.clock.advance(1)
    assert harness.broker.hand_over(harness.clock(), 64) == 1
    assert delivered(harness) == [], "a power failure could lose the record that carried it"
    harness.flush()
    assert harness.broker.delivery.next_wakeup_ms() == harness.clock() + 10
    harness.clock.advance(10)
    deliver(harness)
    assert (delivered(harness), harness.broker.delivery.is_pending(record)) == (["far"], False)


def lose_snapshot(harness: Harness) -> None:
    harness.broker.store.abandon()
    Path(harness.config.store_path_root_dir, "delaymq/snapshot.json").unlink(missing_ok=True)
    harness.broker = open_broker(harness.config, harness.clock)


@pytest.mark.parametrize("kind", ["snapshot", "snapshot before", "no snapshot"])
def test_carried_messages_with_a_delay_level_keep_their_order(harness: Harness, disk: Disk, kind: str) -> None:
    """Some are carried twice, some once, and those with equal due times in the next segment not at all."""
    start_ms = harness.clock()
    while harness.broker.store.end_offset < SEGMENT_BYTES + 10_000:
        send_level(harness, f"U{harness.broker.delivery.pending_total()}", 3)
        note_times(harness, disk)
    total = harness.broker.delivery.pending_total()
    fill(harness, 2)
    harness.restart()
    for wait in (4, 4):
        harness.clock.advance(wait * DAY_MS)
        harness.broker.store.clean(harness.clock())
        carry(harness, 200)
        clean(harness)
        fill(harness, 1)
        harness.flush()
        if kind == "snapshot":
            task = harness.broker.store.snapshot_task(force=True)
            assert task is not None
            task.run()
            assert task.finish() is None
    assert harness.broker.delivery.carrier.carried_messages > 0
    harness.clock.now_ms = start_ms + 12 * DAY_MS
    harness.broker.hand_over(harness.clock(), total // 2)
    if kind == "no snapshot":
        lose_snapshot(harness)
    else:
        harness.broker.store.abandon()
        harness.broker = open_broker(harness.config, harness.clock)
    assert harness.broker.delivery.pending() == {3: total - total // 2}
    deliver(harness)
    assert delivered(harness) == [f"U{number}" for number in range(total)]


def test_carrying_keeps_the_configured_rate(open_harness: Open, disk: Disk) -> None:
    harness = open_harness(
        mapped_file_size_commit_log=SEGMENT_BYTES, timer_carry_max_bytes_per_second=1 << 16, delete_when="04"
    )
    for number in range(120):
        send(harness, f"U{number}", harness.clock() + 30 * DAY_MS)
    fill(harness, 2)
    harness.clock.advance(4 * DAY_MS)
    harness.flush()
    disk.used_ratio = 0.8
    harness.broker.store.clean(harness.clock())
    carrier = harness.broker.delivery.carrier
    harness.broker.delivery.carry(harness.clock())
    for _ in range(50):
        harness.clock.advance(10)
        harness.broker.delivery.carry(harness.clock())
    assert carrier.carried_bytes <= (1 << 15) + 2_000
    assert carrier.carried_bytes >= (1 << 15) - 2_000


def test_overdue_messages_that_wait_for_their_rate_are_carried(harness: Harness, disk: Disk) -> None:
    limit(harness, max_per_second=1)
    for number in range(100):
        send_level(harness, f"U{number}", 1)
    note_times(harness, disk)
    fill(harness, 3)
    harness.flush()
    harness.clock.advance(4 * DAY_MS)
    assert harness.broker.hand_over(harness.clock(), 64) == 1
    carry(harness)
    clean(harness)
    assert harness.broker.delivery.carrier.carried_messages == 99
    assert harness.broker.store.min_offset >= SEGMENT_BYTES


def test_unreadable_record_of_a_pending_message_is_given_up(harness: Harness, disk: Disk) -> None:
    send(harness, "lost", harness.clock() + 30 * DAY_MS)
    note_times(harness, disk)
    fill(harness, 2)
    damage_first_record(harness)
    harness.clock.advance(4 * DAY_MS)
    carry(harness, 5)
    clean(harness)
    assert harness.broker.store.min_offset >= SEGMENT_BYTES
    assert harness.broker.delivery.pending_total() == 0
    assert harness.broker.delivery.counters.corrupt == 1


def test_full_disk_rejects_messages_before_the_reserve_and_carrying_continues(harness: Harness, disk: Disk) -> None:
    send(harness, "far", harness.clock() + 30 * DAY_MS)
    note_times(harness, disk)
    fill(harness, 3)
    disk.free_bytes = SEGMENT_BYTES - 1
    harness.flush()
    harness.broker.store.clean(harness.clock())
    answer = response_of(harness.send("Other", b"x"))
    assert (answer.code, "reserved for pending messages" in str(answer.remark)) == (14, True)
    # The oldest segment is carried early, because it has few bytes that are still needed.
    carry(harness, 5)
    assert harness.broker.delivery.carrier.carried_messages == 1
    harness.flush()
    disk.used_ratio = 0.95
    for _ in range(3):
        harness.broker.store.clean(harness.clock())
    assert harness.broker.store.min_offset >= SEGMENT_BYTES
    disk.free_bytes, disk.used_ratio = 1 << 40, 0.5
    harness.broker.store.clean(harness.clock())
    assert response_of(harness.send("Other", b"x")).code == 0


def test_segment_full_of_pending_messages_is_not_carried_early(harness: Harness, disk: Disk) -> None:
    while harness.broker.store.end_offset < 3 * SEGMENT_BYTES:
        send(harness, "far", harness.clock() + 30 * DAY_MS)
    harness.flush()
    disk.used_ratio = 0.95
    harness.broker.store.clean(harness.clock())
    carry(harness, 20)
    assert harness.broker.delivery.carrier.carried_messages == 0


def test_overdue_messages_of_paused_deliveries_are_carried(harness: Harness, disk: Disk) -> None:
    send(harness, "paused", harness.clock() + 1_000)
    note_times(harness, disk)
    fill(harness, 2)
    harness.broker.delivery.control.pause()
    harness.clock.advance(4 * DAY_MS)
    carry(harness, 5)
    clean(harness)
    assert harness.broker.store.min_offset >= SEGMENT_BYTES
    harness.broker.delivery.control.resume()
    deliver(harness)
    assert delivered(harness) == ["paused"]


def test_sixty_days_with_three_days_of_retention_stay_within_the_bound(harness: Harness, disk: Disk) -> None:
    random = Random(1)
    start_ms = harness.clock()
    sent: dict[str, int] = {}
    got: list[str] = []
    sizes: list[int] = []
    live: list[int] = []
    traffic = carried = starts = 0
    for hour in range(60 * 24):
        note_times(harness, disk)
        before = harness.broker.store.end_offset
        for _ in range(3):
            unique = f"U{len(sent)}"
            if random.random() < 0.4:
                level = random.choice([2, 3])
                sent[unique] = harness.clock() + level * 6 * DAY_MS - 6 * DAY_MS
                send_level(harness, unique, level)
            else:
                sent[unique] = harness.clock() + int(random.expovariate(1 / (8 * DAY_MS))) + 1
                send(harness, unique, sent[unique])
        deliver(harness)
        note_times(harness, disk)
        traffic += harness.broker.store.end_offset - before
        carry(harness, 30)
        clean_hourly(harness, disk)
        if random.random() < 0.01:
            carried += harness.broker.delivery.carrier.carried_bytes
            harness.broker.store.abandon()
            harness.broker = open_broker(harness.config, harness.clock)
            starts += 1
        got += new_copies(harness, len(got), sent)
        sizes.append(harness.broker.store.end_offset - harness.broker.store.min_offset)
        live.append(harness.broker.delivery.timeline.partitions.bytes)
        harness.clock.now_ms = start_ms + (hour + 1) * HOUR_MS
    carried += harness.broker.delivery.carrier.carried_bytes
    assert starts > 0
    assert len(got) == len(set(got))
    due = {unique for unique, due_ms in sent.items() if due_ms <= harness.clock() - 2 * HOUR_MS}
    assert due <= set(got) <= set(sent)
    assert harness.broker.delivery.pending_total() == len(sent) - len(got)
    # The log: traffic of the retention time up to the next deletion, live bytes, and two segments. In this time, the
    # live bytes may have been written once more.
    per_day = traffic / 60
    assert max(sizes) <= 4 * per_day + 2 * max(live) + 2 * SEGMENT_BYTES
    # Writes: live bytes once per retention time.
    assert 0 < carried <= 60 / 3 * max(live)


def clean_hourly(harness: Harness, disk: Disk) -> None:
    harness.flush()
    note_times(harness, disk)
    harness.broker.store.clean(harness.clock())


def new_copies(harness: Harness, first: int, due_ms: dict[str, int]) -> list[str]:
    """Unique keys of the copies from an offset on, none of which may be early."""
    store, found = harness.broker.store, []
    for offset in range(first, store.next_queue_offset("Orders", 0)):
        record = store.record_at(int.from_bytes(store.read_entries("Orders", 0, offset, 1)[:8], "big"))
        assert record is not None
        unique = record.properties["UNIQ_KEY"]
        assert record.store_timestamp_ms >= due_ms[unique], "early"
        found.append(unique)
    return found


# Changed messages.


def change(harness: Harness, action: str, unique: str, **more: str) -> None:
    properties = {"UNIQ_KEY": "change", "DELAY_ACTION": action, "TIMER_DEL_UNIQKEY": unique, **more}
    answer = response_of(harness.send("Orders", b"", properties))
    assert answer.code == 0, answer.remark


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_moved_message_is_carried_with_its_new_due_time_and_found_afterwards(
    harness: Harness, disk: Disk, has_snapshot: bool
) -> None:
    start_ms = harness.clock()
    for unique in ("later", "earlier", "level", "cancelled", "still"):
        if unique == "level":
            send_level(harness, unique, 3)
        else:
            send(harness, unique, start_ms + 20 * DAY_MS, DELAY_KEY=unique)
    change(harness, "move", "later", TIMER_DELIVER_MS=str(start_ms + 30 * DAY_MS))
    change(harness, "move", "earlier", TIMER_DELIVER_MS=str(start_ms + 9 * DAY_MS))
    change(harness, "move", "level", TIMER_DELIVER_MS=str(start_ms + 25 * DAY_MS))
    change(harness, "cancel", "cancelled")
    note_times(harness, disk)
    fill(harness, 3)
    harness.clock.advance(4 * DAY_MS)
    carry(harness, 20)
    clean(harness)
    assert harness.broker.store.min_offset >= SEGMENT_BYTES, "records and marks are deleted"
    assert harness.broker.delivery.carrier.carried_messages == 4
    if has_snapshot:
        harness.restart()
    else:
        harness.broker.store.abandon()
        (Path(harness.config.store_path_root_dir) / "delaymq/snapshot.json").unlink(missing_ok=True)
        harness.broker = open_broker(harness.config, harness.clock)
    assert harness.broker.delivery.pending_total() == 4
    change(harness, "cancel", "still")
    for day, expected in ((8, []), (9, ["earlier"]), (24, []), (25, ["level"]), (29, []), (30, ["later"])):
        before = delivered(harness)
        harness.clock.now_ms = start_ms + day * DAY_MS
        deliver(harness)
        assert delivered(harness)[len(before) :] == expected, day


@pytest.mark.parametrize("at_once", [1, 3, 1_000])
def test_unreadable_record_of_a_moved_message_is_given_up(
    harness: Harness, disk: Disk, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(carrying, "_SEARCHED_AT_ONCE", at_once)
    send(harness, "lost", harness.clock() + 30 * DAY_MS)
    change(harness, "move", "lost", TIMER_DELAY_SEC=str(20 * 86_400))
    for number in range(10):
        send(harness, f"other {number}", harness.clock() + (10 + number) * DAY_MS)
    note_times(harness, disk)
    fill(harness, 2)
    damage_first_record(harness)
    harness.clock.advance(4 * DAY_MS)
    carry(harness, 50)
    clean(harness)
    assert harness.broker.store.min_offset >= SEGMENT_BYTES
    assert (harness.broker.delivery.pending_total(), harness.broker.delivery.counters.corrupt) == (10, 1)
