"""Signature of a file that people edit: tells whether it changed since it was read."""

from __future__ import annotations

import os
from typing import NamedTuple


class FileSignature(NamedTuple):
    """Another one means another content, perhaps: also of a link that leads elsewhere, or once the file is readable."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int
    """Also moves when somebody sets the time of modification back, or another mode."""

    @classmethod
    def of(cls, found: os.stat_result) -> FileSignature:
        """That of the file that is described by `found`."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
