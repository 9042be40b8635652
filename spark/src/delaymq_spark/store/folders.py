"""Folder names given by users: paths and `file:` URIs (RFC 8089).

An output folder inside a store is rejected, since stores are read-only.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
_BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_WILDCARDS: Final = re.compile(r"[*?\[\]{}\\]")
"""When Spark reads its own results, it interprets these as wildcards."""
_USABLE: Final = "a folder that this machine and all executors share, such as /srv/report"
_MAX_SHOWN: Final = 200


class FolderError(ValueError):
    """The text does not name a usable folder; the message says what to do."""


def scheme_of(text: str) -> str | None:
    """Return the scheme of a URI in lower case, or None for a path."""
    match = _SCHEME.match(text)
    return None if match is None else match[1].lower()


def folder_of(text: str, usable: str) -> str:
    """Return the path that `text` names, decoded; it is relative only if `text` is a relative path.

    `usable` describes what to give instead of a URI with another scheme. FolderError.
    """
    scheme = scheme_of(text)
    if scheme is None:
        path = text
    elif scheme == "file":
        path = _path_of_uri(text)
    else:
        # Spark, too, interprets a name with a colon as a URI.
        colon = "" if text.startswith("//", len(scheme) + 1) else f" (for a folder of this name, give ./{_shown(text)})"
        raise FolderError(f"{_shown(text)}: the scheme {scheme} is not supported: give {usable}{colon}")
    if not path or "\0" in path:
        raise FolderError(f"{_shown(text)!r} is not a folder name: give one such as /var/lib/delaymq")
    return path


def output_folder(text: str) -> Path:
    """Return the folder for results as an absolute path without symbolic links.

    Python and Spark then refer to the same folder. It need not exist. FolderError.
    """
    try:
        folder = Path(folder_of(text, _USABLE)).resolve()
    except (OSError, RuntimeError):
        raise FolderError(f"{_shown(text)}: its symbolic links form a loop: give another folder") from None
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise FolderError(f"{_shown(text)}: the name is not UTF-8, which Spark requires: give another folder") from None
    wildcard = _WILDCARDS.search(str(folder))
    if wildcard is not None:
        raise FolderError(f"{_shown(str(folder))}: Spark interprets {wildcard[0]} as a wildcard: give another folder")
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise FolderError(f"{_shown(str(folder))} is a file: give a folder")
    return folder


def store_around(folder: Path, store: str | None) -> str | None:
    """Return the store that contains `folder`: `store` or any other; None if no store does.

    Folders of a store may be symbolic links, and a store may be mounted twice, so folders are compared by identity.
    """
    roots = [] if store is None else [store, *_subfolders(store)]
    for each in (folder, *folder.parents):
        if os.path.isdir(each / "commitlog"):
            return str(each)
        if any(_is_same(each, root) for root in roots):
            return store
    return None


def _path_of_uri(text: str) -> str:
    rest = text.partition(":")[2]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise FolderError(f"{_shown(text)} names the host {_shown(host)}: give file:///PATH, with three slashes")
        rest = slash + path
    if not rest.startswith("/"):
        raise FolderError(f"{_shown(text)}: a file: URI must be absolute: give file:///PATH, or the path without file:")
    if "?" in rest or "#" in rest:
        raise FolderError(f"{_shown(text)}: ? and # end a URI's path: write %3F and %23, or omit file:")
    if _BROKEN_ESCAPE.search(rest):
        raise FolderError(f"{_shown(text)}: % begins an escape such as %20: write %25, or omit file:")
    return os.fsdecode(unquote_to_bytes(rest))


def _subfolders(store: str) -> list[str]:
    try:
        with os.scandir(store) as entries:
            return [entry.path for entry in entries if entry.is_dir()]
    except OSError:
        return []


def _is_same(one: Path, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _shown(text: str) -> str:
    clean = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    return clean if len(clean) <= _MAX_SHOWN else f"{clean[:_MAX_SHOWN]}…"
