"""Lock files between runs on one machine. A lock ends with the process that holds it, however that process ends."""

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

Log = Callable[[str], None]

PAUSE_S = 0.2


def say(text: str) -> None:
    """Log to standard error: standard output may belong to a command that runs afterwards."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def locked(
    path: Path, log: Log, *, what: str, timeout_s: float, error: type[Exception], shared: bool = False
) -> Iterator[None]:
    """Hold a lock file during the block; log once that it waits for another run, ``what``.

    A shared lock excludes only exclusive ones. Raises ``error`` after ``timeout_s``, or if the file cannot be opened.
    """
    deadline = time.monotonic() + timeout_s
    waiting = False
    while True:
        try:
            lock = take(path, shared=shared)
        except OSError as e:
            raise error(f"the lock file {path} cannot be opened: {e.strerror}") from e
        if lock is not None:
            break
        if time.monotonic() > deadline:
            raise error(f"waited {timeout_s:.0f} s for {what} ({path} is locked)")
        if not waiting:
            log(f"waiting for {what}")
            waiting = True
        time.sleep(PAUSE_S)
    with lock:
        yield


def take(path: Path, *, shared: bool = False) -> IO[str] | None:
    """Return the lock file, locked until it is closed; None if another run holds the lock."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("a")
        try:
            fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
        except BaseException:
            lock.close()
            raise
        if _is_still(path, lock):
            return lock
        lock.close()


def _is_still(path: Path, lock: IO[str]) -> bool:
    """Return whether the path still names the locked file: once it is removed, other processes lock a new one."""
    try:
        return os.path.samestat(path.stat(), os.fstat(lock.fileno()))
    except FileNotFoundError:
        return False
