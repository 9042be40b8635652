"""What a member knows about the register: its content, and the writes whose outcome is not known."""

from __future__ import annotations

from delaymq.replication.effects import ReadRegister, WriteRegister
from delaymq.replication.local import Local
from delaymq.replication.model import Record


class RegisterView:
    """The register, with at most one operation at a time.

    A write whose outcome is unknown may take place at any later time, as long as the register has the version that the
    write expects. It is therefore unresolved until another version is seen.
    """

    def __init__(self, local: Local) -> None:
        self._local = local
        self.version = ""
        self.record: Record | None = None
        """Content as last seen."""
        self.seen_ms = 0
        """Time at which this version was first seen."""
        self.checked_ms = 0
        """Time at which the last operation began that found this version."""
        self.renewed_ms = 0
        """Time at which the last successful write began."""
        self.is_stale = True
        """Whether the content has to be read before the next write."""
        self._unresolved: list[Record] = []
        self._request = 0
        self._writing: Record | None = None
        self._started_ms = 0
        self._written_ms = 0
        """Time at which the last write began."""

    @property
    def is_busy(self) -> bool:
        """Whether an operation is in progress."""
        return self._request != 0

    @property
    def is_vacant(self) -> bool:
        """Whether the register was found without a record."""
        return self.record is None and self.version != ""

    def idle_ms(self) -> int:
        """Return the time since the last operation began."""
        return self._local.now_ms - self._started_ms

    def unchanged_ms(self) -> int:
        """Return the time for which the version is known not to have changed: renewals change it."""
        return self.checked_ms - self.seen_ms

    def possible_sets(self) -> list[frozenset[str]]:
        """Return the in-sync sets that the register may contain now, as far as this member changes it."""
        if self.record is None:
            return []
        return [self.record.in_sync, *(record.in_sync for record in self._unresolved)]

    def hurry(self) -> None:
        """Let the content be read immediately, before the next write."""
        self.is_stale = True
        self._started_ms = min(self._started_ms, self._local.now_ms - self._local.settings.renew_ms)

    def read(self) -> None:
        """Begin a read."""
        self._begin(None)
        self._local.emit(ReadRegister(self._request))

    def write(self, record: Record) -> None:
        """Begin to replace the content as last seen."""
        self._begin(record)
        self._written_ms = self._started_ms
        self._unresolved.append(record)
        self._local.emit(WriteRegister(self._request, self.version, record))

    def on_read(self, request: int, version: str, record: Record | None) -> bool:
        """Adopt the content. Returns whether the request was in progress."""
        if request != self._request:
            return False
        if version != self.version:
            if record in self._unresolved:
                self.renewed_ms = self._written_ms
            self._adopt(version, record)
        self.checked_ms = self._started_ms
        self.is_stale = False
        self._end()
        return True

    def on_written(self, request: int, version: str) -> bool:
        """Adopt the written content. Returns whether the request was in progress."""
        if request != self._request or self._writing is None:
            return False
        self._adopt(version, self._writing)
        self.checked_ms = self.renewed_ms = self._started_ms
        self._end()
        return True

    def on_conflict(self, request: int) -> None:
        """Forget the write, which does not take place. Earlier ones may have been the cause."""
        if request == self._request and self._writing is not None:
            self._unresolved.remove(self._writing)
            self.is_stale = True
            self._end()

    def on_failed(self, request: int) -> None:
        """End the operation; a write remains unresolved."""
        if request == self._request:
            self.is_stale = True
            self._end()

    def tick(self) -> None:
        """Give up an operation without a response."""
        if self.is_busy and self.idle_ms() >= self._local.settings.register_timeout_ms:
            self.on_failed(self._request)

    def _begin(self, record: Record | None) -> None:
        self._request = self._local.next_serial()
        self._writing = record
        self._started_ms = self._local.now_ms

    def _adopt(self, version: str, record: Record | None) -> None:
        self.version, self.record = version, record
        self.seen_ms = self._local.now_ms
        self._unresolved.clear()

    def _end(self) -> None:
        self._request = 0
        self._writing = None
