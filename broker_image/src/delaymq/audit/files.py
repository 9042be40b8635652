"""Files of an audit log: numbered, of limited size and number. Format: docs/formats/audit.md."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
MAX_LISTED: Final = 100_000
_NAME: Final = re.compile(r"audit-([0-9]{8,15})\.jsonl")


def file_name(number: int) -> str:
    """Return the name of a file."""
    return f"audit-{number:08d}.jsonl"


def file_numbers(folder: Path) -> list[int]:
    """Return the numbers of the files in `folder`, in ascending order; empty if it does not exist. OSError."""
    try:
        with os.scandir(folder) as entries:
            found = (_NAME.fullmatch(entry.name) for _, entry in zip(range(MAX_LISTED), entries, strict=False))
            return sorted(int(each[1]) for each in found if each is not None)
    except FileNotFoundError:
        return []


class AuditFiles:
    """Files of one writer. A line is written completely or not at all, as far as the disk allows it."""

    def __init__(self, folder: Path, max_bytes: int, max_files: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._number = 0
        self._descriptor = -1
        self._size = 0
        self.unsynced = False
        """Whether lines were written since `sync_descriptor` was called."""

    def append(self, line: bytes) -> None:
        """Write a line with a single system call, so that it survives the end of the process. OSError: not written."""
        if self._descriptor >= 0 and self._size and self._size + len(line) > self._max_bytes:
            self.close()
            self._number += 1
        if self._descriptor < 0:
            self._open()
        written = os.write(self._descriptor, line)
        if written < len(line):
            # The disk is full: a part of a line would make the next one unreadable.
            os.ftruncate(self._descriptor, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written
        self.unsynced = True

    def sync_descriptor(self) -> int | None:
        """Return a duplicate of the descriptor of the current file, to be synced and closed; None: nothing to do."""
        if self._descriptor < 0 or not self.unsynced:
            return None
        if not os.fstat(self._descriptor).st_nlink:
            self.close()  # the file was deleted by another program
            return None
        self.unsynced = False
        return os.dup(self._descriptor)

    def close(self) -> None:
        """Close the current file; the next line opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        self.folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        numbers = file_numbers(self.folder)
        number = max(self._number, numbers[-1] if numbers else 1)
        descriptor, size = self._opened(number)
        if size >= self._max_bytes:
            os.close(descriptor)
            number += 1
            descriptor, size = self._opened(number)
        self._descriptor, self._number, self._size = descriptor, number, size
        for old in numbers:
            if old <= number - self._max_files:
                (self.folder / file_name(old)).unlink(missing_ok=True)

    def _opened(self, number: int) -> tuple[int, int]:
        """Open a file, and return its descriptor and size. It ends with a complete line."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.folder / file_name(number), flags, FILE_MODE)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                size += os.write(descriptor, b"\n")  # a crash of the machine left a part of a line
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, size
