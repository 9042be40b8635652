"""Damage of every kind: the store opens, keeps all sound data, and reports its repairs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from delaymq.message.names import SCHEDULE_TOPIC
from delaymq.store.consume_queue import BLANK_ENTRY, ENTRY
from delaymq.store.message_store import MessageStore
from delaymq.store.reader import StoreReader
from delaymq.store.tools.verify import DAMAGED, NOT_A_STORE, SOUND, verify
from delaymq_testing.store.small_stores import (
    HOST,
    Clock,
    Watcher,
    entries_of,
    expected_queues,
    flush,
    kinds,
    message,
    snapshot,
)

Open = Callable[..., MessageStore]


def check(store: MessageStore, path: Path) -> None:
    """Queues hold what the log holds, and the store is sound after a stop."""
    for (topic, queue_id), expected in expected_queues(path).items():
        entries = entries_of(store, topic, queue_id, expected[0][0])
        sound = [(n, o, s) for n, (o, s, _) in enumerate(entries, expected[0][0]) if (o, s) != (0, 2_147_483_647)]
        assert sound == expected
    store.append(message("afterwards"))
    store.close()
    assert verify(path).exit_code == SOUND
    assert verify(path).rebuildable == []


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "broken",
    [
        "consumequeue",
        "index",
        "checkpoint",
        "delaymq",
        "consumequeue/Orders/1",
        "delaymq/snapshot.json",
        "config",
        "lock",
    ],
)
def test_missing_derived_files_are_rebuilt(stopped: Path, open_store: Open, broken: str, clean: bool) -> None:
    path = stopped / broken
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    if not clean:
        (stopped / "abort").touch()
    assert verify(stopped).exit_code == SOUND
    store = open_store()
    assert store.queue_bounds("Orders", 1) == (0, 67)
    for number in (0, 100, 199):
        [offset] = store.query_index("Orders", f"u{number}", 64, 0, 1 << 62)
        record = store.record_at(offset)
        assert record is not None
        assert record.body == bytes([number]) * 250
    check(store, stopped)


@pytest.mark.parametrize("keep_bytes", [0, 1, 399, 10_000, 100_000])
def test_truncated_or_extended_files_are_corrected(stopped: Path, open_store: Open, keep_bytes: int) -> None:
    for pattern in ("consumequeue/Orders/2/*", "index/*", "checkpoint"):
        victim = sorted(stopped.glob(pattern))[-1]
        with victim.open("r+b") as file:
            file.truncate(keep_bytes)
    store = open_store()
    assert store.queue_bounds("Orders", 2) == (0, 66)
    assert len(store.query_index("Orders", "u5", 64, 0, 1 << 62)) == 1
    check(store, stopped)


def test_truncated_last_segment_loses_only_its_end(stopped: Path, open_store: Open) -> None:
    last = sorted((stopped / "commitlog").iterdir())[-1]
    with last.open("r+b") as file:
        file.truncate(5_000)
    store = open_store()
    assert last.stat().st_size == 16_384
    assert "segment-size" in kinds(store)
    assert int(last.name) < store.end_offset <= int(last.name) + 5_000
    check(store, stopped)


def test_missing_segment_loses_only_its_messages(stopped: Path, open_store: Open) -> None:
    segments = sorted((stopped / "commitlog").iterdir())
    before = len(list(StoreReader(stopped).records()))
    lost = [r for r in StoreReader(stopped).records() if 16_384 <= r.physical_offset < 32_768]
    segments[1].unlink()
    result = verify(stopped)
    assert result.exit_code == DAMAGED
    assert result.damage[0].file == "commitlog/00000000000000016384"
    (stopped / "delaymq/snapshot.json").unlink()
    (stopped / "abort").touch()
    store = open_store()
    assert "segment-missing" in kinds(store)
    assert len(list(StoreReader(stopped).records())) == before - len(lost)
    assert store.queue_bounds("Orders", 0) == (0, 67)
    entries = entries_of(store, "Orders", 0)
    assert [ENTRY.pack(*entries[r.queue_offset]) for r in lost if r.queue_id == 0] == [BLANK_ENTRY] * sum(
        r.queue_id == 0 for r in lost
    )
    check(store, stopped)


def test_first_segment_may_be_missing(stopped: Path, open_store: Open) -> None:
    (stopped / "commitlog/00000000000000000000").unlink()
    for _ in range(2):
        store = open_store()
        assert store.min_offset == 16_384
        first, end = store.queue_bounds("Orders", 0)
        assert end == 67
        assert first > 0
        assert ENTRY.unpack(store.read_entries("Orders", 0, first, 1))[0] >= 16_384
        store.abandon()
    (stopped / "delaymq/snapshot.json").unlink()
    shutil.rmtree(stopped / "consumequeue")
    store = open_store()
    assert store.queue_bounds("Orders", 0) == (first, 67)
    check(store, stopped)


def test_missing_log_is_an_empty_store(stopped: Path, open_store: Open) -> None:
    shutil.rmtree(stopped / "commitlog")
    assert verify(stopped).exit_code == NOT_A_STORE
    store = open_store()
    assert store.end_offset == 0
    assert list(store.queues()) == [("Orders", 0), ("Orders", 1), ("Orders", 2)]
    assert store.queue_bounds("Orders", 0) == (0, 0)
    check(store, stopped)


def test_stray_files_are_ignored(stopped: Path, open_store: Open) -> None:
    (stopped / "commitlog/notes.txt").write_text("x")
    (stopped / "commitlog/00000000000000000007").write_bytes(b"x" * 16_384)
    (stopped / "index/.DS_Store").write_text("x")
    (stopped / "consumequeue/a file").write_text("x")
    (stopped / "consumequeue/Orders/not-a-number").mkdir()
    (stopped / "delaymq/00000000000000032768.ahead").write_text("x")
    store = open_store()
    assert kinds(store) == ["stray-file", "stray-file"]
    assert store.end_offset > 65_536
    store.close()


@pytest.mark.parametrize("seed", range(6))
def test_random_bytes_destroy_only_the_records_they_hit(stopped: Path, open_store: Open, seed: int) -> None:
    chance = random.Random(seed)
    records = list(StoreReader(stopped).records())
    hit = set()
    for _ in range(5):
        record = chance.choice(records[:-1])
        hit.add(record.physical_offset)
        segment = record.physical_offset // 16_384 * 16_384
        with (stopped / f"commitlog/{segment:020d}").open("r+b") as file:
            file.seek(record.physical_offset - segment + chance.choice([0, 4, 30, 85, 95, 200]))
            file.write(chance.randbytes(3))
    (stopped / "delaymq/snapshot.json").unlink()
    (stopped / "abort").touch()
    store = open_store()
    kept = {r.physical_offset for r in StoreReader(stopped).records() if r.topic == "Orders"}
    assert {r.physical_offset for r in records} - hit <= kept
    assert "log-hole" in kinds(store)
    check(store, stopped)


@pytest.mark.parametrize("seed", range(4))
def test_random_small_files_never_prevent_opening(stopped: Path, open_store: Open, seed: int) -> None:
    chance = random.Random(seed)
    victims = [stopped / "delaymq/snapshot.json", stopped / "checkpoint", stopped / "delaymq/deleted_topics.json"]
    victims += [*(stopped / "index").iterdir(), *(stopped / "consumequeue/Orders/0").iterdir()]
    for victim in victims:
        size = victim.stat().st_size if victim.exists() else 50
        victim.write_bytes(chance.randbytes(size))
    (stopped / "abort").touch()
    store = open_store()
    assert len(store.query_index("Orders", "k7", 64, 0, 1 << 62)) == 1
    check(store, stopped)


def test_stale_bytes_behind_the_end_are_not_recovered(stopped: Path, open_store: Open) -> None:
    """The real broker leaves what it truncates: an old record there may begin where a new one ends."""
    reader = StoreReader(stopped)
    segment = reader.segments()[-1]
    last = list(reader.records())[-1]
    stale = replace(last, physical_offset=last.physical_offset + last.size, store_timestamp_ms=1).encoded()
    with open(segment.path, "r+b") as file:
        file.seek(last.physical_offset + last.size - segment.base + 200)
        file.write(stale)
    (stopped / "abort").touch()
    store = open_store()
    assert kinds(store)[-1] == "torn-tail"
    assert store.end_offset == last.physical_offset + last.size
    assert not any(Path(segment.path).read_bytes()[store.end_offset - segment.base :])
    store.close()


def test_real_brokers_clean_stop_is_accepted_unchanged(stopped: Path, open_store: Open) -> None:
    shutil.rmtree(stopped / "delaymq")
    watcher = Watcher("Orders")
    store = open_store(observers=[watcher])
    assert store.recovery.corrections == []
    assert not store.recovery.snapshot_used
    assert watcher.restored_from is None
    assert len(watcher.offsets) == 200
    assert store.queue_bounds("Orders", 0) == (0, 67)
    check(store, stopped)


def test_missing_entries_after_a_clean_stop_are_added_and_surplus_removed(stopped: Path, open_store: Open) -> None:
    shutil.rmtree(stopped / "delaymq")
    files = sorted((stopped / "consumequeue/Orders/1").iterdir())
    with files[-1].open("r+b") as file:  # entry 66 is number 6 of its file
        file.seek(5 * 20)
        file.write(bytes(40))
    extra = sorted((stopped / "consumequeue/Orders/0").iterdir())[-1]
    with extra.open("r+b") as file:
        file.seek(7 * 20)
        file.write(ENTRY.pack(10_000_000, 300, 0))
    store = open_store()
    assert store.queue_bounds("Orders", 1) == (0, 67)
    assert store.queue_bounds("Orders", 0) == (0, 67)
    assert kinds(store) == ["queue-beyond-log"]
    check(store, stopped)


def test_queue_extension_addresses_are_recomputed(stopped: Path, open_store: Open) -> None:
    shutil.rmtree(stopped / "delaymq")
    (stopped / "consumequeue_ext/Orders/0").mkdir(parents=True)
    for path in (stopped / "consumequeue").rglob("0" * 20):
        data = bytearray(path.read_bytes())
        for position in range(0, 400, 20):
            offset, size, _ = ENTRY.unpack_from(data, position)
            ENTRY.pack_into(data, position, offset, size, -(1 << 31) - 7)
        path.write_bytes(data)
    store = open_store()
    assert "queue-extension" in kinds(store)
    assert {code for _, _, code in entries_of(store, "Orders", 0)} == {0}
    check(store, stopped)


def test_writes_of_another_broker_since_the_snapshot_are_detected(
    stopped: Path, open_store: Open, tmp_path: Path
) -> None:
    saved = (stopped / "delaymq/snapshot.json").read_bytes()
    store = open_store()
    for number in range(30):
        store.append(message(f"later{number}", topic="Other"))
    store.close()
    (stopped / "delaymq/snapshot.json").write_bytes(saved)
    store = open_store()
    assert store.recovery.snapshot_used
    assert store.recovery.replayed_records == 30
    assert store.queue_bounds("Other", 0) == (0, 30)
    check(store, stopped)


def test_log_rewritten_by_another_broker_invalidates_the_snapshot(stopped: Path, open_store: Open) -> None:
    reader = StoreReader(stopped)
    last = list(reader.records())[-1]
    segment = reader.segments()[-1]
    with open(segment.path, "r+b") as file:
        file.seek(last.physical_offset - segment.base)
        changed = replace(last, store_timestamp_ms=last.store_timestamp_ms + 5, queue_id=2)
        file.write(changed.encoded())
    store = open_store()
    assert "snapshot-stale" in kinds(store)
    assert not store.recovery.snapshot_used


def test_index_that_differs_from_the_snapshot_is_rebuilt(stopped: Path, open_store: Open) -> None:
    newest = sorted((stopped / "index").iterdir())[-1]
    newest.rename(newest.with_name("20010101000000000"))
    store = open_store()
    assert kinds(store) == ["snapshot-stale"]
    for number in (0, 57, 199):
        assert len(store.query_index("Orders", f"k{number}", 64, 0, 1 << 62)) == 1
    check(store, stopped)


def test_torn_record_is_truncated_and_overwritten(tmp_path: Path, open_store: Open) -> None:
    store = open_store()
    first = store.append(message("kept"))
    torn = store.append(message("torn", body=bytes(range(250)) * 4))
    store.abandon()
    with (tmp_path / "store/commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(torn.physical_offset + 600)
        file.write(bytes(1_000))
    assert verify(tmp_path / "store").rebuildable[0].what == "torn-tail"
    store = open_store()
    assert kinds(store)[-1] == "torn-tail"
    assert store.end_offset == first.size
    again = store.append(message("again"))
    assert (again.physical_offset, again.queue_offset) == (first.size, 1)
    check(store, tmp_path / "store")


def test_unwritten_properties_are_a_torn_record(tmp_path: Path, open_store: Open) -> None:
    store = open_store()
    store.append(message("kept"))
    torn = store.append(message("torn", text="x" * 500))
    store.abandon()
    with (tmp_path / "store/commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(torn.physical_offset + torn.size - 300)
        file.write(bytes(300))
    store = open_store()
    assert store.end_offset == torn.physical_offset
    check(store, tmp_path / "store")


def test_killed_recovery_restarts(stopped: Path, open_store: Open) -> None:
    shutil.rmtree(stopped / "consumequeue")
    for _ in range(3):
        store = open_store()
        store.write_behind(1)
        store.abandon()
    check(open_store(), stopped)


def test_hostile_topic_in_the_log_creates_no_folder(tmp_path: Path, open_store: Open) -> None:
    store = open_store()
    appended = store.append(message("innocent", topic="AAAAAA"))
    store.abandon()
    path = tmp_path / "store/commitlog" / ("0" * 20)
    data = path.read_bytes()
    assert data.count(b"AAAAAA") == 1
    path.write_bytes(data.replace(b"AAAAAA", b"../../"))
    store = open_store()
    assert store.end_offset == appended.size
    assert list(store.queues()) == []
    store.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["store"]


@pytest.mark.parametrize("number", [1 << 50, 1 << 18, 0, 3])
def test_damaged_queue_offset_is_corrected_in_the_log_and_moves_nothing(
    tmp_path: Path, open_store: Open, number: int
) -> None:
    store = open_store()
    places = [store.append(message(f"u{each}")).physical_offset for each in range(5)]
    store.abandon()
    path = tmp_path / "store/commitlog" / ("0" * 20)
    before = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(places[1] + 20)
        file.write(number.to_bytes(8, "big"))
    damaged = path.read_bytes()
    store = open_store()
    assert [offset for offset, _, _ in entries_of(store, "Orders", 0)] == places
    assert kinds(store).count("queue-number") == 1
    assert path.read_bytes() == before
    [kept] = (tmp_path / "store/delaymq/aside").glob("0*")
    assert kept.read_bytes() == damaged[places[1] : places[2]]
    store.abandon()
    assert "queue-number" not in kinds(open_store())


def test_offset_that_skipped_a_hole_stays_at_later_starts(tmp_path: Path, open_store: Open) -> None:
    store = open_store()
    places = [store.append(message(f"u{each}", body=bytes(100))).physical_offset for each in range(4)]
    store.abandon()
    path = tmp_path / "store/commitlog" / ("0" * 20)
    with path.open("r+b") as file:
        file.seek(places[2] + 100)
        file.write(b"x")
    for _ in range(3):
        store = open_store()
        assert [offset for offset, _, _ in entries_of(store, "Orders", 0)] == [*places[:2], 0, places[3]]
        assert "queue-number" not in kinds(store)
        store.abandon()


def test_two_damaged_neighbours_hide_no_later_messages(stopped: Path, open_store: Open) -> None:
    records = list(StoreReader(stopped).records())
    first, second = records[50:52]
    base = first.physical_offset // 16_384 * 16_384
    with (stopped / f"commitlog/{base:020d}").open("r+b") as file:
        file.seek(first.physical_offset - base + 56)  # its store time: 35 years ahead, which no checksum tells
        file.write((first.store_timestamp_ms + (1 << 40)).to_bytes(8, "big"))
        file.seek(second.physical_offset - base + 100)
        file.write(b"\xff")
    (stopped / "delaymq/snapshot.json").unlink()
    (stopped / "abort").touch()
    store = open_store()
    kept = {record.physical_offset for record in StoreReader(stopped).records() if record.topic == "Orders"}
    assert {record.physical_offset for record in records} - kept == {second.physical_offset}
    check(store, stopped)


def test_newest_record_with_a_future_time_does_not_affect_later_store_times(
    tmp_path: Path, open_store: Open, clock: Clock
) -> None:
    store = open_store()
    store.append(message("a"))
    last = store.append(message("b"))
    store.abandon()
    with (tmp_path / "store/commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(last.physical_offset + 56)
        file.write((clock.ms + (1 << 38)).to_bytes(8, "big"))
    store = open_store()
    assert "store-time" in kinds(store)
    clock.ms += 5
    assert store.append(message("c")).store_timestamp_ms == clock.ms


@pytest.mark.parametrize("stored_ms", [1 << 62, -5, 253_402_300_800_000])
def test_damaged_store_time_hides_no_other_message_from_the_key_index(
    tmp_path: Path, open_store: Open, clock: Clock, stored_ms: int
) -> None:
    store = open_store()
    first, second = store.append(message("a")), store.append(message("b"))
    store.abandon()
    with (tmp_path / "store/commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(first.physical_offset + 56)
        file.write(stored_ms.to_bytes(8, "big", signed=True))
    shutil.rmtree(tmp_path / "store/index")
    store = open_store()
    found = store.query_index("Orders", "b", 10, clock.ms - 60_000, clock.ms + 60_000)
    assert found == [second.physical_offset]


def test_clock_set_back_keeps_store_times(open_store: Open, clock: Clock) -> None:
    store = open_store()
    store.append(message("a"))
    newest = store.append(message("b")).store_timestamp_ms
    store.abandon()
    clock.ms -= 3_600_000
    store = open_store()
    assert "store-time" not in kinds(store)
    assert store.append(message("c")).store_timestamp_ms == newest


def test_killed_process_data_is_durable_after_the_first_flush(open_store: Open) -> None:
    store = open_store()
    store.append(message("a"))
    snapshot(store)
    synced = store.end_offset
    store.append(message("b"))
    store.abandon()
    store = open_store()
    assert (store.flushed_offset, store.end_offset > synced) == (synced, True)
    flush(store)
    assert store.flushed_offset == store.end_offset


def test_delayed_messages_of_another_brokers_log_regain_their_due_time(
    tmp_path: Path, open_store: Open, clock: Clock
) -> None:
    store = open_store()
    store.append(message("a", topic=SCHEDULE_TOPIC, queue_id=1, DELAY="2"))
    due = clock.ms + 5_000
    store.abandon()
    clock.ms += 60_000
    store = open_store()
    assert [entry[2] for entry in entries_of(store, SCHEDULE_TOPIC, 1)] == [due]
    assert store.record_at(0).born_host == HOST  # type: ignore[union-attr]
