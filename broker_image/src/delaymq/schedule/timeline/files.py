"""Files of the index, as the index needs them; the broker implements them with those of the store."""

from __future__ import annotations

from typing import Protocol


class TimelineDamagedError(OSError):
    """A file of the index differs from what was written: the index has to be built again from the log."""


class RunFile(Protocol):
    """An open file, closed when the last reference to it is dropped."""

    def pread(self, count: int, position: int) -> bytes:
        """Return up to `count` bytes. OSError."""

    def pwrite(self, data: bytes, position: int) -> None:
        """Write all of `data`. OSError."""

    def sync(self) -> None:
        """Flush the content to disk; runs in any thread. OSError."""


class RunFiles(Protocol):
    """The folder of the index."""

    def create(self, name: str) -> RunFile:
        """Create an empty file. OSError."""

    def open(self, name: str) -> RunFile:
        """Open a file. OSError."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if it is missing. OSError."""

    def write(self, name: str, *parts: bytes) -> None:
        """Create or replace a file and flush its content to disk; runs in any thread. OSError."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists. OSError."""

    def names(self) -> list[str]:
        """Return the names of all files."""

    def sync_names(self) -> None:
        """Flush the names of created and removed files to disk; runs in any thread. OSError."""
