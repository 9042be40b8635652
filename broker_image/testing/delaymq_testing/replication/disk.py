"""Disk of a simulated member: what a power loss leaves, and what the store derives from the log."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from delaymq.replication import Note
from delaymq.replication.events import Event
from delaymq.replication.history import History

from delaymq_testing.replication.entries import DELAYED, PLAIN, SIZE, decode


@dataclass
class Store:
    """State derived from the log: the next queue offset, delayed records without a copy, a consumer's offset."""

    next_number: int = 0
    pending: dict[int, None] = field(default_factory=dict)
    consumed: int = 0

    def add(self, data: bytes | bytearray) -> None:
        """Dispatch appended records."""
        for entry in decode(data):
            self.next_number = entry.number + 1
            if entry.origin == DELAYED:
                self.pending[entry.uid] = None
            elif entry.origin != PLAIN:
                self.pending.pop(entry.origin, None)

    def cut(self, log: bytes | bytearray) -> None:
        """Follow a cut of the log."""
        consumed = min(self.consumed, len(log) // SIZE)
        self.next_number = 0
        self.pending.clear()
        self.add(log)
        self.consumed = consumed


@dataclass
class Disk:
    """Files of a member."""

    store_id: str
    log: bytearray = field(default_factory=bytearray)
    flushed: int = 0
    history: History = ()
    note: Note | None = None
    confirmed: int = 0
    """In the newest snapshot."""
    is_empty: bool = True
    """Whether the volume is new."""
    lost_power: bool = False
    """Whether the kernel's boot id differs from that of the process that acknowledged unsynced bytes."""
    cuts: int = 0
    begin: int = 0
    """Offset of the oldest byte. What precedes it remains in `log`, for comparisons, and is not read by the member."""
    store: Store = field(default_factory=Store)

    def excuses(self) -> bool:
        """Whether the member is no candidate until it has caught up, as far as its disk shows."""
        return self.is_empty or self.lost_power or self.note is not None

    def discard(self) -> None:
        """Discard the log and its snapshots."""
        note, self.cuts = self.note, self.cuts + 1
        self.__init__(f"discarded-{self.store_id}", cuts=self.cuts)
        self.note = note

    def append(self, data: bytes) -> None:
        """Append records."""
        self.is_empty = False
        self.log += data
        self.store.add(data)

    def cut(self, offset: int) -> None:
        """Cut the log, and what is derived from it."""
        del self.log[offset:]
        self.cuts += 1
        self.flushed = min(self.flushed, offset)
        self.store.cut(self.log)


class Operation(NamedTuple):
    """An operation in progress, and the event that reports its completion."""

    perform: Callable[[], None]
    event: Event


class DiskQueue:
    """Operations on a disk, which are completed in their order."""

    def __init__(self) -> None:
        self.operations: deque[Operation] = deque()

    def crash(self, rng: random.Random) -> None:
        """Perform some of the operations in progress, and forget the others."""
        for operation in list(self.operations)[: rng.randint(0, len(self.operations))]:
            operation.perform()
        self.operations.clear()
