"""Atomic and durable replacement of a file."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def changing(target: Path) -> Iterator[None]:
    """Exclude other processes that change files in the folder of `target`, such as further groups with the same files.

    Raises OSError.
    """
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def replace_file(target: Path, data: bytes, *, mode: int) -> os.stat_result:
    """Replace `target` durably by `data` with `mode`, and return its stat result; raise OSError without changing it.

    Call it within `changing`, because the temporary file has a fixed name.

    If `target` is a symlink, the link itself is replaced.
    """
    temporary = target.with_name(f".{target.name}.new")
    # The file may contain secrets: never readable by others, and symlinks are not followed.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, target)
            written = os.fstat(file.fileno())  # renaming changes the ctime
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return written
