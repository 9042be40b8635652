"""Files of the timeline: damage in every part is detected, and lookups work at all times."""

from __future__ import annotations

import json
import random
import struct
from zlib import crc32

import pytest
from delaymq.schedule.timeline import Pending, Timeline, TimelineDamagedError
from delaymq.schedule.timeline.entries import ENTRY, ENTRY_BYTES, NO_RECORD, packed_end
from delaymq.schedule.timeline.rebuilding import GroupStatements, Rebuilding
from delaymq.schedule.timeline.runs import BLOCK_BYTES, BLOCK_ENTRIES, HEADER_BYTES, FileRun, RunWriter, Sizes, open_run
from delaymq.schedule.timeline.state import Capture, empty, restore
from delaymq_testing.repetitions import SEED
from delaymq_testing.schedule.memory_files import MemoryFile, MemoryFiles

SIZES = Sizes(memory=20, run_in_memory=40, merged_runs=3, step=20)
COUNTS = {3: 700, 4: 1, 9: 600}
"""Entries of the file by partition: three blocks, the last one not full."""
ENTRIES = sum(COUNTS.values())
BLOCKS = 3
TABLES_AT = HEADER_BYTES + ENTRIES * ENTRY_BYTES
FILE_BYTES = TABLES_AT + 4 * BLOCKS + 12 * len(COUNTS)
STATED_BYTES = 24
"""Bytes of the header that state something; the others are zero."""


