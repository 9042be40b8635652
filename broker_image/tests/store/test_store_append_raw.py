"""Bytes of another broker's log, appended at the same offsets."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from delaymq.message.record import BLANK_BYTES, BLANK_MAGIC, SIZE_AND_MAGIC
from delaymq.store.disk.files import Files
from delaymq.store.errors import (
    DamagedRecordError,
    SegmentCreateError,
    StoreClosedError,
    StoreFailedError,
    StoreFullError,
    StoreReadOnlyError,
    WrongOffsetError,
)
from delaymq.store.message_store import MessageStore
from delaymq.store.reader import StoreReader
from delaymq_testing.repetitions import CRASH_STATES, SEED
from delaymq_testing.store.raw_logs import cuts, log_of, random_life, receive, segments_of, state_of
from delaymq_testing.store.recording import QuietFiles, RecordingFiles, after_crashes
from delaymq_testing.store.small_stores import (
    SMALL,
    Clock,
    Watcher,
    entries_of,
    flush,
    kinds,
    message,
    snapshot,
)

Open = Callable[..., MessageStore]


@pytest.mark.parametrize("seed", range(6))
def test_stream_cut_anywhere_makes_the_same_segments_queues_and_keys(
    tmp_path: Path, open_store: Open, clock: Clock, seed: int
) -> None:
    chance = Random(SEED * 100 + seed)
    observers = Watcher(), Watcher()
    source = open_store(tmp_path / "source", observers=[observers[0]])
    replica = open_store(tmp_path / "replica", observers=[observers[1]])
    for _ in range(3):
        random_life(source, chance, clock, 40)
        receive(replica, log_of(source)[replica.end_offset :], chance, replica.end_offset)
        for store in (source, replica):
            store.delete_topic("Recreated")
    assert segments_of(replica) == segments_of(source)
    assert observers[0].offsets == observers[1].offsets
    assert state_of(replica) == state_of(source)
    assert replica.received_offset == replica.end_offset
    replica.close()
    source.close()
    reopened = open_store(tmp_path / "replica", observers=[Watcher()])
    assert reopened.recovery.snapshot_used
    assert not kinds(reopened)
    assert state_of(reopened) == state_of(open_store(tmp_path / "source", observers=[Watcher()]))


def test_killed_replica_continues_at_its_last_complete_record(tmp_path: Path, open_store: Open, clock: Clock) -> None:
    chance = Random(SEED)
    source = open_store(tmp_path / "source", observers=[Watcher()])
    random_life(source, chance, clock, 150)
    data = log_of(source)
    replica = open_store(tmp_path / "replica", observers=[Watcher()])
    while replica.end_offset < len(data):
        for _ in range(chance.randrange(1, 20)):
            start = replica.received_offset
            replica.append_raw(start, data[start : start + chance.randint(1, 4_000)])
        if chance.random() < 0.3:
            snapshot(replica)
        replica.abandon()
        replica = open_store(tmp_path / "replica", observers=[Watcher()])
        assert set(kinds(replica)) <= {"torn-tail", "index-rebuilt", "queues-rebuilt"}
        assert replica.received_offset == replica.end_offset
    assert segments_of(replica) == segments_of(source)
    assert state_of(replica) == state_of(source)


@pytest.mark.parametrize("first", [SMALL.commit_log_file_bytes, 3 * SMALL.commit_log_file_bytes])
def test_empty_replica_may_begin_at_any_segment(tmp_path: Path, open_store: Open, clock: Clock, first: int) -> None:
    source = open_store(tmp_path / "source", observers=[Watcher()])
    random_life(source, Random(SEED), clock, 120)
    replica = open_store(tmp_path / "replica", observers=[Watcher()])
    with pytest.raises(WrongOffsetError):
        replica.append_raw(first + 1, b"\0")
    receive(replica, log_of(source)[first:], Random(SEED), first)
    assert (replica.min_offset, replica.end_offset) == (first, source.end_offset)
    replica.abandon()
    reopened = open_store(tmp_path / "replica", observers=[Watcher()])
    assert not kinds(reopened)
    for topic, queue_id in reopened.queues():
        first_entry, end = reopened.queue_bounds(topic, queue_id)
        assert entries_of(reopened, topic, queue_id, first_entry) == entries_of(source, topic, queue_id, first_entry)
        assert end == source.queue_bounds(topic, queue_id)[1]


def test_log_of_the_real_broker_is_appended(golden: Path, tmp_path: Path, open_store: Open) -> None:
    source = open_store(golden)
    options = replace(source.options, index_slots=SMALL.index_slots, index_entries=SMALL.index_entries)
    replica = open_store(tmp_path / "replica", options=options)
    receive(replica, log_of(source), Random(SEED))
    assert segments_of(replica) == segments_of(source)
    assert state_of(replica) == state_of(source)


@pytest.mark.parametrize("whole_segments", [False, True])
def test_fillers_of_a_repaired_log_are_appended(
    tmp_path: Path, open_store: Open, stopped: Path, whole_segments: bool
) -> None:
    files = sorted((stopped / "commitlog").iterdir())
    if whole_segments:
        files[1].unlink()
    else:
        data = bytearray(files[1].read_bytes())
        data[2_000:3_000] = bytes(1_000)
        data[-2_000:] = b"\xff" * 2_000
        files[1].write_bytes(data)
    (stopped / "delaymq" / "snapshot.json").unlink()
    source = open_store(stopped)
    assert kinds(source)
    replica = open_store(tmp_path / "replica")
    receive(replica, log_of(source), Random(SEED))
    assert segments_of(replica) == segments_of(source)
    bounds = {key: store.queue_bounds(*key) for store in (source, replica) for key in store.queues()}
    assert bounds == {key: source.queue_bounds(*key) for key in source.queues()}
    for record in StoreReader(stopped).records():
        key = record.properties.get("KEYS")
        assert key is None or record.physical_offset in replica.query_index("Orders", key, 64, 0, 1 << 62)


def test_padding_keeps_its_content_and_counts_only_when_complete(
    tmp_path: Path, open_store: Open, clock: Clock
) -> None:
    source = open_store(tmp_path / "source")
    source.append(message("u1"))
    left = SMALL.commit_log_file_bytes - source.end_offset
    padding = SIZE_AND_MAGIC.pack(left, BLANK_MAGIC) + Random(SEED).randbytes(left - BLANK_BYTES)
    replica = open_store(tmp_path / "replica")
    data = log_of(source)
    replica.append_raw(0, data + padding[:5_000])
    assert replica.end_offset == len(data)
    replica.forget_received()
    assert segments_of(replica) == segments_of(source)
    for position in range(0, left, 1_000):
        replica.append_raw(len(data) + position, padding[position : position + 1_000])
    assert replica.end_offset == SMALL.commit_log_file_bytes
    assert next(iter(segments_of(replica).values())) == data + padding


def test_bytes_at_another_offset_are_rejected(tmp_path: Path, open_store: Open) -> None:
    source, replica = open_store(tmp_path / "source"), open_store(tmp_path / "replica")
    source.append(message("u1"))
    source.append(message("u2"))
    data = log_of(source)
    replica.append_raw(0, data[:100])
    for offset in (0, 99, 101, -1, SMALL.commit_log_file_bytes):
        with pytest.raises(WrongOffsetError, match="cannot follow offset 100"):
            replica.append_raw(offset, data[100:])
    replica.append_raw(100, data[100:])
    assert log_of(replica) == data


def test_any_damaged_bit_of_a_record_changes_nothing_or_is_what_no_checksum_covers(
    tmp_path: Path, open_store: Open, clock: Clock
) -> None:
    chance = Random(SEED)
    source = open_store(tmp_path / "source")
    for number in range(4):
        source.append(message(f"u{number}", body=chance.randbytes(200)))
    data = log_of(source)
    replica = open_store(tmp_path / "replica", observers=[Watcher("Orders")])
    rejected = 0
    for bit in chance.sample(range(len(data) * 8), 600):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            replica.append_raw(0, bytes(damaged))
        except DamagedRecordError:
            rejected += 1
            assert (replica.end_offset, replica.received_offset) == (0, 0)
            assert not list(replica.queues())
        else:  # a part of a record, or a field without a checksum
            replica.abandon()
            replica = open_store(tmp_path / f"replica-{bit}", observers=[Watcher("Orders")])
    assert rejected > 350
    replica.append_raw(0, data)
    assert log_of(replica) == data


def test_implausible_queue_offset_is_rejected(tmp_path: Path, open_store: Open) -> None:
    source, replica = open_store(tmp_path / "source"), open_store(tmp_path / "replica")
    source.append(message("u1"))
    first = source.end_offset
    source.append(message("u2"))
    data = log_of(source)
    replica.append_raw(0, data[:first])
    for number in (-1, 3_000_000, 1 << 62):
        damaged = bytearray(data[first:])
        struct.pack_into(">q", damaged, 20, number)
        with pytest.raises(DamagedRecordError, match="cannot have yet"):
            replica.append_raw(first, bytes(damaged))
    replica.append_raw(first, data[first:])
    assert replica.queue_bounds("Orders", 0) == (0, 2)


def test_segments_of_another_size_are_rejected(tmp_path: Path, open_store: Open) -> None:
    options = replace(SMALL, commit_log_file_bytes=2 * SMALL.commit_log_file_bytes)
    source, replica = open_store(tmp_path / "source", options=options), open_store(tmp_path / "replica")
    for number in range(4):
        source.append(message(f"u{number}", body=bytes(5_000)))
    with pytest.raises(DamagedRecordError, match="mappedFileSizeCommitLog"):
        replica.append_raw(0, log_of(source))
    assert replica.end_offset == 0


class FailingFiles(Files):
    """Files whose segments cannot be created with this error number."""

    number = 0

    def allocate(self, descriptor: int, file_bytes: int) -> None:
        if self.number:
            raise OSError(self.number, "no")
        super().allocate(descriptor, file_bytes)

    def disk_used_ratio(self, path: str) -> float:
        return 0.99


@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, StoreFullError), (errno.EMFILE, SegmentCreateError)])
def test_segment_that_cannot_be_created_is_requested_again(
    tmp_path: Path, open_store: Open, clock: Clock, number: int, error: type[Exception]
) -> None:
    source = open_store(tmp_path / "source", observers=[Watcher()])
    random_life(source, Random(SEED), clock, 60)
    data, files = log_of(source), FailingFiles()
    replica = open_store(tmp_path / "replica", files=files, observers=[Watcher()])
    chance, refused = Random(SEED), 0
    while (start := replica.received_offset) < len(data):
        files.number = chance.choice([0, number])
        before = replica.end_offset, replica.received_offset, replica.last_offset
        try:
            replica.append_raw(start, data[start : start + 3_000])
        except error:
            refused += 1
            if start + 3_000 < SMALL.commit_log_file_bytes:
                assert before == (replica.end_offset, replica.received_offset, replica.last_offset)
    assert refused
    assert state_of(replica) == state_of(source)


def test_closed_read_only_and_failed_stores_accept_no_bytes(tmp_path: Path, open_store: Open, stopped: Path) -> None:
    store = open_store(stopped)
    store.fail("the disk failed")
    with pytest.raises(StoreFailedError):
        store.append_raw(store.end_offset, b"\0")
    store.close()
    with pytest.raises(StoreClosedError):
        store.append_raw(store.end_offset, b"\0")
    reading = MessageStore.open_read_only(stopped, SMALL, now_ms=Clock(), levels=store.levels)
    with pytest.raises(StoreReadOnlyError):
        reading.append_raw(reading.end_offset, b"\0")
    reading.abandon()


def test_replica_continues_as_a_broker_of_its_own(tmp_path: Path, open_store: Open, clock: Clock) -> None:
    source = open_store(tmp_path / "source", observers=[Watcher()])
    random_life(source, Random(SEED), clock, 60)
    replica = open_store(tmp_path / "replica", observers=[Watcher()])
    data = log_of(source)
    replica.append_raw(0, data[:-10])
    replica.forget_received()
    appended = replica.append(message("own"))
    assert appended.physical_offset == source.last_offset
    random_life(replica, Random(SEED + 1), clock, 60)
    flush(replica)
    replica.close()
    assert not kinds(open_store(tmp_path / "replica", observers=[Watcher()]))


@pytest.mark.parametrize("recording", range(3))
def test_loss_of_power_leaves_a_beginning_of_the_same_log(
    tmp_path: Path, open_store: Open, clock: Clock, recording: int
) -> None:
    chance, path = Random(SEED * 10 + recording), tmp_path / "replica"
    source = open_store(tmp_path / "source", observers=[Watcher()])
    random_life(source, chance, clock, 100)
    data, files = log_of(source), RecordingFiles(str(path))
    replica = open_store(path, files=files, observers=[Watcher()])
    flushed = [(0, 0)]
    for offset, piece in cuts(data, chance, 3_000):
        replica.append_raw(offset, piece)
        kind = chance.randrange(30)
        if kind < 3:
            flush(replica)
        elif kind == 3:
            snapshot(replica)
        elif kind == 4:
            replica.write_behind()
        if kind < 4:
            flushed.append((files.calls, replica.end_offset))
    replica.abandon()

    def check(state: Path, call: int) -> None:
        store = open_store(state, files=QuietFiles(), observers=[Watcher()], end_at_damage=True)
        assert store.end_offset >= max(end for at, end in flushed if at <= call)
        assert log_of(store) == data[: store.end_offset]
        receive(store, data[store.end_offset :], chance, store.end_offset)
        assert segments_of(store) == segments_of(source)
        assert state_of(store) == state_of(source)
        store.abandon()

    after_crashes(files, seed=SEED + recording, states=max(CRASH_STATES // 15, 20), folder=tmp_path, check=check)
