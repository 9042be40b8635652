"""Segments of a commit log: listing, opening and reading.

Files in a folder are read here, those of a broker in `remote`. Files are never mapped: the truncation of a mapped file
kills the process, whereas it only shortens a read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

from delaymq.store.reader import SegmentInfo

from delaymq_spark.store import remote
from delaymq_spark.store.address import StorePath, StorePathError, check_store_path, is_address
from delaymq_spark.store.segment_file import (
    KNOWN_FORMAT_VERSION,
    Listing,
    SegmentFile,
    Skipped,
    of_newer_version,
    read_bytes,
)

__all__ = [
    "KNOWN_FORMAT_VERSION", "NAME_DIGITS", "Listing", "LocalSegmentFile", "SegmentFile", "Skipped", "StorePath",
    "StorePathError", "check_store_path", "is_address", "list_segments", "open_segment", "read_bytes",
]  # fmt: skip
NAME_DIGITS: Final = 20


class LocalSegmentFile:
    """A segment on a local or mounted file system, opened for reading only."""

    def __init__(self, info: SegmentInfo) -> None:
        self.base = info.base
        self.name = info.path
        self.file_bytes = info.file_bytes
        self._descriptor = os.open(info.path, os.O_RDONLY | os.O_CLOEXEC)

    def read_into(self, position: int, buffer: memoryview) -> int:
        wanted = min(len(buffer), self.file_bytes - position)
        filled = 0
        while filled < wanted:
            count = os.preadv(self._descriptor, [buffer[filled:wanted]], position + filled)
            if count == 0:
                break
            filled += count
        return filled

    def next_data(self, position: int) -> int:
        if position >= self.file_bytes:
            return self.file_bytes
        try:
            return min(os.lseek(self._descriptor, position, os.SEEK_DATA), self.file_bytes)
        except OSError:
            return self.file_bytes

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def open_segment(info: SegmentInfo) -> SegmentFile:
    """Open a segment in a folder or at a broker. OSError; StorePathError if the broker denies access."""
    if isinstance(info, remote.RemoteSegment):
        return remote.RemoteSegmentFile(info)
    return LocalSegmentFile(info)


def list_segments(path: StorePath) -> Listing:
    """Return the segments of the store at `path`. StorePathError if there is no log, or it cannot be listed."""
    if is_address(path):
        return remote.list_segments(path)
    return _list_folder(str(path))


def _list_folder(path: str) -> Listing:
    folder = f"{path}/commitlog"
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        text = f"{path} is not a store: it has no commitlog folder; give the store's own folder"
        raise StorePathError(text) from None
    except OSError as error:
        raise StorePathError(f"{folder} cannot be listed: {error.strerror}") from error
    found: list[SegmentInfo] = []
    unreadable: list[tuple[SegmentInfo, str]] = []
    skipped = list(_problems_of_state(path))
    for name in names:
        file = f"{folder}/{name}"
        if not (len(name) == NAME_DIGITS and name.isascii() and name.isdigit() and int(name) < 1 << 63):
            # A summary can only contain names that are valid UTF-8.
            shown = os.fsencode(file).decode("utf-8", "replace")
            skipped.append(Skipped(shown, 0, -1, _size_of(file), "its name is not that of a segment"))
            continue
        try:
            facts = os.stat(file)
            if not os.path.isfile(file):
                raise IsADirectoryError(0, "not a regular file")
            os.close(os.open(file, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            continue  # The broker has just deleted it.
        except OSError as error:
            unreadable.append((SegmentInfo(int(name), file, _size_of(file)), f"cannot be read: {error.strerror}"))
            continue
        found.append(SegmentInfo(int(name), file, facts.st_size))
    # All files of a log have the same size, but a folder in place of a file does not have it.
    whole_bytes = max((info.file_bytes for info in found), default=0)
    for info, reason in unreadable:
        skipped.append(Skipped(info.path, 0, info.base, whole_bytes or info.file_bytes, reason))
    there = sorted([*found, *(replace(info, file_bytes=whole_bytes) for info, _ in unreadable)], key=lambda i: i.base)
    return Listing(tuple(found), tuple(skipped), tuple(_gaps(folder, there, whole_bytes)))


def _gaps(folder: str, segments: list[SegmentInfo], whole_bytes: int) -> Iterator[Skipped]:
    for before, after in pairwise(segments) if whole_bytes else ():
        lost_bytes = after.base - before.end
        if lost_bytes > 0 and before.file_bytes < whole_bytes:
            yield Skipped(before.path, before.file_bytes, before.end, lost_bytes, "the file was truncated")
        elif lost_bytes > 0:
            file = f"{folder}/{before.end:0{NAME_DIGITS}d}"
            yield Skipped(file, 0, before.end, lost_bytes, "the file is missing")


def _problems_of_state(path: str) -> Iterator[Skipped]:
    file = f"{path}/delaymq/state.json"
    try:
        with open(file, "rb") as state:
            content = json.loads(state.read(65_536))
        version, unfinished = content["formatVersion"], content.get("unfinished")
        # A newer version may state that older programs can read it.
        if int(content.get("minimumReader", version)) > KNOWN_FORMAT_VERSION:
            yield of_newer_version(file, version)
        if unfinished:
            yield Skipped(file, 0, -1, 0, f"the store holds {str(unfinished)[:200]}: data may be missing")
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        yield Skipped(file, 0, -1, 0, f"cannot be read ({str(error)[:200]}): the format version is unknown")


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
