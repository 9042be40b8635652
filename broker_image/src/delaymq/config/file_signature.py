"""File signature to detect that a file changed since it was read."""

from __future__ import annotations

import os
from typing import NamedTuple


class FileSignature(NamedTuple):
    """A different signature means possibly different content, also after a symlink or the permissions change."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int
    """Also changes when the modification time is set back, or with the mode."""

    @classmethod
    def of(cls, found: os.stat_result) -> FileSignature:
        """Return the signature for the stat result `found`."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
