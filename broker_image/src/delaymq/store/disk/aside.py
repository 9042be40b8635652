"""Folder delaymq/aside/, to which data is copied before a repair cuts, clears or overwrites it (docs/formats/store.md).

Bytes of the log are flushed before they are overwritten. Data that the log can rebuild (queues, index) is not flushed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Final

from delaymq.store.disk.files import Files, is_shortage
from delaymq.store.errors import StoreOpenError

_logger = logging.getLogger(__name__)
MAX_BYTES: Final = 2 << 30
"""Maximum size of the folder. The oldest files are deleted, rebuildable ones before bytes of the log."""
MAX_FILES: Final = 1_000
"""Maximum number of files with log bytes and pieces. Of a moved file, only the newest copy is retained."""
_SHARE_OF_FREE: Final = 4
"""Divisor: maximum part of the free space that is used."""
_BLOCK_BYTES: Final = 4_096
_NAME_DIGITS: Final = 20


class AsideFolder:
    """Aside folder of one store. Nothing is retained on a full disk, because the store must open nevertheless. Raises
    StoreOpenError if descriptors or memory run out, because that is temporary."""

    def __init__(self, files: Files, store_path: str) -> None:
        self._files = files
        self._path = store_path
        self.folder = f"{store_path}/delaymq/aside"
        self._pieces: int | None = None
        self._pieces_end = 0
        self._pieces_name = ""
        # Bytes that may still be retained, and copied, before the next measurement.
        self._free_quota = self._free = -1
        self._refused = MAX_BYTES + 1

    # -- bytes of the log -----------------------------------------------------------------------------------------

    def keep_log(self, descriptor: int, base: int, start: int, end: int) -> None:
        """Copy physical offsets start…end of the segment with offset `base`, up to the last byte that is not zero."""
        end = self._last_used(descriptor, base, start, end)
        name = f"{start:0{_NAME_DIGITS}d}-{end:0{_NAME_DIGITS}d}"
        if end == start:
            return
        try:
            if not self._reserve(end - start, name):
                return
            name = self._free_name(name)
            self._copy(descriptor, start - base, end - base, name)
        except OSError as error:
            self._not_kept(f"the damaged bytes {name} cannot be moved aside", error)

    def _last_used(self, descriptor: int, base: int, start: int, end: int) -> int:
        last = start
        for position, piece in self._files.nonzero_pieces(descriptor, start - base, end - base):
            last = base + position + len(piece.rstrip(b"\0"))
        return last

    def _copy(self, descriptor: int, start: int, end: int, name: str) -> None:
        files = self._files
        target = files.open(f"{self.folder}/{name}", create=True)
        try:
            files.set_size(target, end - start)
            for position, piece in files.nonzero_pieces(descriptor, start, end):
                files.pwrite(target, piece, position - start)
            files.fdatasync(target)
        finally:
            files.close(target)
        files.sync_folder(self.folder)

    # -- parts of other files -------------------------------------------------------------------------------------

    def zero(self, descriptor: int, path: str, start: int, end: int) -> int:
        """Copy and zero the bytes of start…end of `path` that are not zero; return the number of overwritten bytes."""
        for position, piece in self._files.nonzero_pieces(descriptor, start, end):
            self._keep_piece(path, position, piece.rstrip(b"\0"))
        return self._files.zero(descriptor, start, end)

    def cut(self, descriptor: int, path: str, file_bytes: int, new_bytes: int) -> None:
        """Resize a file of `file_bytes`; the bytes that it loses are durably copied first."""
        if file_bytes > new_bytes:
            for position, piece in self._files.nonzero_pieces(descriptor, new_bytes, file_bytes):
                self._keep_piece(path, position, piece.rstrip(b"\0"))
            if self._pieces is not None:
                self._files.fdatasync(self._pieces)
                self._files.sync_folder(self.folder)
        self._files.set_size(descriptor, new_bytes)

    def _keep_piece(self, path: str, position: int, piece: bytes) -> None:
        files = self._files
        file = path.removeprefix(f"{self._path}/")
        about = {"file": file, "position": position, "bytes": len(piece)}
        data = json.dumps(about, separators=(",", ":")).encode() + b"\n" + piece + b"\n"
        try:
            if not self._reserve(len(data), file):
                return
            if self._pieces is None:
                self._pieces_name, self._pieces_end = self._free_name("pieces"), 0
                self._pieces = files.open(f"{self.folder}/{self._pieces_name}", create=True)
            files.pwrite(self._pieces, data, self._pieces_end)
            self._pieces_end += len(data)
        except OSError as error:
            self._not_kept(f"{file}: the cleared bytes cannot be moved aside", error)

    # -- whole files ----------------------------------------------------------------------------------------------

    def remove(self, path: str) -> None:
        """Move a file from the store to this folder, under its path with `~` instead of `/`."""
        name = self._name_of(path)
        try:
            taken = self._files.allocated_bytes(path)
            if taken and self._reserve(taken, name, moved=True):
                self._files.rename(path, f"{self.folder}/{name}")
                return
        except FileNotFoundError:
            return
        except OSError as error:
            self._not_kept(f"{name} cannot be moved aside", error)
        self._files.unlink(path)

    def _name_of(self, path: str) -> str:
        return path.removeprefix(f"{self._path}/").replace("/", "~")

    def keep_file(self, path: str) -> None:
        """Copy a small file that is about to be replaced."""
        name = self._name_of(path)
        try:
            data = self._files.read(path)
            if data and self._reserve(len(data), name):
                self._files.write(f"{self.folder}/{self._free_name(name)}", data)
                self._files.sync_folder(self.folder)
        except OSError as error:
            self._not_kept(f"{name} cannot be moved aside", error)

    # -- space ----------------------------------------------------------------------------------------------------

    def _not_kept(self, what: str, error: OSError) -> None:
        if is_shortage(error):
            # The shortage is temporary: the next start can retain what this one would have lost.
            raise StoreOpenError(
                f"{what} ({error}): give the process more descriptors (ulimit -n) or memory, then start again"
            ) from error
        _logger.error("%s: %s", what, error)

    def close(self) -> None:
        """Close the file of pieces; nothing more is retained."""
        if self._pieces is not None:
            self._files.close(self._pieces)
            self._pieces = None

    def _reserve(self, wanted: int, name: str, *, moved: bool = False) -> bool:
        """Reserve space; return False if there is too little. Files that are moved need no free space."""
        wanted = -(-wanted // _BLOCK_BYTES) * _BLOCK_BYTES
        if not moved and wanted >= self._refused:
            return False
        if wanted > self._free_quota or (not moved and wanted > self._free):
            self._measure(wanted, name)
        if wanted > self._free_quota or (not moved and wanted > self._free):
            _logger.error("neither %s nor anything larger can be moved aside: no space for %d bytes", name, wanted)
            if not moved:
                self._refused = wanted
            return False
        self._free_quota -= wanted
        if not moved:
            self._free -= wanted
        return True

    def _measure(self, wanted: int, name: str) -> None:
        """Measure the space, and delete the oldest files if there is too little."""
        files = self._files
        files.make_folder(self.folder)
        self._free = files.free_bytes(self._path) // _SHARE_OF_FREE
        sizes = {each: files.allocated_bytes(f"{self.folder}/{each}") for each in files.names_in(self.folder)}
        taken, single = sum(sizes.values()), sum(map(_is_single, sizes))
        # Free more than needed, because each measurement reads the attributes of all files.
        limit = MAX_BYTES - wanted if taken + wanted <= MAX_BYTES else max(MAX_BYTES * 3 // 4 - wanted, 0)
        for each in self._oldest_first(list(sizes)) if taken > limit or single >= MAX_FILES else ():
            if taken <= limit and single < MAX_FILES:
                break
            if each not in (self._pieces_name, name) and (taken > limit or _is_single(each)):
                files.unlink(f"{self.folder}/{each}")
                taken -= sizes[each]
                single -= _is_single(each)
        self._free_quota = MAX_BYTES - taken

    def _oldest_first(self, names: list[str]) -> Iterator[str]:
        def age(name: str) -> tuple[bool, int, str]:
            facts = self._files.facts(f"{self.folder}/{name}")
            return _is_of_log(name), facts.modified_ms if facts is not None else 0, name

        yield from sorted(names, key=age)

    def _free_name(self, name: str) -> str:
        """Return `name`, or `name.2` and so on if the name is taken."""
        number, free = 1, name
        while self._files.facts(f"{self.folder}/{free}") is not None:
            number += 1
            free = f"{name}.{number}"
        return free


def _is_of_log(name: str) -> bool:
    return name.startswith("commitlog~") or name[:_NAME_DIGITS].isdigit()


def _is_single(name: str) -> bool:
    """Whether each retained part gets a new file instead of replacing one."""
    return not name.startswith(("consumequeue~", "index~", "commitlog~"))
