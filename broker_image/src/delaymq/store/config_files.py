"""Small files that are replaced as a whole: the broker's tables in config/ and our own in delaymq/."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from delaymq.store.aside import Aside
from delaymq.store.errors import StoreOpenError
from delaymq.store.files import Files, is_shortage
from delaymq.store.model import Correction

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class ConfigFiles:
    """Loads with a fallback to the backup. Saves atomically: `.tmp`, old content to `.bak`, rename, folder synced."""

    def __init__(self, files: Files, folder: str, store_path: str, corrections: list[Correction]) -> None:
        self._files = files
        self.folder = folder
        self._aside = Aside(files, store_path)
        self._shown = folder.removeprefix(store_path).strip("/")
        self._corrections = corrections
        self._damaged: set[str] = set()

    def load(self, name: str, parse: Callable[[bytes], _T]) -> _T | None:
        """What `parse` makes of the file, else of its backup; None when neither can be used.

        `parse` says by ValueError, TypeError or KeyError (or a subclass) that the content is no good.
        StoreOpenError: without descriptors or memory nothing is known of the content.
        """
        for candidate in (name, f"{name}.bak"):
            try:
                data = self._files.read(f"{self.folder}/{candidate}")
                if data is None:
                    if candidate != name:
                        continue
                    if self._files.facts(f"{self.folder}/{name}.bak") is not None:
                        self._damaged.add(name)
                        self._correct("config-missing", name, "the file is missing: its backup is used")
                    continue
                return parse(data)
            except (ValueError, TypeError, KeyError, LookupError, RecursionError, OSError) as error:
                if is_shortage(error):
                    # A table that counted as empty would soon replace the file.
                    raise StoreOpenError(
                        f"{self.folder}/{candidate} cannot be opened ({error}): the process needs more descriptors "
                        "or memory (ulimit -n), then start again"
                    ) from error
                self._damaged.add(name)
                following = "its backup is used" if candidate == name else "it counts as empty"
                self._correct("config-damaged", candidate, f"cannot be read ({str(error)[:200]}): {following}")
                # The next save replaces it.
                self._aside.keep_file(f"{self.folder}/{candidate}")
        return None

    def _correct(self, what: str, name: str, detail: str) -> None:
        correction = Correction(what, f"{self._shown}/{name}", 0, detail)
        self._corrections.append(correction)
        _log.warning("%s: %s", correction.file, correction.detail)

    def save(self, name: str, data: bytes) -> None:
        """Replace the file; on disk when this returns. OSError leaves the old one in place."""
        path = f"{self.folder}/{name}"
        self._files.write(f"{path}.tmp", data)
        # A damaged file must not replace the backup, which may be the last good one.
        old = None if name in self._damaged else self._files.read(path)
        if old is not None:
            self._files.write(f"{path}.bak.tmp", old)
            self._files.rename(f"{path}.bak.tmp", f"{path}.bak")
        self._files.rename(f"{path}.tmp", path)
        self._files.sync_folder(self.folder)
        self._damaged.discard(name)

    def remove(self, name: str) -> None:
        """Delete the file and its backup."""
        for candidate in (name, f"{name}.bak"):
            self._files.unlink(f"{self.folder}/{candidate}")
        self._files.sync_folder(self.folder)
