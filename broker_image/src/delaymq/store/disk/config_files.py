"""Small files that are replaced as a whole: the broker's tables in config/ and our own in delaymq/."""

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
"""Of a table that states no limit of its own: it is neither read nor written with more."""
UNREADABLE: Final = ".unreadable"
"""What the names of tables end with that are kept until somebody decides about them."""
CONSUMER_OFFSETS: Final = "config/consumerOffset.json"
UNREADABLE_OFFSETS: Final = b"the consumer offsets could not be read when the backup was made\n"
"""What stands for them in a backup: a store restored from it serves no consumer before somebody decides."""
_COPIED_AT_ONCE: Final = 1 << 20
_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


class ConfigFiles:
    """Loads with a fallback to the backup. Saves atomically: `.tmp`, old content to `.bak`, rename, folder synced."""

    def __init__(self, files: Files, folder: str, store_path: str, corrections: list[Correction]) -> None:
        self._files = files
        self.folder = folder
        self._aside = AsideFolder(files, store_path)
        self._shown = folder.removeprefix(store_path).strip("/")
        self._corrections = corrections
        self._damaged: set[str] = set()

    def load(self, name: str, parse: Callable[[bytes], _T], *, max_bytes: int = MAX_FILE_BYTES) -> _T | None:
        """What `parse` makes of the file, else of its backup; None when neither can be used.

        `parse` says by ValueError, TypeError or KeyError (or a subclass) that the content is no good.
        StoreOpenError: without descriptors or memory nothing is known of the content.
        """
        return self._load(name, parse, max_bytes, keep=False)

    def load_or_keep(self, name: str, parse: Callable[[bytes], _T], *, max_bytes: int = MAX_FILE_BYTES) -> _T | None:
        """As `load`, for a table that must not count as empty by mistake; None only when there is none.

        UnreadableTableError: there is one, and neither the file nor its backup can be used. What cannot be used is
        renamed, and the error is raised at each start until a file is put in its place.
        """
        table = self._load(name, parse, max_bytes, keep=True)
        if table is None:
            beginnings = f"{name}{UNREADABLE}", f"{name}.bak{UNREADABLE}"
            kept = [each for each in self._files.names_in(self.folder) if each.startswith(beginnings)]
            # One that could not be renamed either.
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
                    raise ValueError(f"it has {facts.file_bytes} bytes, of which at most {max_bytes} are read")
                data = self._files.read(f"{self.folder}/{candidate}")
                return parse(data or b"")
            except (ValueError, TypeError, KeyError, LookupError, RecursionError, OSError) as error:
                if is_shortage(error):
                    # A table that counted as empty would soon replace the file.
                    raise StoreOpenError(
                        f"{self.folder}/{candidate} cannot be opened ({error}): the process needs more descriptors "
                        "or memory (ulimit -n), then start again"
                    ) from error
                self._damaged.add(name)
                without = "it is kept until somebody decides about it" if keep else "it counts as empty"
                following = "its backup is used" if candidate == name else without
                self._correct("config-damaged", candidate, f"cannot be read ({str(error)[:200]}): {following}")
                # The next save replaces it.
                if keep or too_large:
                    self._set_aside(candidate)
                else:
                    self._aside.keep_file(f"{self.folder}/{candidate}")
        return None

    def _set_aside(self, name: str) -> None:
        """Rename a file that cannot be read."""
        kept, number = f"{self.folder}/{name}{UNREADABLE}", 1
        while self._files.facts(kept) is not None:
            number += 1
            kept = f"{self.folder}/{name}{UNREADABLE}.{number}"
        try:
            self._files.rename(f"{self.folder}/{name}", kept)
            self._files.sync_folder(self.folder)
        except OSError as error:
            # It stays where it is, and the next start finds it there.
            _logger.error("%s/%s cannot be renamed: %s", self.folder, name, error)

    def _correct(self, what: str, name: str, detail: str) -> None:
        correction = Correction(what, f"{self._shown}/{name}", 0, detail)
        self._corrections.append(correction)
        _logger.warning("%s: %s", correction.file, correction.detail)

    def save(self, name: str, data: bytes, *, max_bytes: int = MAX_FILE_BYTES) -> None:
        """Replace the file; on disk when this returns. OSError leaves the old one in place."""
        if len(data) > max_bytes:
            # The next start would refuse it, and the one after it its backup.
            text = f"{name} would have {len(data)} bytes, of which a start reads at most {max_bytes}"
            raise OSError(errno.EFBIG, text)
        path = f"{self.folder}/{name}"
        self._files.write(f"{path}.tmp", data)
        # A damaged file must not replace the backup, which may be the last good one.
        if name not in self._damaged and self._files.facts(path) is not None:
            self._copy(path, f"{path}.bak.tmp")
            self._files.rename(f"{path}.bak.tmp", f"{path}.bak")
        self._files.rename(f"{path}.tmp", path)
        self._files.sync_folder(self.folder)
        self._damaged.discard(name)

    def _copy(self, source: str, target: str) -> None:
        """Copy a file; on disk when this returns. In pieces: a large table is in memory once already."""
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
