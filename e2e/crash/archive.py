"""The whole log of a broker that deletes old segments: hard links to them, made while it runs."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from harness.commitlog import BadLogError

INTERVAL_S = 0.1
"""A segment exists for seconds before it is deleted."""


class LogArchive(threading.Thread):
    """Links segments in its own thread until `stop`. ``path`` is then a store with all segments since the start."""

    def __init__(self, store_path: Path, path: Path) -> None:
        super().__init__(name="log-archive", daemon=True)
        self.path = path
        self._segments_path = path / "commitlog"
        self._source_path = store_path / "commitlog"
        self._stopping = threading.Event()
        self._segments_path.mkdir(parents=True)

    def run(self) -> None:
        while not self._stopping.wait(INTERVAL_S):
            self._link()

    def _link(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # the folder does not exist yet, or a segment was just deleted
            for name in os.listdir(self._source_path):
                if name.isdigit() and not (self._segments_path / name).exists():
                    os.link(self._source_path / name, self._segments_path / name)

    def stop(self) -> None:
        """Link the rest, and check that no segment is missing. BadLogError."""
        self._stopping.set()
        self.join()
        self._link()
        end = 0
        for path in sorted(self._segments_path.iterdir()):
            if int(path.name) != end:
                raise BadLogError(f"the archive has no segment {end:020d}: it was deleted before it was linked")
            end += path.stat().st_size

    def deleted(self) -> int:
        """Return the number of segments that the broker has deleted."""
        present = set(os.listdir(self._source_path))
        return sum(path.name not in present for path in self._segments_path.iterdir())