def entry(partition: int, number: int) -> bytes:
    return ENTRY.pack(1_000 + number // 2, 10_000 * partition + number, number, 100 + number, 1)


def written(files: MemoryFiles) -> bytes:
    """Writes the file `a.run`; returns its entries."""
    writer = RunWriter("a.run", files.create("a.run"))
    expected = b""
    for partition, count in COUNTS.items():
        rows = [entry(partition, number) for number in range(count)]
        expected += b"".join(rows)
        for row in rows:
            writer.append(partition, row)
    run = writer.finish(is_plain=True)
    assert isinstance(run, FileRun)
    assert not run.is_synced
    return expected


def content(files: MemoryFiles) -> tuple[list[tuple[int, int, int]], bytes]:
    """Reads the file as a start does: sections and entries. TimelineDamagedError."""
    run = open_run("a.run", files.open("a.run"), is_plain=True)
    run.verify()
    return [tuple(section) for section in run.sections], run.read(0, run.count)


def test_run_file_has_the_documented_format() -> None:
    files = MemoryFiles()
    expected = written(files)
    data = files.read("a.run")
    assert data is not None
    assert len(data) == FILE_BYTES
    magic, count, sections, checksum = struct.unpack_from(">8sQII", data)
    assert (magic, count, sections) == (b"DMQRUN01", ENTRIES, len(COUNTS))
    assert checksum == crc32(data[:20] + bytes(4) + data[TABLES_AT:])
    assert data[STATED_BYTES:HEADER_BYTES] == bytes(HEADER_BYTES - STATED_BYTES)
    assert data[HEADER_BYTES:TABLES_AT] == expected
    blocks = [expected[at : at + BLOCK_BYTES] for at in range(0, len(expected), BLOCK_BYTES)]
    assert struct.unpack_from(f">{BLOCKS}I", data, TABLES_AT) == tuple(map(crc32, blocks))
    assert list(struct.iter_unpack(">IQ", data[TABLES_AT + 4 * BLOCKS :])) == list(COUNTS.items())


def test_run_file_is_read_at_any_position() -> None:
    files = MemoryFiles()
    expected = written(files)
    run = open_run("a.run", files.open("a.run"), is_plain=False)
    assert (run.count, run.left, run.is_plain, run.is_synced) == (ENTRIES, ENTRIES, False, True)
    assert run.file_bytes == FILE_BYTES
    for first, count in [(0, 1), (BLOCK_ENTRIES - 1, 2), (BLOCK_ENTRIES, 1), (5, 2 * BLOCK_ENTRIES), (ENTRIES - 1, 1)]:
        assert run.read(first, count) == expected[first * ENTRY_BYTES : (first + count) * ENTRY_BYTES]
        assert run.key_at(first) == ENTRY.unpack_from(expected, first * ENTRY_BYTES)[:2]
    _, _, last = run.sections
    assert run.find(last.first, last.end, (1_010, 0)) == last.first + 20
    assert run.find(last.first, last.end, (1_010, 90_021)) == last.first + 21
    assert run.find(last.first, last.end, (9_999, 0)) == last.end


PLACES = {
    "magic": range(8),
    "number of entries": range(8, 16),
    "number of sections": range(16, 20),
    "checksum of the tables": range(20, STATED_BYTES),
    "first block": range(HEADER_BYTES, HEADER_BYTES + BLOCK_BYTES, 97),
    "last block": range(HEADER_BYTES + 2 * BLOCK_BYTES, TABLES_AT, 97),
    "checksums of blocks": range(TABLES_AT, TABLES_AT + 4 * BLOCKS),
    "sections": range(TABLES_AT + 4 * BLOCKS, FILE_BYTES),
}


@pytest.mark.parametrize("part", PLACES)
def test_damage_in_each_part_of_a_run_file_is_detected(part: str) -> None:
    files = MemoryFiles()
    written(files)
    sound = content(files)
    for at in PLACES[part]:
        files.damage("a.run", at)
        with pytest.raises(TimelineDamagedError, match=r"a\.run"):
            content(files)
        files.damage("a.run", at)
    assert content(files) == sound


@pytest.mark.parametrize(
    "size",
    [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, HEADER_BYTES + BLOCK_BYTES, TABLES_AT - 1, TABLES_AT,
     TABLES_AT + 4 * BLOCKS, FILE_BYTES - 1],
)  # fmt: skip
def test_truncated_run_file_is_detected(size: int) -> None:
    files = MemoryFiles()
    written(files)
    file = files.open("a.run")
    del file.content[size:]
    with pytest.raises(TimelineDamagedError, match=r"a\.run"):
        content(files)


def test_run_file_with_sections_of_another_number_of_entries_is_rejected() -> None:
    files = MemoryFiles()
    written(files)
    file = files.open("a.run")
    tail = file.content[TABLES_AT : TABLES_AT + 4 * BLOCKS] + struct.pack(">IQIQIQ", 3, 700, 4, 2, 9, 600)
    head = struct.pack(">8sQII", b"DMQRUN01", ENTRIES, 3, 0)
    file.pwrite(struct.pack(">8sQII", b"DMQRUN01", ENTRIES, 3, crc32(tail, crc32(head))), 0)
    file.pwrite(bytes(tail), TABLES_AT)
    with pytest.raises(TimelineDamagedError, match="another number of entries"):
        content(files)


def test_damage_after_the_start_is_detected_when_the_block_is_read() -> None:
    files = MemoryFiles()
    written(files)
    run = open_run("a.run", files.open("a.run"), is_plain=True)
    run.verify()
    files.damage("a.run", HEADER_BYTES + BLOCK_BYTES + 5)
    assert run.read(0, BLOCK_ENTRIES)
    for first, count in [(BLOCK_ENTRIES, 1), (0, ENTRIES)]:
        with pytest.raises(TimelineDamagedError, match=r"block 1 of a\.run"):
            run.read(first, count)


# Lookups.


def pending(index: Timeline, due_ms: int, identity: int, topic: str = "T", record: int | None = None) -> Pending:
    return Pending(due_ms, identity, identity if record is None else record, 100, 0, index.partitions.number(topic))


def merge_all(index: Timeline) -> None:
    while index.maintain():
        pass


@pytest.mark.parametrize("places", ["memory", "runs", "files", "both"])
def test_messages_of_one_due_time_are_found_wherever_they_are(places: str) -> None:
    index = empty(MemoryFiles(), Sizes(memory=1_000, run_in_memory=5, merged_runs=2, step=100), 1_000)
    for number in range(30):
        index.add(pending(index, 100 + number % 3, number, "T" if number % 2 else "U"))
        if places != "memory" and number in (10, 20):
            index.freeze()
    carried = pending(index, 101, 7, record=1_000)
    index.add(carried)
    partition = index.partitions.number("T")
    assert index.end(101, 13, partition) is not None
    if places != "memory":
        if places != "both":
            index.freeze()
        if places == "files":
            merge_all(index)
            assert any(run.name for run in index.runs)
    found = index.due_at(101, partition)
    assert found == [pending(index, 101, 1), carried, pending(index, 101, 19), pending(index, 101, 25)]
    assert [each.identity for each in index.due_at(102, partition)] == [5, 11, 17, 23, 29]
    assert index.due_at(99, partition) == index.due_at(103, partition) == index.due_at(101, 77) == []
    taken = index.take(101, 100)
    assert len(taken) == 19
    assert index.due_at(101, partition) == []
    index.give_back(taken)
    assert index.due_at(101, partition) == found


@pytest.mark.parametrize("seed", range(SEED * 100, SEED * 100 + 10))
def test_index_of_a_whole_log_has_what_the_newest_statements_say(seed: int) -> None:
    chance = random.Random(seed)
    files = MemoryFiles()
    index = empty(files, SIZES._replace(run_in_memory=chance.choice([1, 7, 100, 10_000])), 1_000)
    rebuilding = Rebuilding(index, GroupStatements())
    expected: dict[int, Pending] = {}
    seen: list[int] = []
    for place in range(1_500):
        topic = f"T{place % 4}"
        step = chance.random()
        if step < 0.5 or not expected:
            expected[place] = pending(index, chance.randint(1, 500), place, topic)
            seen.append(place)
            rebuilding.hold(expected[place])
        elif step < 0.6:
            carried = chance.choice(list(expected.values()))._replace(record=place)
            expected[carried.identity] = carried
            rebuilding.hold(carried)
        elif step < 0.7:
            moved = chance.choice(list(expected.values()))._replace(due_ms=chance.randint(1, 500))
            expected[moved.identity] = moved
            rebuilding.change(moved.identity, place, moved.due_ms)
        elif step < 0.95:
            rebuilding.change(expected.pop(chance.choice(list(expected))).identity, place, None)
        else:
            # Statements after the end, and about messages whose records were deleted.
            ended_before = chance.choice(seen)
            if ended_before not in expected:
                rebuilding.change(ended_before, place, chance.choice([None, 7]))
            rebuilding.change(1_000_000 + place, place, chance.choice([None, 7]))
    rebuilding.finish(lambda: merge_all(index))
    assert not any(name.endswith(".sorted") for name in files.names() if name not in index.removable)
    assert index.partitions.messages == len(expected)
    assert index.partitions.bytes == 100 * len(expected)
    assert {key.topic: totals.messages for key, _, totals in index.partitions.classes()} == {
        topic: count
        for number, topic in enumerate(("T0", "T1", "T2", "T3"))
        if (count := sum(each.identity % 4 == number for each in expected.values()))
    }
    assert index.holders.first() == min(each.record for each in expected.values()) // 1_000 * 1_000
    found = {}
    for due_ms, _, identity, _ in index.take(1_000, 10_000):
        entry = index.taken(identity)
        assert entry is not None
        assert due_ms == expected[identity].due_ms
        found[identity] = entry._replace(partition=expected[identity].partition)
    assert found == expected


def test_rebuilding_keeps_partitions_that_no_run_contains_yet() -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    rebuilding = Rebuilding(index, GroupStatements())
    for number in range(7_000):
        rebuilding.hold(pending(index, number, number, "early" if number < 6_990 else "late"))
    rebuilding.finish(lambda: merge_all(index))
    assert index.partitions.totals("late").messages == 10
    assert len(index.take(7_000, 7_000)) == 7_000


def test_empty_log_leads_to_an_empty_index() -> None:
    index = empty(MemoryFiles(), SIZES, 1_000)
    rebuilding = Rebuilding(index, GroupStatements())
    rebuilding.change(1, 1, None)
    rebuilding.finish(lambda: merge_all(index))
    assert index.take(1_000, 9) == []
    assert (index.partitions.messages, index.next_due_ms(), index.holders.first()) == (0, None, None)
    index.add(pending(index, 5, 5))
    assert [each[2] for each in index.take(5, 9)] == [5]


# States.


def saved(files: MemoryFiles) -> tuple[dict[str, object], str]:
    """Writes a state with runs in memory and in a file, ends and taken messages; returns reference and file."""
    index = empty(files, SIZES, 1_000)
    for number in range(100):
        index.add(pending(index, number, number))
        index.maintain()
    merge_all(index)
    for number in range(100, 110):
        index.add(pending(index, number, number))
    assert len(index.take(10, 5)) == 5
    assert index.end(60, 60, index.partitions.number("T")) is not None
    capture = Capture(index)
    capture.write()
    capture.finish(is_published=True)
    assert any(run.name for run in index.runs)
    assert not all(run.name for run in index.runs)
    return capture.reference, str(capture.reference["file"])


def identities(index: Timeline) -> list[int]:
    return [each[2] for each in index.take(1_000, 1_000)]


def test_state_is_restored_with_taken_messages() -> None:
    files = MemoryFiles()
    reference, _ = saved(files)
    files.lose_power()
    index = restore(files, json.loads(json.dumps(reference)), SIZES, 1_000)
    assert index.partitions.messages == 109
    assert identities(index) == [number for number in range(110) if number != 60]


def test_damage_in_each_part_of_a_state_is_detected() -> None:
    files = MemoryFiles()
    reference, name = saved(files)
    data = files.read(name)
    assert data is not None
    for at in range(0, len(data), 7):
        files.damage(name, at)
        with pytest.raises(ValueError, match="is missing or damaged"):
            restore(files, reference, SIZES, 1_000)
        files.damage(name, at)
    assert restore(files, reference, SIZES, 1_000).partitions.messages == 109


def test_truncated_or_missing_files_of_a_state_are_detected() -> None:
    for size in (0, 1, 100, -1):
        files = MemoryFiles()
        reference, name = saved(files)
        del files.open(name).content[size:]
        with pytest.raises(ValueError, match="is missing or damaged"):
            restore(files, reference, SIZES, 1_000)
    for suffix in ("state", "run"):
        files = MemoryFiles()
        reference, _ = saved(files)
        for name in files.names():
            if name.endswith(suffix):
                files.remove(name)
        with pytest.raises(ValueError, match=r"is missing or damaged|cannot be restored"):
            restore(files, reference, SIZES, 1_000)


def test_damaged_run_of_a_state_is_detected_at_the_start() -> None:
    files = MemoryFiles()
    reference, _ = saved(files)
    name = [name for name in files.names() if name.endswith("run")][-1]
    files.damage(name, HEADER_BYTES + 3)
    with pytest.raises(ValueError, match="block 0"):
        restore(files, reference, SIZES, 1_000)


def changed(files: MemoryFiles, name: str, reference: dict[str, object], **members: object) -> dict[str, object]:
    """Changes members of a state, with a sound checksum; returns the new reference."""
    file: MemoryFile = files.open(name)
    head, _, rest = bytes(file.content).partition(b"\n")
    data = json.dumps({**json.loads(head), **members}).encode() + b"\n" + rest
    file.content[:] = data
    return {**reference, "bytes": len(data), "crc32": f"{crc32(data):08x}"}


@pytest.mark.parametrize(
    "members",
    [
        {"partitions": []},
        {"partitions": {}},
        {"next": 0},
        {"next": None},
        {"runs": [{"plain": True, "name": "00000000000000000999.run"}]},
        {"runs": [{"plain": True, "sections": [[0, 1]]}]},
        {"positionsBytes": 7},
        {"holders": {"segmentBytes": 77, "counts": []}},
        {"holders": None},
    ],
)
def test_state_that_contradicts_itself_is_rejected(members: dict[str, object]) -> None:
    files = MemoryFiles()
    reference, name = saved(files)
    reference = changed(files, name, reference, **members)
    with pytest.raises(ValueError, match=r"\w"):
        restore(files, reference, SIZES, 1_000)


@pytest.mark.parametrize("reference", [None, [], {}, {"version": 3}, {"version": 2}, {"version": 1, "file": "x"}])
def test_reference_of_another_form_is_rejected(reference: object) -> None:
    with pytest.raises(ValueError, match=r"version 2|missing or damaged"):
        restore(MemoryFiles(), reference, SIZES, 1_000)


def test_end_of_an_entry_sorts_like_the_entry() -> None:
    assert ENTRY.unpack(packed_end(7, 9)) == (7, 9, NO_RECORD, 0, 0)
    assert entry(0, 5)[:16] < packed_end(10_000, 0) < ENTRY.pack(10_000, 1, 1, 1, 1)
