"""Segments of the commit log: files named after their first offset, equal in size, and without gaps.

Only these files are allocated and mapped. A new file is created in the store's own folder and moved to the log by
rename, so that the log's folder never holds a file of another size, which RocketMQ's broker would refuse to load.
"""

from __future__ import annotations

import mmap
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from delaymq.message.record import BLANK_MAGIC, SIZE_AND_MAGIC
from delaymq.store.disk.aside import AsideFolder
from delaymq.store.disk.files import Files, is_full, is_shortage
from delaymq.store.errors import SegmentCreateError, ShortageError, StoreFullError
from delaymq.store.model import Correction

NAME_DIGITS = 20
MAX_BRIDGED_SEGMENTS = 16
"""Missing segments are replaced by blank ones; a stray file with a far higher name must not fill the disk with them."""


@dataclass(slots=True)
class Segment:
    """One open file of the log."""

    base: int
    """Physical offset of its first byte."""
    path: str
    descriptor: int


def segment_name(base: int) -> str:
    """Return the name of a segment: its first offset in 20 digits."""
    return f"{base:0{NAME_DIGITS}d}"


def is_segment_name(name: str) -> bool:
    """Whether a file is named after an offset."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


class SegmentFolder:
    """Opens, creates and removes segments."""

    def __init__(self, files: Files, folder: str, own_folder: str, file_bytes: int) -> None:
        self.files = files
        self.folder = folder
        self.own_folder = own_folder
        self.file_bytes = file_bytes

    def size_of_existing(self) -> int | None:
        """Return the size of the existing files; None if none shows it."""
        names = [name for name in self.files.names_in(self.folder) if is_segment_name(name)]
        sizes: Counter[int] = Counter()
        for name in names:
            facts = self.files.facts(f"{self.folder}/{name}")
            if facts and facts.file_bytes > 0 and int(name) % facts.file_bytes == 0:
                sizes[facts.file_bytes] += 1
        # The size of a truncated file differs from the distance to its neighbour.
        for name, following in pairwise(names):
            distance = int(following) - int(name)
            if int(name) % distance == 0:
                sizes[distance] += 1
        return max(sizes, key=lambda size: (sizes[size], size)) if sizes else None

    def load(self, corrections: list[Correction], aside: AsideFolder) -> list[Segment]:
        """Return all segments in order, at full size and without gaps; repairs are added to `corrections`."""
        bases = []
        for name in self.files.names_in(self.folder):
            if is_segment_name(name) and int(name) % self.file_bytes == 0:
                bases.append(int(name))
            else:
                corrections.append(Correction("stray-file", f"commitlog/{name}", 0, "not a log segment: ignored"))
        self.files.keep_folder(self.folder)
        segments: list[Segment] = []
        for base in bases:
            if segments and not self._bridge(segments, base, corrections):
                break
            segments.append(self._open(base, corrections, aside))
        return segments

    def _open(self, base: int, corrections: list[Correction], aside: AsideFolder) -> Segment:
        path = f"{self.folder}/{segment_name(base)}"
        descriptor = self.files.open(path)
        facts = self.files.facts(path)
        if facts is not None and facts.file_bytes != self.file_bytes:
            detail = f"the file has {facts.file_bytes} bytes instead of {self.file_bytes}: resized to full size"
            aside.cut(descriptor, path, facts.file_bytes, self.file_bytes)
            self.files.allocate(descriptor, self.file_bytes)
            corrections.append(Correction("segment-size", f"commitlog/{segment_name(base)}", facts.file_bytes, detail))
        return Segment(base, path, descriptor)

    def _bridge(self, segments: list[Segment], base: int, corrections: list[Correction]) -> bool:
        missing = (base - segments[-1].base) // self.file_bytes - 1
        if missing > MAX_BRIDGED_SEGMENTS:
            detail = f"{missing} segments before it are missing: it was moved aside, and its messages are not available"
            corrections.append(Correction("segments-missing", f"commitlog/{segment_name(base)}", base, detail))
            return False
        for _ in range(missing):
            gap = segments[-1].base + self.file_bytes
            segment = self.create(gap)
            self.files.pwrite(segment.descriptor, SIZE_AND_MAGIC.pack(self.file_bytes, BLANK_MAGIC), 0)
            self.files.fdatasync(segment.descriptor)
            segments.append(segment)
            detail = "the segment is missing, and its messages are lost: replaced by a blank one"
            corrections.append(Correction("segment-missing", f"commitlog/{segment_name(gap)}", gap, detail))
        return True

    def create(self, base: int) -> Segment:
        """Create a zeroed segment with a durable name. StoreFullError, SegmentCreateError: retry later.

        OSError: the disk failed to store the name, and a later successful sync proves nothing.
        """
        segment = self.install(self.prepare(base, "new"))
        try:
            self.sync_names()
        except OSError as error:
            self.files.close(segment.descriptor)
            if isinstance(error, ShortageError):
                raise SegmentCreateError(f"{segment.path} cannot be synced ({error}): {_remedy(error)}") from error
            raise
        return segment

    def sync_names(self) -> None:
        """Sync the segments' names. ShortageError: retry; OSError: the disk failed to store them."""
        try:
            self.files.sync_folder(self.folder)
        except OSError as error:
            if is_shortage(error):
                raise ShortageError(error.errno, error.strerror) from error
            raise

    def close(self) -> None:
        """Release the folder."""
        self.files.release_folder(self.folder)

    def prepare(self, base: int, suffix: str) -> Segment:
        """Create a durable, zeroed segment in the store's own folder. StoreFullError, SegmentCreateError."""
        path = f"{self.own_folder}/{segment_name(base)}.{suffix}"
        try:
            self.files.unlink(path)
            descriptor = self.files.open(path, create=True)
            try:
                self.files.allocate(descriptor, self.file_bytes)
                self.files.fdatasync(descriptor)
            except OSError:
                self.files.close(descriptor)
                self.files.unlink(path)
                raise
        except OSError as error:
            raise self._refusal(path, error) from error
        return Segment(base, path, descriptor)

    def _refusal(self, path: str, error: OSError) -> StoreFullError | SegmentCreateError:
        if is_full(error):
            return StoreFullError(
                f"no space for a log segment of {self.file_bytes} bytes in {self.folder}, or no inode for its file "
                "(df -i): free space or enlarge the volume; writing resumes automatically"
            )
        return SegmentCreateError(f"{path} cannot be created ({error}): {_remedy(error)}")

    def allocate(self, segment: Segment) -> None:
        """Allocate the holes of an existing segment, for example after a sparse copy. StoreFullError, OSError.

        On a full disk, a write to a hole through the mapping would kill the process (SIGBUS).
        """
        try:
            self.files.allocate(segment.descriptor, self.file_bytes)
        except OSError as error:
            if not is_full(error):
                raise
            raise StoreFullError(
                f"{segment.path} is sparse and the disk has no space for all of its {self.file_bytes} bytes: "
                "free space or enlarge the volume, then start again"
            ) from error

    def install(self, segment: Segment) -> Segment:
        """Move a prepared segment to the log's folder, without a sync. On errors as in `prepare`, drop it."""
        path = f"{self.folder}/{segment_name(segment.base)}"
        try:
            self.files.rename(segment.path, path)
        except OSError as error:
            self.discard(segment)
            raise self._refusal(segment.path, error) from error
        segment.path = path
        return segment

    def map(self, segment: Segment) -> mmap.mmap:
        """Map the segment into shared memory. SegmentCreateError if that fails."""
        try:
            return self.files.map(segment.descriptor, self.file_bytes)
        except OSError as error:
            raise SegmentCreateError(f"{segment.path} cannot be mapped ({error}): {_remedy(error)}") from error

    def discard(self, segment: Segment) -> None:
        """Drop a prepared segment."""
        self.files.close(segment.descriptor)
        self.files.unlink(segment.path)

    def discard_unfinished(self) -> None:
        """Remove files of an interrupted `prepare` from the store's own folder."""
        for name in self.files.names_in(self.own_folder):
            if is_segment_name(name.partition(".")[0]):
                self.files.unlink(f"{self.own_folder}/{name}")


def _remedy(error: OSError) -> str:
    if is_shortage(error):
        return (
            "the process lacks descriptors, memory or memory maps (ulimit -n, vm.max_map_count); "
            "writing resumes automatically when they are available"
        )
    return "check the folder and its disk"
