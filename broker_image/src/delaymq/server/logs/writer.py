"""Writer thread of the log, so that logging never blocks on a terminal, a pipe or a disk.

Lines beyond the buffer limit are dropped, counted, and reported when lines are read again.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Final

MAX_WAITING_BYTES: Final = 1 << 20
"""Maximum buffered bytes while the log is not read."""
WRITE_BYTES: Final = select.PIPE_BUF
"""A pipe takes this many bytes in one piece, so that lines of several processes do not mix; longer lines may."""
LATE_S: Final = 5.0
"""Time without a line after which suppressed lines are reported."""
RETRY_S: Final = 0.05
"""Pause when a non-blocking descriptor accepts no data."""


class LogWriter:
    """Writes lines to a descriptor in a thread. `dropped_line` creates the report of dropped lines."""

    def __init__(
        self,
        descriptor: int,
        dropped_line: Callable[[int], str],
        late_lines: Callable[[], list[str]] = list,
        late_s: float = LATE_S,
    ) -> None:
        self._descriptor = descriptor
        self._dropped_line = dropped_line
        self._late_lines = late_lines
        self._late_s = late_s
        self._expects_late = False
        self._changed = threading.Condition()
        self._lines: collections.deque[bytes] = collections.deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._is_writing = False
        self._stopped = False
        self._thread: threading.Thread | None = None

    def put(self, line: str) -> None:
        """Queue a line without its line end, without blocking."""
        data = line.encode(errors="backslashreplace") + b"\n"
        with self._changed:
            if self._waiting_bytes + len(data) > MAX_WAITING_BYTES:
                self._dropped += 1
                return
            self._lines.append(data)
            self._waiting_bytes += len(data)
            if self._thread is None:
                self._start()
            self._changed.notify()

    def _start(self) -> None:
        # A daemon thread, because a blocked write must not prevent the process from exiting.
        thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        # If no thread can be started, the next line retries, and `stop` writes the rest.
        with contextlib.suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def expect_late(self) -> None:
        """Have `late_lines` written if nothing else is written for a while."""
        if not self._expects_late:
            with self._changed:
                self._expects_late = True
                self._changed.notify()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all lines are written, at most `timeout_s`; return whether they are."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._lines or self._is_writing or self._dropped:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or self._thread is None:
                    return False
                self._changed.wait(left_s)
        return True

    def stop(self, timeout_s: float) -> None:
        """Write the queued lines, within `timeout_s`, and stop the thread unless it is blocked."""
        self.flush(timeout_s)
        with self._changed:
            if self._thread is None:
                self._write_here(timeout_s)
            self._stopped = True
            self._changed.notify_all()

    @property
    def dropped(self) -> int:
        """Number of dropped lines not reported yet."""
        return self._dropped

    def _run(self) -> None:
        while True:
            data = self._next()
            if data is None:
                return
            self._write(data)
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()

    def _next(self) -> bytes | None:
        with self._changed:
            while not self._lines and not self._dropped:
                if self._stopped:
                    return None
                if not self._changed.wait(self._late_s if self._expects_late else None):
                    self._expects_late = False
                    self._lines.extend(line.encode(errors="backslashreplace") + b"\n" for line in self._late_lines())
                    self._waiting_bytes += sum(map(len, self._lines))
            self._is_writing = True
            parts: list[bytes] = []
            size = 0
            while self._lines and (not parts or size + len(self._lines[0]) <= WRITE_BYTES):
                parts.append(self._lines.popleft())
                size += len(parts[-1])
            self._waiting_bytes -= size
            if self._dropped and not self._lines:
                parts.append(self._dropped_line(self._dropped).encode() + b"\n")
                self._dropped = 0
        return b"".join(parts)

    def _write_here(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        view = memoryview(b"".join(self._lines))
        self._lines.clear()
        ready = select.poll()
        ready.register(self._descriptor, select.POLLOUT)
        # A ready pipe takes this many bytes without blocking.
        with contextlib.suppress(OSError):
            while view and ready.poll(max(deadline - time.monotonic(), 0) * 1000):
                view = view[os.write(self._descriptor, view[: select.PIPE_BUF]) :]

    def _write(self, data: bytes) -> None:
        # Uses the descriptor directly, because an exiting process would wait for a stream's lock.
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                time.sleep(RETRY_S)
            except OSError:
                return  # the reader is gone, and the error cannot be reported


def standard_error() -> int:
    """Return the descriptor of stderr, or of /dev/null if it is closed."""
    with contextlib.suppress(OSError):
        os.fstat(2)
        return 2
    return os.open(os.devnull, os.O_WRONLY)
