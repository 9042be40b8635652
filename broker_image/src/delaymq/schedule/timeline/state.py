"""State of the index for a snapshot: one file with the small runs, the positions, and what has been taken.

Format: docs/formats/store.md, "Timeline files".
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple
from zlib import crc32

from delaymq.schedule.timeline.cursors import Cursor
from delaymq.schedule.timeline.entries import ENTRY, ENTRY_BYTES, Pending, Row
from delaymq.schedule.timeline.files import RunFiles, TimelineDamagedError
from delaymq.schedule.timeline.partitions import Owner, Partitions
from delaymq.schedule.timeline.runs import FileRun, Run, Sizes, open_run, sections_of
from delaymq.schedule.timeline.timeline import Timeline

STATE_VERSION: Final = 2
_KNOWN_VERSIONS: Final = (1, STATE_VERSION)
"""Version 1 has no groups."""
_POSITION: Final = struct.Struct(">IIQQ")
"""Number of the run, partition, first entry, end."""
_NAMES: Final = 3
"""Names of an owner: account, topic and group."""
_CLASS_BYTES: Final = 24
_OWNER_BYTES: Final = 4 + 4 * _NAMES


class Classes(NamedTuple):
    """Owners, and counts by partition and owner, at the time of a snapshot. There may be 100,000 of each.

    Capturing them copies references only. `packed` consists of steps of a few milliseconds, because no other thread
    runs during a step.
    """

    owners: dict[int, Owner]
    keys: list[tuple[int, int]]
    """Partition and owner of each count."""
    counts: list[int]
    """Messages and bytes of each count, in turn."""

    @classmethod
    def of(cls, partitions: Partitions) -> Classes:
        """Capture the present ones."""
        counts = partitions.counts
        owned = chain.from_iterable(map(itemgetter(0), counts.values()))
        return cls(dict(partitions.owners), list(counts), list(owned))

    def packed(self) -> tuple[dict[str, object], list[bytes]]:
        """Return members of the first line of the file that describe the parts, and the parts; in any thread."""
        names = list(chain.from_iterable(self.owners.values()))
        text = "".join(names).encode("utf-8", "surrogatepass")
        parts = [
            _pack("I", self.owners),
            _pack("I", map(len, names)),
            text,
            _pack("I", chain.from_iterable(self.keys)),
            _pack("q", self.counts),
        ]
        return {"owners": len(self.owners), "namesBytes": len(text), "counts": len(self.keys)}, parts


class Capture:
    """A captured state: `write` in any thread, then `finish` on the thread of the index.

    `reference` is to be stored in the snapshot after `write`, which completes it.
    """

    def __init__(self, timeline: Timeline) -> None:
        timeline.freeze()
        self._timeline = timeline
        self._files = timeline.files
        self._name = timeline.next_name("state")
        self._classes = Classes.of(timeline.partitions)
        self._head, self._positions, self._entries = _captured(timeline)
        self._unsynced = [run for run in timeline.runs if isinstance(run, FileRun) and not run.is_synced]
        self._names = {self._name, *(run.name for run in timeline.runs if run.name)}
        self._removed = timeline.removable
        self._is_written = False
        self.reference: dict[str, object] = {"version": STATE_VERSION, "file": self._name}

    def write(self) -> None:
        """Remove the files that no snapshot refers to, then write and sync those of this state; complete `reference`.

        OSError.
        """
        described, classes = self._classes.packed()
        head = json.dumps(self._head | described, separators=(",", ":")).encode() + b"\n"
        # Parts of a few MiB are not joined: that would hold the interpreter lock for milliseconds.
        parts = [head, *self._positions, *classes, *self._entries]
        checksum = 0
        for part in parts:
            checksum = crc32(part, checksum)
        self.reference |= {"bytes": sum(map(len, parts)), "crc32": f"{checksum:08x}"}
        # On a full disk, the removed files are the space for the new one.
        for name in self._removed:
            self._files.remove(name)
        self._files.write(self._name, *parts)
        for run in self._unsynced:
            run.file.sync()
        self._files.sync_names()
        self._is_written = True

    def finish(self, *, is_published: bool) -> None:
        """Take note of whether the snapshot now refers to this state."""
        timeline = self._timeline
        if not self._is_written:
            timeline.garbage.add(self._name)
            return
        if not is_published:
            # It may refer to this state nevertheless, if only the sync of its folder failed.
            timeline.referenced |= self._names
            return
        timeline.garbage -= self._removed
        for run in self._unsynced:
            run.is_synced = True
        timeline.published(self._names)


def _captured(timeline: Timeline) -> tuple[dict[str, object], list[bytes], list[bytes]]:
    """Return the first line of the file, not encoded, and the parts before and after those of owners and counts."""
    runs: list[dict[str, object]] = []
    data: list[bytes] = []
    positions = bytearray()
    for number, (run, left) in enumerate(zip(timeline.runs, timeline.positions(timeline.runs), strict=True)):
        described: dict[str, object] = {"plain": run.is_plain}
        if isinstance(run, FileRun):
            described["name"] = run.name
        else:
            described["sections"] = [[section.partition, section.end - section.first] for section in run.sections]
            data.append(run.data)
        runs.append(described)
        for position in left:
            positions += _POSITION.pack(number, *position)
    taken = b"".join(struct.pack(">I", entry.partition) + entry.packed() for entry in timeline.taken_messages)
    head = {
        **timeline.partitions.state(),
        "fileNumber": timeline.file_number,
        "holders": timeline.holders.state(),
        "orders": timeline.sweep.state(),
        "runs": runs,
        "positionsBytes": len(positions),
        "takenBytes": len(taken),
    }
    return head, [bytes(positions), taken], data


def restore(files: RunFiles, reference: object, sizes: Sizes, segment_bytes: int) -> Timeline:
    """Return the index to which a snapshot refers. ValueError, with the reason, if a file is missing or damaged.

    `segment_bytes` is the size of the log's segments.
    """
    if not isinstance(reference, dict) or reference.get("version") not in _KNOWN_VERSIONS:
        raise ValueError(f"the state of the timeline does not have version {STATE_VERSION}")
    name = str(reference.get("file"))
    try:
        data = files.read(name)
        if data is None or len(data) != reference.get("bytes") or f"{crc32(data):08x}" != reference.get("crc32"):
            raise ValueError(f"{name} is missing or damaged")
        timeline = _decode(Timeline(files, sizes, segment_bytes), data)
        if reference["version"] != STATE_VERSION and timeline.partitions.of_level(0).messages:
            # A change of a group would not apply to them now, but after the next rebuild.
            raise ValueError(f"{name} does not state the groups of timed messages")
        timeline.published({name, *(run.name for run in timeline.runs if run.name)})
    except (OSError, KeyError, TypeError, IndexError, struct.error, TimelineDamagedError) as error:
        raise ValueError(f"the timeline cannot be restored from {name} ({error})") from error
    _take_over_files(timeline)
    return timeline


def empty(files: RunFiles, sizes: Sizes, segment_bytes: int) -> Timeline:
    """Return an empty index; files of an earlier one are removed later."""
    timeline = Timeline(files, sizes, segment_bytes)
    _take_over_files(timeline)
    return timeline


def _take_over_files(timeline: Timeline) -> None:
    """Let the files that the snapshot does not refer to be removed, and use none of their numbers."""
    names = timeline.files.names()
    timeline.garbage.update(set(names) - timeline.referenced)
    numbers = [int(number) for name in names if (number := name.partition(".")[0]).isdigit()]
    timeline.file_number = max([timeline.file_number, *numbers])


def _decode(timeline: Timeline, data: bytes) -> Timeline:
    line, _, rest = data.partition(b"\n")
    head = json.loads(line)
    at = int(head["positionsBytes"])
    positions = list(_POSITION.iter_unpack(rest[:at]))
    taken = rest[at : at + int(head["takenBytes"])]
    at += len(taken)
    if "accounts" not in head:  # in version 1, the first line has everything
        classes, at = _unpacked_classes(head, rest, at)
        head |= classes
    timeline.partitions = timeline.queues.partitions = Partitions.from_state(head)
    timeline.holding.refresh()
    timeline.file_number = int(head["fileNumber"])
    timeline.holders.restore(head["holders"])
    for number, described in enumerate(head["runs"]):
        run: Run
        if "name" in described:
            run = open_run(described["name"], timeline.files.open(described["name"]), is_plain=bool(described["plain"]))
            run.verify()
        else:
            sections = sections_of((int(partition), int(count)) for partition, count in described["sections"])
            size = (sections[-1].end if sections else 0) * ENTRY_BYTES
            run = Run(rest[at : at + size], sections, is_plain=bool(described["plain"]))
            at += size
        run.age = number + 1
        timeline.add_run(run, list(_cursors(run, number, positions)))
    timeline.sweep.restore(head.get("orders", []))
    # What had been taken when the state was captured is pending again; the counts include it.
    for start in range(0, len(taken), 4 + ENTRY_BYTES):
        (partition,) = struct.unpack_from(">I", taken, start)
        row: Row = ENTRY.unpack_from(taken, start + 4)
        timeline.hold(Pending(*row, partition))
    return timeline


def _cursors(run: Run, number: int, positions: Iterable[tuple[int, int, int, int]]) -> Iterable[Cursor]:
    for run_number, partition, first, end in positions:
        if run_number == number:
            if not 0 <= first < end <= run.count:
                raise ValueError(f"a position is outside of its run ({first}…{end} of {run.count})")
            yield Cursor(run, partition, first, end)


def _unpacked_classes(head: dict[str, object], data: bytes, at: int) -> tuple[dict[str, object], int]:
    """Return rows of owners and counts as `Partitions.from_state` expects them, and the end of their parts.

    `at` is the beginning of the parts in `data`. ValueError, struct.error, KeyError, TypeError if they are invalid.
    """
    owners, names_bytes, classes = (_size(head, name) for name in ("owners", "namesBytes", "counts"))
    numbers = struct.unpack_from(f">{owners}I", data, at)
    lengths = struct.unpack_from(f">{owners * _NAMES}I", data, at + 4 * owners)
    at += _OWNER_BYTES * owners
    text = data[at : at + names_bytes].decode("utf-8", "surrogatepass")
    if sum(lengths) != len(text):
        raise ValueError("the names of owners have another length than stated")
    names, end = [], 0
    for length in lengths:
        names.append(text[end : end + length])
        end += length
    at += names_bytes
    keys = struct.unpack_from(f">{classes * 2}I", data, at)
    counts = struct.unpack_from(f">{classes * 2}q", data, at + 8 * classes)
    rows: dict[str, object] = {
        "owners": list(zip(numbers, names[::_NAMES], names[1::_NAMES], names[2::_NAMES], strict=True)),
        "counts": list(zip(keys[::2], keys[1::2], counts[::2], counts[1::2], strict=True)),
    }
    return rows, at + _CLASS_BYTES * classes


def _size(head: dict[str, object], name: str) -> int:
    size = head[name]
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"{name} is not a size")
    return size


def _pack(kind: str, values: Iterable[int]) -> bytes:
    numbers = list(values)
    return struct.pack(f">{len(numbers)}{kind}", *numbers)
