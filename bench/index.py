"""Measure the index of pending messages alone: insertion, memory, bytes written, and a start."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import proc
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.schedule.timeline.entries import ENTRY_BYTES
from delaymq.schedule.timeline.runs import Sizes
from delaymq.schedule.timeline.state import Capture, empty, restore
from delaymq.store.disk.files import Files
from delaymq.store.disk.own_folder import OwnFolder

YEAR_MS = 365 * 86_400_000
RECORD_BYTES = 300
SEGMENT_BYTES = 1 << 30
STEP_ENTRIES = 64
"""Entries that are added before some are merged, as between two turns of the broker's event loop."""
STEPS = 4
SNAPSHOT_ENTRIES = 100_000
"""Entries per snapshot: a broker takes one per 32 MiB of the log."""
QUARTERS = 4
TOPICS = 50


class CountingFiles(Files):
    """File calls that count the bytes written."""

    written_bytes = 0

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        self.written_bytes += len(data)
        super().pwrite(descriptor, data, position)


def _fill(timeline: Timeline, numbers: range, *, one_level: bool, topics: int) -> None:
    """Add the entries with these numbers, and take snapshots."""
    partitions = [timeline.partitions.number(f"T{number}", "", int(one_level)) for number in range(topics)]
    dues = random.Random(numbers.start)
    for number in numbers:
        place = number * RECORD_BYTES
        due_ms = YEAR_MS + number // 20 if one_level else dues.randrange(YEAR_MS)
        timeline.add(Pending(due_ms, place, place, RECORD_BYTES, 0, partitions[number % topics]))
        if number % STEP_ENTRIES == 0:
            for _ in range(STEPS):
                if not timeline.maintain():
                    break
        if number % SNAPSHOT_ENTRIES == SNAPSHOT_ENTRIES - 1:
            _snapshot(timeline)


def _snapshot(timeline: Timeline) -> object:
    """Write the state; return the reference to it."""
    capture = Capture(timeline)
    capture.write()
    capture.finish(is_published=True)
    return capture.reference


def main(words: list[str]) -> int:
    """Print the figures; return 0."""
    parser = argparse.ArgumentParser(prog="bench/index.py", description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000_000, metavar="COUNT", help="entries (10000000)")
    parser.add_argument("--one-level", action="store_true", help="due in the order of insertion, not within a year")
    parser.add_argument("--topics", type=int, default=TOPICS, metavar="COUNT", help=f"topics ({TOPICS})")
    parser.add_argument("--folder", type=Path, help="folder with room for 100 bytes per entry (default: TMPDIR)")
    arguments = parser.parse_args(words)
    if arguments.entries < QUARTERS or arguments.topics < 1:
        parser.error("--entries must be at least 4, and --topics at least 1")
    with tempfile.TemporaryDirectory(prefix="delaymq-index-", dir=arguments.folder) as path:
        files = CountingFiles()
        folder = OwnFolder(files, path)
        timeline = empty(folder, Sizes(), SEGMENT_BYTES)
        each = arguments.entries // QUARTERS
        for quarter in range(QUARTERS):
            before = time.process_time()
            numbers = range(quarter * each, (quarter + 1) * each)
            _fill(timeline, numbers, one_level=arguments.one_level, topics=arguments.topics)
            used = (time.process_time() - before) / each * 1e6
            memory = proc.memory_mib(os.getpid(), "RssAnon")
            print(f"quarter {quarter + 1}: {used:.2f} µs processor per entry, RssAnon {memory:.0f} MiB", flush=True)
        reference = _snapshot(timeline)
        count = each * QUARTERS
        stored = sum(file.stat().st_size for file in Path(path).iterdir())
        print(f"{count:,} entries: {stored / count:.1f} bytes each on disk")
        print(f"each entry written {files.written_bytes / ENTRY_BYTES / count:.1f} times")
        del timeline
        before = time.monotonic()
        restored = restore(folder, reference, Sizes(), SEGMENT_BYTES)
        print(f"restored {restored.partitions.messages:,} entries in {time.monotonic() - before:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
