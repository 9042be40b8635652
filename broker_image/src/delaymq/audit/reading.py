"""Reading of audit logs, from the newest line to the oldest, with bounded memory. For any thread and process."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from delaymq.api_types.audit import AuditLine
from delaymq.audit.files import file_name, file_numbers

BLOCK_BYTES: Final = 64 * 1024
MAX_LINE_BYTES: Final = 64 * 1024
"""Longest line that is read; lines of this version have at most some 20 KiB."""
_CURSOR: Final = re.compile(r"([0-9]{1,15})-([0-9]{1,18})")

Cursor = tuple[int, int]
"""Number of a file, and an offset in it: lines that end at or before it are older."""

_decode = msgspec.json.Decoder(AuditLine).decode


def cursor_of(text: str) -> Cursor | None:
    """Return the cursor in a text of `cursor_text`; None if it is not one."""
    found = _CURSOR.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]))


def cursor_text(cursor: Cursor) -> str:
    """Return a cursor as text."""
    return f"{cursor[0]}-{cursor[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Selection of lines; None and empty texts select all."""

    account: str = ""
    action: str = ""
    """An action, or its beginning up to a dot: `topic` selects `topic.put`."""
    target: str = ""
    """Part of a name, regardless of case."""
    result: str = ""
    peer: str = ""
    """Beginning of the address."""
    from_ms: int | None = None
    until_ms: int | None = None

    def selects(self, line: AuditLine) -> bool:
        """Return whether a line is selected."""
        return (
            (not self.account or line.account == self.account)
            and (not self.action or line.action == self.action or line.action.startswith(f"{self.action}."))
            and (not self.result or line.result == self.result)
            and (not self.peer or line.peer.startswith(self.peer))
            and (self.from_ms is None or line.time_ms >= self.from_ms)
            and (self.until_ms is None or line.time_ms < self.until_ms)
            and (not self.target or any(self.target.lower() in each.lower() for each in line.target.values()))
        )


@dataclass(slots=True)
class Page:
    """Lines, newest first."""

    lines: list[AuditLine] = field(default_factory=list)
    next: Cursor | None = None
    """Where older lines begin; None: there are none."""
    unreadable: int = 0


def read_page(folder: Path, wanted: Filter, limit: int, before: Cursor | None = None, max_bytes: int = 1 << 62) -> Page:
    """Return up to `limit` lines that are older than `before`, after reading at most some `max_bytes`. OSError.

    A page may therefore have fewer lines, or none, although `next` is not None.
    """
    page = Page()
    read = 0
    for number in reversed(file_numbers(folder)):
        if before is not None and number > before[0]:
            continue
        end = before[1] if before is not None and number == before[0] else None
        try:
            for start, size, line in _lines_backwards(folder / file_name(number), end):
                read += size
                _take(page, wanted, line)
                if len(page.lines) >= limit or read >= max_bytes:
                    page.next = number, start
                    return page
        except FileNotFoundError:  # it has just been deleted as the oldest one
            break
    return page


def _take(page: Page, wanted: Filter, data: bytes) -> None:
    try:
        line = _decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        page.unreadable += bool(data.strip())
        return
    if wanted.selects(line):
        page.lines.append(line)


def _lines_backwards(path: Path, end: int | None) -> Iterator[tuple[int, int, bytes]]:
    """Yield offset, size and text of each complete line before `end`, the last one first.

    The text of a line beyond MAX_LINE_BYTES is replaced.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        at = _end_of_lines(file, size if end is None else min(end, size))
        buffer, stop, left_out = b"", 0, 0
        while at or stop:
            start = buffer.rfind(b"\n", 0, max(stop - 1, 0)) + 1
            if start or not at:
                text = b"?" if left_out else buffer[start : stop - 1]
                yield at + start, stop - start + left_out, text
                stop, left_out = start, 0
                continue
            if stop > MAX_LINE_BYTES:
                buffer, stop, left_out = b"\n", 1, left_out + stop - 1
            length = min(BLOCK_BYTES, at)
            at -= length
            file.seek(at)
            buffer = file.read(length) + buffer[:stop]
            stop = len(buffer)


def _end_of_lines(file: BinaryIO, end: int) -> int:
    """Return the offset after the last line end before `end`: what follows is being written."""
    while end:
        length = min(BLOCK_BYTES, end)
        file.seek(end - length)
        found = file.read(length).rfind(b"\n") + 1
        if found:
            return end - length + found
        end -= length
    return 0
