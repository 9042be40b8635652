"""Small files that are replaced as a whole: RocketMQ's tables in config/ and DelayMQ's files in delaymq/."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from delaymq.store.disk.aside import AsideFolder
from delaymq.store.disk.files import Files, is_shortage
from delaymq.store.errors import StoreOpenError, UnreadableTableError
from delaymq.store.model import Correction

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Default limit of a table, for reads and writes."""
UNREADABLE: Final = ".unreadable"
"""Suffix of unreadable tables, which are retained until an administrator decides about them."""
CONSUMER_OFFSETS: Final = "config/consumerOffset.json"
UNREADABLE_OFFSETS: Final = b"the consumer offsets could not be read when the backup was made\n"
"""Placeholder of unreadable offsets in a backup: a restored store serves consumers only after a manual decision."""
_COPIED_AT_ONCE: Final = 1 << 20
_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


class ConfigFiles:
    """Loads files, or their backups. Saves atomically: `.tmp`, old content to `.bak`, rename, sync of the folder."""

    def __init__(self, files: Files, folder: str, store_path: str, corrections: list[Correction]) -> None:
        self._files = files
        self.folder = folder
        self._aside = AsideFolder(files, store_path)
        self._shown = folder.removeprefix(store_path).strip("/")
        self._corrections = corrections
        self._damaged: set[str] = set()

    def load(self, name: str, parse: Callable[[bytes], _T], *, max_bytes: int = MAX_FILE_BYTES) -> _T | None:
        """Return the parsed file, else its parsed backup; None if neither can be used.

        `parse` raises ValueError, TypeError or KeyError (or a subclass) for invalid content.
        StoreOpenError: too few descriptors or too little memory to read the content.
        """
        return self._load(name, parse, max_bytes, keep=False)

    def load_or_keep(self, name: str, parse: Callable[[bytes], _T], *, max_bytes: int = MAX_FILE_BYTES) -> _T | None:
        """Load a table like `load`, but never treat an unreadable one as empty; None only if there is no file.

        UnreadableTableError: neither the file nor its backup can be used. Both are renamed, and every start raises the
        error until a file is put in place.
        """
        table = self._load(name, parse, max_bytes, keep=True)
        if table is None:
            beginnings = f"{name}{UNREADABLE}", f"{name}.bak{UNREADABLE}"
            kept = [each for each in self._files.names_in(self.folder) if each.startswith(beginnings)]
            # Includes one that could not be renamed.
            kept += [each for each in (name, f"{name}.bak") if self._files.facts(f"{self.folder}/{each}") is not None]
            if kept:
                raise UnreadableTableError([f"{self._shown}/{each}" for each in kept])
        return table

    def _load(self, name: str, parse: Callable[[bytes], _T], max_bytes: int, *, keep: bool) -> _T | None:
        for candidate in (name, f"{name}.bak"):
            too_large = False
            try:
                facts = self._files.facts(f"{self.folder}/{candidate}")
                if facts is None:
                    if candidate == name and self._files.facts(f"{self.folder}/{name}.bak") is not None:
                        self._damaged.add(name)
                        self._correct("config-missing", name, "the file is missing: its backup is used")
                    continue
                if facts.file_bytes > max_bytes:
                    too_large = True
                    raise ValueError(f"it has {facts.file_bytes} bytes; the limit is {max_bytes}")
                data = self._files.read(f"{self.folder}/{candidate}")
                return parse(data or b"")
            except (ValueError, TypeError, KeyError, LookupError, RecursionError, OSError) as error:
                if is_shortage(error):
                    # Treated as empty, the table would soon overwrite the file.
                    raise StoreOpenError(
                        f"{self.folder}/{candidate} cannot be opened ({error}): give the process more descriptors "
                        "(ulimit -n) or memory, then start again"
                    ) from error
                self._damaged.add(name)
                retained = "it is retained until an administrator decides what to do with it"
                without = retained if keep else "it is treated as empty"
                following = "its backup is used" if candidate == name else without
                self._correct("config-damaged", candidate, f"cannot be read ({str(error)[:200]}): {following}")
                # The next save would overwrite it.
                if keep or too_large:
                    self._set_aside(candidate)
                else:
                    self._aside.keep_file(f"{self.folder}/{candidate}")
        return None

    def _set_aside(self, name: str) -> None:
        """Rename an unreadable file."""
        kept, number = f"{self.folder}/{name}{UNREADABLE}", 1
        while self._files.facts(kept) is not None:
            number += 1
            kept = f"{self.folder}/{name}{UNREADABLE}.{number}"
        try:
            self._files.rename(f"{self.folder}/{name}", kept)
            self._files.sync_folder(self.folder)
        except OSError as error:
            # The file keeps its name, and the next start reports it again.
            _logger.error("%s/%s cannot be renamed: %s", self.folder, name, error)

    def _correct(self, what: str, name: str, detail: str) -> None:
        correction = Correction(what, f"{self._shown}/{name}", 0, detail)
        self._corrections.append(correction)
        _logger.warning("%s: %s", correction.file, correction.detail)

    def save(self, name: str, data: bytes, *, max_bytes: int = MAX_FILE_BYTES) -> None:
        """Replace the file durably. OSError: the old file is unchanged."""
        if len(data) > max_bytes:
            # The next start would reject the file, and the start after that its backup.
            text = f"{name} would have {len(data)} bytes; the limit is {max_bytes}"
            raise OSError(errno.EFBIG, text)
        path = f"{self.folder}/{name}"
        self._files.write(f"{path}.tmp", data)
        # A damaged file must not replace the backup, which may be the only valid copy.
        if name not in self._damaged and self._files.facts(path) is not None:
            self._copy(path, f"{path}.bak.tmp")
            self._files.rename(f"{path}.bak.tmp", f"{path}.bak")
        self._files.rename(f"{path}.tmp", path)
        self._files.sync_folder(self.folder)
        self._damaged.discard(name)

    def _copy(self, source: str, target: str) -> None:
        """Copy a file durably, in pieces because a large table is already in memory once."""
        files = self._files
        read = files.open(source)
        try:
            written = files.open(target, create=True)
            try:
                files.set_size(written, 0)
                position = 0
                while piece := files.pread(read, _COPIED_AT_ONCE, position):
                    files.pwrite(written, piece, position)
                    position += len(piece)
                files.fdatasync(written)
            finally:
                files.close(written)
        finally:
            files.close(read)

    def remove(self, name: str) -> None:
        """Delete the file and its backup."""
        for candidate in (name, f"{name}.bak"):
            self._files.unlink(f"{self.folder}/{candidate}")
        self._files.sync_folder(self.folder)
