"""delayOffset.json: read with checks, and never written ahead of the durable log."""

from __future__ import annotations

from collections.abc import Callable

from delaymq.broker.delivery.reader import DeliveryStore
from delaymq.broker.delivery.recovery import StatedOffsets
from delaymq.protocol.bodies import DelayOffsets
from delaymq.protocol.errors import RequestError
from delaymq.throttled_log import ThrottledLogger

FILE_NAME = "delayOffset.json"
MAX_FILE_BYTES = 1024 * 1024
"""A thousand levels of 20 digits take 30 KiB."""


def read_offsets(store: DeliveryStore) -> StatedOffsets:
    """Return the content of the file or its `.bak`."""
    broken = False

    def parse(data: bytes) -> dict[int, int]:
        nonlocal broken
        try:
            return DelayOffsets.decode(data, max_bytes=MAX_FILE_BYTES).offset_table
        except RequestError as error:
            broken = True
            raise ValueError(error.remark) from error

    table = store.config_files.load(FILE_NAME, parse, max_bytes=MAX_FILE_BYTES)
    if table is None:
        return StatedOffsets(table={}, problem="corrupt" if broken else "missing")
    return StatedOffsets(table=table, problem="corrupt" if broken else None)


class SaveTask:
    """A store task (store.model.StoreTask): `run` in any thread, then `finish` on the loop."""

    def __init__(
        self, store: DeliveryStore, data: bytes, done: Callable[[bytes], None], throttled: ThrottledLogger
    ) -> None:
        self._store = store
        self._data = data
        self._done = done
        self._throttled = throttled
        self._error: OSError | None = None

    def run(self) -> None:
        """Replace the file."""
        try:
            self._store.config_files.save(FILE_NAME, self._data, max_bytes=MAX_FILE_BYTES)
        except OSError as error:
            self._error = error

    def finish(self) -> OSError | None:
        """Return the error or None. After a failure, the write is retried after the next interval."""
        if self._error is None:
            self._done(self._data)
        else:
            self._throttled.error("delayOffset.json could not be written (the broker retries): %s", self._error)
        return self._error


class OffsetsFile:
    """Writes the offsets of each level, never ahead of the durable copies.

    The offsets are captured together with the end of the log, and written when the log is durable up to that end.
    Otherwise a power failure, or another broker that becomes master, could lose copies that the file marks as
    delivered.
    """

    def __init__(self, store: DeliveryStore, offsets: Callable[[], dict[int, int]], throttled: ThrottledLogger) -> None:
        self._store = store
        self._throttled = throttled
        self._offsets = offsets
        self._captured: tuple[int, bytes] | None = None
        self._saved: bytes | None = None
        self._next_ms: int | None = None

    def task(self, now_ms: int, interval_ms: int) -> SaveTask | None:
        """Return the next write if it is due and possible, otherwise None."""
        if self._captured is None:
            # A clock that was set back must not delay the write.
            if self._next_ms is not None and now_ms < self._next_ms <= now_ms + interval_ms:
                return None
            self._next_ms = now_ms + interval_ms
            data = self._encoded()
            if data == self._saved:
                return None
            self._captured = self._store.end_offset, data
        end, data = self._captured
        if self._store.durable_offset < end:
            return None
        self._captured = None
        return SaveTask(self._store, data, self._set_saved, self._throttled)

    def save_now(self) -> None:
        """Flush the log and write the file, for a clean stop. Raises OSError if either fails."""
        end, data = self._store.end_offset, self._encoded()
        while self._store.durable_offset < end:
            durable_before = self._store.durable_offset
            if (flush := self._store.flush_task()) is None:
                break
            flush.run()
            if (error := flush.finish()) is not None:
                raise error
            if self._store.durable_offset == durable_before:
                break
        if self._store.durable_offset < end:
            raise OSError(f"{FILE_NAME} was not written: the log is not durable up to offset {end}")
        self._captured = None
        self._store.config_files.save(FILE_NAME, data, max_bytes=MAX_FILE_BYTES)
        self._saved = data

    def _encoded(self) -> bytes:
        return DelayOffsets(self._offsets()).encode()

    def _set_saved(self, data: bytes) -> None:
        self._saved = data
