"""A disk that is slow for one process: a control group limits what the process writes to its block device."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

GROUPS_PATH = Path("/sys/fs/cgroup/blkio")
LIMIT = "blkio.throttle.write_bps_device"


def unavailable() -> str:
    """Return why no disk can be made slow; empty if it can."""
    is_available = (GROUPS_PATH / LIMIT).exists()
    return "" if is_available else "a slow disk needs the controller blkio of control groups v1 with throttling"


@contextlib.contextmanager
def slow_disk(pid: int, path: Path, bytes_per_s: int) -> Iterator[None]:
    """Limit what a process writes to the device of a path, with fdatasync(2). Writes of the kernel are not limited."""
    device = os.stat(path).st_dev
    group = GROUPS_PATH / f"delaymq-{pid}"
    group.mkdir()
    try:
        (group / LIMIT).write_text(f"{os.major(device)}:{os.minor(device)} {bytes_per_s}")
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            (GROUPS_PATH / "cgroup.procs").write_text(str(pid))
        group.rmdir()
