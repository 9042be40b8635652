"""Replacing a file that people wrote: whole or not at all, whatever stops the process or the machine meanwhile."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(target: Path, data: bytes, *, mode: int) -> os.stat_result:
    """`target` has these bytes and this mode on the disk afterwards, or is as it was: OSError. Its state is returned.

    `target` must be no link, or the link itself is replaced.
    """
    temporary = target.with_name(f".{target.name}.new")
    # Secrets stand in such files: nobody else may read them on the way, and nobody's link is followed.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, target)
            written = os.fstat(file.fileno())  # renaming changes its state too
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return written
