"""Owners and counts in a state file: their format, names of every kind, and the file of an earlier version."""

from __future__ import annotations

import json
import struct
from zlib import crc32

import pytest
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.schedule.timeline.runs import Sizes
from delaymq.schedule.timeline.state import Capture, Classes, empty, restore
from delaymq_testing.schedule.memory_files import MemoryFile, MemoryFiles

SIZES = Sizes(memory=20, run_in_memory=40, merged_runs=3, step=20)
OWNERS = [
    ("", "T", "g"),
    ("alice", "T", "g"),
    ("alice", "", ""),
    ("ä\n\x00", "T", "order 4711"),
    ("", "T", "\udcff\ud800😀"),
]


def filled(files: MemoryFiles) -> Timeline:
    index = empty(files, SIZES, 1_000)
    for number, names in enumerate(OWNERS * 5):
        owner = index.partitions.owner_number(*names)
        index.add(Pending(number, number, number, 10, owner, index.partitions.number("T")))
    return index


def saved(files: MemoryFiles, index: Timeline) -> dict[str, object]:
    capture = Capture(index)
    capture.write()
    capture.finish(is_published=True)
    return capture.reference


def counted(index: Timeline) -> dict[tuple[str, str, str], tuple[int, int]]:
    return {(*owner,): (*totals,) for _, owner, totals in index.partitions.classes()}


def test_owners_and_counts_are_restored_as_they_were_when_the_state_was_captured() -> None:
    files = MemoryFiles()
    index = filled(files)
    expected = dict.fromkeys(OWNERS, (5, 50))
    assert counted(index) == expected
    capture = Capture(index)
    for number in range(len(OWNERS) * 5):
        assert index.end(number, number, index.partitions.number("T")) is not None
    index.partitions.owner_number("", "T", "later")
    capture.write()
    again = restore(files, capture.reference, SIZES, 1_000)
    assert counted(again) == expected
    assert Classes.of(again.partitions).owners == dict(enumerate([("", "", ""), *OWNERS]))
    assert again.partitions.owner_number("", "T", "next") == len(OWNERS) + 1


def test_parts_have_the_documented_format() -> None:
    files = MemoryFiles()
    index = filled(files)
    index.take(3, 2)
    reference = saved(files, index)
    data = files.read(str(reference["file"]))
    assert data is not None
    line, _, rest = data.partition(b"\n")
    head = json.loads(line)
    at = head["positionsBytes"] + head["takenBytes"]
    owners = head["owners"]
    assert owners == len(OWNERS) + 1
    assert struct.unpack_from(f">{owners}I", rest, at) == tuple(range(owners))
    names = [name for owner in [("", "", ""), *OWNERS] for name in owner]
    assert struct.unpack_from(f">{3 * owners}I", rest, at + 4 * owners) == tuple(map(len, names))
    at += 16 * owners
    assert rest[at : at + head["namesBytes"]] == "".join(names).encode("utf-8", "surrogatepass")
    at += head["namesBytes"]
    classes = head["counts"]
    assert struct.unpack_from(f">{2 * classes}I", rest, at) == (0, 1, 0, 2, 0, 3, 0, 4, 0, 5)
    assert struct.unpack_from(f">{2 * classes}q", rest, at + 8 * classes) == (5, 50) * 5


def changed(
    files: MemoryFiles, reference: dict[str, object], head: dict[str, object], rest: bytes
) -> dict[str, object]:
    """Replaces a state, with a sound checksum; returns the new reference."""
    file: MemoryFile = files.open(str(reference["file"]))
    data = json.dumps(head).encode() + b"\n" + rest
    file.content[:] = data
    return {**reference, "bytes": len(data), "crc32": f"{crc32(data):08x}"}


def parts(files: MemoryFiles, reference: dict[str, object]) -> tuple[dict[str, object], bytes]:
    data = files.read(str(reference["file"]))
    assert data is not None
    line, _, rest = data.partition(b"\n")
    return json.loads(line), rest


def test_state_of_version_1_is_restored() -> None:
    files = MemoryFiles()
    index = empty(files, SIZES, 1_000)
    for number in range(10):
        owner = index.partitions.owner_number("alice" if number % 2 else "")
        index.add(Pending(number, number, number, 10, owner, index.partitions.number("T", level=1)))
    reference = saved(files, index)
    head, rest = parts(files, reference)
    at = int(str(head["positionsBytes"])) + int(str(head["takenBytes"]))
    end = at + 16 * 2 + len("alice") + 24 * 2
    for name in ("owners", "namesBytes", "nextOwner", "orders"):
        del head[name]
    head |= {"accounts": ["alice"], "counts": [[0, 0, 5, 50], [0, 1, 5, 50]]}
    reference = changed(files, {**reference, "version": 1}, head, rest[:at] + rest[end:])
    again = restore(files, reference, SIZES, 1_000)
    assert counted(again) == {("", "", ""): (5, 50), ("alice", "", ""): (5, 50)}
    assert [identity for _, _, identity, _ in again.take(100, 100)] == list(range(10))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("owners", 7), ("owners", -1), ("owners", None), ("owners", 1 << 40), ("owners", []), ("namesBytes", 3),
        ("namesBytes", -1), ("counts", 1 << 40), ("counts", -1), ("counts", []), ("nextOwner", 2),
    ],
)  # fmt: skip
def test_state_whose_sizes_are_wrong_is_rejected(name: str, value: object) -> None:
    files = MemoryFiles()
    reference = saved(files, filled(files))
    head, rest = parts(files, reference)
    reference = changed(files, reference, head | {name: value}, rest)
    with pytest.raises(ValueError, match=r"\w"):
        restore(files, reference, SIZES, 1_000)


def test_state_without_a_size_is_rejected() -> None:
    files = MemoryFiles()
    reference = saved(files, filled(files))
    head, rest = parts(files, reference)
    del head["namesBytes"]
    with pytest.raises(ValueError, match="namesBytes"):
        restore(files, changed(files, reference, head, rest), SIZES, 1_000)
