"""System calls on files, all in one place; tests replace the class by one that records calls."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

_ZEROES = bytes(1 << 20)
"""Size of the pieces in which zeroes are written: large enough for speed, small enough for memory."""


class FileFacts(NamedTuple):
    """File attributes that listings of folders need."""

    file_bytes: int
    modified_ms: int


class Files:
    """File calls by path and descriptor. OSError is not caught; where stated, a missing file yields an empty result."""

    _kept_folders: Mapping[str, int] = MappingProxyType({})
    """Path → descriptor; replaced as a whole because other threads read it."""

    def open(self, path: str, *, create: bool = False) -> int:
        """Return a descriptor to read and write `path`; `create` creates a missing file."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)

    def close(self, descriptor: int) -> None:
        """Close the descriptor."""
        os.close(descriptor)

    def allocate(self, descriptor: int, file_bytes: int) -> None:
        """Allocate `file_bytes`: on a full disk, a write to a sparse mapped file would kill the process."""
        os.posix_fallocate(descriptor, 0, file_bytes)

    def set_size(self, descriptor: int, file_bytes: int) -> None:
        """Truncate the file, or extend it with a hole (zeroes)."""
        os.ftruncate(descriptor, file_bytes)

    def map(self, descriptor: int, file_bytes: int) -> mmap.mmap:
        """Map the file into shared memory."""
        return mmap.mmap(descriptor, file_bytes)

    def pread(self, descriptor: int, count: int, position: int) -> bytes:
        """Return up to `count` bytes; fewer at the end of the file."""
        return os.pread(descriptor, count, position)

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of `data`."""
        written = os.pwrite(descriptor, data, position)
        while written < len(data):
            count = os.pwrite(descriptor, memoryview(data)[written:], position + written)
            if count == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written += count

    def fdatasync(self, descriptor: int) -> None:
        """Flush data and size of the file to disk."""
        os.fdatasync(descriptor)

    def sync_filesystem(self, folder: str) -> bool:
        """Flush everything on the folder's file system to disk; return False if the system has no such call."""
        import ctypes  # takes longer to load than a small store to open

        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if syncfs is None:
            return False
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if syncfs(descriptor) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), folder)
        finally:
            os.close(descriptor)
        return True

    def sync_folder(self, path: str) -> None:
        """Flush names created, renamed and removed in the folder to disk."""
        kept = self._kept_folders.get(path)
        if kept is not None:
            os.fsync(kept)
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def keep_folder(self, path: str) -> None:
        """Keep the folder open until `release_folder`, so that `sync_folder` needs no free descriptor."""
        self.release_folder(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._kept_folders = {**self._kept_folders, path: descriptor}

    def release_folder(self, path: str) -> None:
        """Close the folder if it was kept open."""
        kept = dict(self._kept_folders)
        descriptor = kept.pop(path, None)
        if descriptor is not None:
            self._kept_folders = kept
            os.close(descriptor)

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source`."""
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file if it exists."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def remove_folder(self, path: str) -> None:
        """Remove a folder if it exists and is empty."""
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise

    def make_folder(self, path: str) -> bool:
        """Create a folder; return whether it was missing."""
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            return False
        return True

    def names_in(self, path: str) -> list[str]:
        """Return the names in a folder in order; empty if there is no such folder."""
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def is_folder(self, path: str) -> bool:
        """Whether the path is a folder."""
        return os.path.isdir(path)

    def facts(self, path: str) -> FileFacts | None:
        """Return size and time of a file; None if it is missing."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        return FileFacts(status.st_size, status.st_mtime_ns // 1_000_000)

    def read(self, path: str) -> bytes | None:
        """Return the content of a small file; None if it is missing."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as file:
            return file.read()

    def write(self, path: str, *parts: bytes) -> None:
        """Replace and flush a small file; its folder is not synced."""
        descriptor = self.open(path, create=True)
        try:
            self.set_size(descriptor, 0)
            position = 0
            for part in parts:
                self.pwrite(descriptor, part, position)
                position += len(part)
            self.fdatasync(descriptor)
        finally:
            self.close(descriptor)

    def data_ranges(self, descriptor: int, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of start…end that are not known to be zero.

        The result is complete, not lazy: reading turns holes into data pages, so a stepwise walk would return all.
        """
        ranges: list[tuple[int, int]] = []
        position = start
        while position < end:
            try:
                first = os.lseek(descriptor, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break
                raise
            if first >= end:
                break
            position = min(os.lseek(descriptor, first, os.SEEK_HOLE), end)
            ranges.append((first, position))
        return ranges

    def nonzero_pieces(self, descriptor: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield position and bytes of each piece (1 MiB or less) of start…end that is not all zero."""
        for first, last in self.data_ranges(descriptor, start, end):
            for position in range(first, last, len(_ZEROES)):
                count = min(len(_ZEROES), last - position)
                piece = self.pread(descriptor, count, position)
                if piece != (_ZEROES if len(piece) == len(_ZEROES) else _ZEROES[: len(piece)]):
                    yield position, piece

    def zero(self, descriptor: int, start: int, end: int) -> int:
        """Zero all bytes of start…end that are not zero; return the number of overwritten bytes."""
        changed = 0
        for position, piece in self.nonzero_pieces(descriptor, start, end):
            left = len(piece.rstrip(b"\0"))
            self.pwrite(descriptor, _ZEROES[:left], position)
            changed += left
        return changed

    def allocated_bytes(self, path: str) -> int:
        """Return the disk space of a file, which is less than its size if it is sparse. FileNotFoundError."""
        return os.stat(path).st_blocks * 512

    def free_bytes(self, path: str) -> int:
        """Return the bytes that users other than root can still write to the disk of `path`."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def disk_used_ratio(self, path: str) -> float:
        """Return the used part of a disk, 0 to 1; see DiskSpace."""
        return disk_space(path).used_ratio

    def try_lock(self, descriptor: int) -> bool:
        """Take the exclusive lock on byte 0; return False if another process holds it."""
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except (BlockingIOError, PermissionError):
            return False
        return True


class DiskSpace(NamedTuple):
    """Disk space as df and RocketMQ's broker compute it: without the blocks reserved for root."""

    size_bytes: int
    """Sum of used and free bytes."""
    free_bytes: int
    """Bytes that users other than root can still write."""

    @property
    def used_ratio(self) -> float:
        """Used part, 0 to 1, as in df's column Use%."""
        return 1 - self.free_bytes / self.size_bytes if self.size_bytes else 1.0


def disk_space(path: str | os.PathLike[str]) -> DiskSpace:
    """Return the space of the disk that holds `path`. OSError if it cannot be determined."""
    status = os.statvfs(path)
    free = status.f_bavail * status.f_frsize
    return DiskSpace((status.f_blocks - status.f_bfree) * status.f_frsize + free, free)


def is_full(error: OSError) -> bool:
    """Whether a call failed because the disk is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_shortage(error: BaseException) -> bool:
    """Whether a call failed because descriptors or memory ran out, which is unrelated to the disk."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
