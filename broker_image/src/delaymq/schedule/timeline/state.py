"""State of the index for a snapshot: one file with the small runs, the positions, and what has been taken.

Format: docs/formats/store.md, "Timeline files".
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Final
from zlib import crc32

from delaymq.schedule.timeline.cursors import Cursor
from delaymq.schedule.timeline.entries import ENTRY, ENTRY_BYTES, Pending, Row
from delaymq.schedule.timeline.files import RunFiles, TimelineDamagedError
from delaymq.schedule.timeline.partitions import Partitions
from delaymq.schedule.timeline.runs import FileRun, Run, Sizes, open_run, sections_of
from delaymq.schedule.timeline.timeline import Timeline

STATE_VERSION: Final = 2
_KNOWN_VERSIONS: Final = (1, STATE_VERSION)
"""Version 1 has no groups."""
_POSITION: Final = struct.Struct(">IIQQ")
"""Number of the run, partition, first entry, end."""


class Capture:
    """A captured state: `write` in any thread, then `finish` on the thread of the index.

    `reference` is to be stored in the snapshot after `write`, which completes it.
    """

    def __init__(self, timeline: Timeline) -> None:
        timeline.freeze()
        self._timeline = timeline
        self._files = timeline.files
        self._name = timeline.next_name("state")
        self._head, self._parts = _captured(timeline)
        self._unsynced = [run for run in timeline.runs if isinstance(run, FileRun) and not run.is_synced]
        self._names = {self._name, *(run.name for run in timeline.runs if run.name)}
        self._removed = timeline.removable
        self._is_written = False
        self.reference: dict[str, object] = {"version": STATE_VERSION, "file": self._name}

    def write(self) -> None:
        """Remove the files that no snapshot refers to, then write and sync those of this state; complete `reference`.

        OSError.
        """
        # Parts of a few MiB are not joined: that would hold the interpreter lock for milliseconds.
        parts = [json.dumps(self._head, separators=(",", ":")).encode() + b"\n", *self._parts]
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


def _captured(timeline: Timeline) -> tuple[dict[str, object], list[bytes]]:
    """Return the first line of the file, not encoded, and the parts that follow it."""
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
    return head, [bytes(positions), taken, *data]


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
    timeline.partitions = timeline.queues.partitions = Partitions.from_state(head)
    timeline.holding.refresh()
    timeline.file_number = int(head["fileNumber"])
    timeline.holders.restore(head["holders"])
    at = int(head["positionsBytes"])
    positions = list(_POSITION.iter_unpack(rest[:at]))
    taken = rest[at : at + int(head["takenBytes"])]
    at += len(taken)
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
