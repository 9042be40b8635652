"""Streams of a master's tables, one for each session of a replica."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from delaymq.broker.tables.entries import Table
from delaymq.server.replication.table_messages import COMPLETE, MAX_PART_BYTES, WRITE, TableAck, TablePart

if TYPE_CHECKING:
    from delaymq.broker.tables.entries import Name, TableSource

PART_BYTES: Final = 32 << 10
"""Size from which a part is sent. Encoding one blocks the event loop for about a millisecond."""
PART_S: Final = 0.002
"""Time after which a part is sent, even a small one: of most queues, nothing is sent."""
WINDOW_BYTES: Final = 256 << 10
"""Maximum number of bytes that a replica has not acknowledged yet: the log must remain able to use the link."""

_logger = logging.getLogger(__name__)

SendPart = Callable[[TablePart], bool]


class _Names:
    """Names of the entries of one table that are still to be sent."""

    __slots__ = ("_changed", "_first")

    def __init__(self, names: list[Name]) -> None:
        names.reverse()
        self._first = names
        """Names in reverse order."""
        self._changed: dict[Name, None] = {}
        """Names that follow, which have changed since."""

    def __bool__(self) -> bool:
        return bool(self._first or self._changed)

    def add(self, names: Iterable[Name]) -> None:
        self._changed.update(dict.fromkeys(names))

    def next(self) -> Name:
        """Return the next name, which remains until `drop`."""
        if not self._first:
            # Deleting the first key of a dictionary repeatedly would take quadratic time.
            self._first, self._changed = list(reversed(self._changed)), {}
        return self._first[-1]

    def drop(self) -> None:
        """Remove the next name."""
        self._first.pop()


class Stream:
    """What one replica still has to receive in one of its sessions."""

    def __init__(self, epoch: int, session: int, source: TableSource) -> None:
        """All entries are to be sent."""
        self.session = session
        self.pending = {table: _Names(source.names(table)) for table in Table}
        self._is_complete_sent = False
        self._epoch = epoch
        self._source = source
        self._serial = 0
        self._unacknowledged: deque[tuple[int, int, int]] = deque()
        """Serial and size of each part, and the number of the newest change that it completes, or -1."""
        self._unacknowledged_bytes = 0

    def note(self, table: Table, names: Iterable[Name]) -> None:
        """Note changed entries, of which the newest values will be sent."""
        self.pending[table].add(names)

    def may_send(self) -> bool:
        """Return whether something is to be sent, and fits the window."""
        return self._unacknowledged_bytes < WINDOW_BYTES and (not self._is_complete_sent or any(self.pending.values()))

    def send(self, send: SendPart, number: int, *, is_awaited: bool) -> bool:
        """Send the next part; return whether this was possible.

        `number` is that of the newest change, and `is_awaited` states whether responses wait for it.
        """
        table = next((table for table in Table if self.pending[table]), Table.TOPICS)
        return self._send_part(send, table, number, is_awaited=is_awaited)

    def send_deletions(self, send: SendPart, number: int) -> bool:
        """Send all deletions of topics now, before the log continues. Return whether this was possible."""
        while self.pending[Table.DELETIONS]:
            if not self._send_part(send, Table.DELETIONS, number, is_awaited=False):
                return False
        return True

    def _send_part(self, send: SendPart, table: Table, number: int, *, is_awaited: bool) -> bool:
        names, entries = self._take(table)
        is_all = not any(self.pending.values())
        flags = WRITE if is_all and is_awaited else 0
        if is_all and not self._is_complete_sent:
            flags = COMPLETE | WRITE
        data = b"{%b}" % b",".join(entries)
        part = TablePart(self._epoch, self.session, self._serial + 1, table, flags, data)
        if not send(part):
            self.note(table, names)
            return False
        self._serial += 1
        self._is_complete_sent = self._is_complete_sent or is_all
        self._unacknowledged.append((self._serial, len(data), number if is_all else -1))
        self._unacknowledged_bytes += len(data)
        return True

    def _take(self, table: Table) -> tuple[list[Name], list[bytes]]:
        """Remove entries that fit a part from those to be sent, and return their names and contents."""
        names: list[Name] = []
        pending, entries, size = self.pending[table], list[bytes](), 2
        until = time.monotonic() + PART_S
        while pending and size < PART_BYTES:
            name = pending.next()
            entry = self._source.entry(table, name)
            if size + len(entry) + 1 > MAX_PART_BYTES:
                if entries:
                    break
                _logger.error("an entry of table %s is too large for replicas: %s", table.name, str(name)[:256])
                pending.drop()
                continue
            pending.drop()
            names.append(name)
            if entry:
                entries.append(entry)
                size += len(entry) + 1
            if time.monotonic() >= until:
                break
        return names, entries

    def acknowledge(self, ack: TableAck) -> int:
        """Return the number of the newest change that the replica has, or -1 if this is not known."""
        number = -1
        while self._unacknowledged and self._unacknowledged[0][0] <= ack.serial:
            _, size, completed = self._unacknowledged.popleft()
            self._unacknowledged_bytes -= size
            number = max(number, completed)
        return number
