"""The rule files of one server: found, read again when they change, written when an administrator asks for it.

There is one file and, beside it, the folder `acl` with any number of `.yml` and `.yaml` files. Invariant: a file
that cannot be read leaves its last good rules in force, and says so; a key that two files have is the first one's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from delaymq.access.errors import AccessError
from delaymq.access.plain_acl import AclFile, parse, to_text
from delaymq.config.file_signature import FileSignature
from delaymq.config.replacing import replace_file

FOLDER: Final = "acl"
TOOLS_FILE: Final = "tools.yml"
"""What RocketMQ's tools sign with; no rules."""
MAX_FILE_BYTES: Final = 1 << 20
"""Thousands of accounts. A file named by mistake must not fill the memory."""
MAX_FILES: Final = 1_000
MAX_FOLDER_DEPTH: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class FileState:
    """One file as it was seen last."""

    path: Path
    signature: FileSignature | None
    """None: it is not there."""
    file: AclFile
    """What counts: what was read last without a problem."""
    problem: str = ""
    """Why what is there now does not count; empty: it does."""


States = dict[Path, FileState]
"""In the order in which files count."""


Parse = Callable[[str, int], AclFile]
"""The file of a text, which changed at a time (ms)."""


def load_changed(default_path: Path, known: States, now_ms: int, parse: Parse = parse) -> States:
    """The files as they are now; those that have not changed are not read again. May run in any thread."""
    return {path: load_file(path, known.get(path), now_ms, parse) for path in _paths(default_path)}


def _paths(default_path: Path) -> list[Path]:
    found = sorted(_below(default_path.parent / FOLDER, MAX_FOLDER_DEPTH))
    return [*[path for path in found if path != default_path][:MAX_FILES], default_path]


def _below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [(entry.name, entry.is_dir()) for entry in entries]
    except OSError:
        return
    for name, is_folder in names:
        # A mounted Secret keeps its files a second time in folders whose names begin with two dots.
        if name.startswith(".") or (name == TOOLS_FILE and not is_folder):
            continue
        if is_folder:
            if depth:
                yield from _below(folder / name, depth - 1)
        elif name.endswith((".yml", ".yaml")):
            yield folder / name


def load_file(path: Path, known: FileState | None, now_ms: int, parse: Parse = parse) -> FileState:
    """One file as it is now; the known state itself if it has not changed."""
    try:
        signature = FileSignature.of(os.stat(path))
    except FileNotFoundError:
        # Whoever deletes a file takes its accounts away.
        return FileState(path=path, signature=None, file=AclFile(has_data=False))
    except OSError as error:
        return _unreadable(path, None, known, f"cannot be looked at: {error.strerror}")
    if known is not None and known.signature == signature:
        return known
    return read(path, known, now_ms, parse)


def read(path: Path, known: FileState | None, now_ms: int, parse: Parse = parse) -> FileState:
    """A file read anew; with a problem its last good rules stay."""
    signature: FileSignature | None = None
    try:
        with open(path, "rb", opener=_without_waiting) as opened:
            found = os.fstat(opened.fileno())
            signature = FileSignature.of(found)
            if not stat.S_ISREG(found.st_mode):
                raise AccessError("is no file")
            data = opened.read(MAX_FILE_BYTES + 1)
            if FileSignature.of(os.fstat(opened.fileno())) != signature:
                # Somebody writes it right now: it is looked at again the next time.
                signature = None
                raise AccessError("is being written")
        if len(data) > MAX_FILE_BYTES:
            raise AccessError(f"has more than {MAX_FILE_BYTES} bytes: divide the accounts among files in {FOLDER}/")
        file = parse(data.decode("utf-8-sig"), now_ms if signature is None else signature.modified_ns // 1_000_000)
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        return _unreadable(path, signature, known, f"is not UTF-8 (line {line})")
    except OSError as error:
        return _unreadable(path, signature, known, f"cannot be read: {error.strerror}")
    except AccessError as error:
        return _unreadable(path, signature, known, str(error))
    if not file.has_data and known is not None and known.file.accounts:
        # An editor empties a file before it writes it; whoever means it writes an empty list.
        return _unreadable(path, signature, known, "is empty: write `accounts: []` if nobody is to be known")
    return FileState(path=path, signature=signature, file=file)


def _without_waiting(path: str, flags: int) -> int:
    # Opening a pipe would wait for somebody who writes into it.
    return os.open(path, flags | os.O_NONBLOCK)


def _unreadable(path: Path, signature: FileSignature | None, known: FileState | None, problem: str) -> FileState:
    if known is None:
        return FileState(path=path, signature=signature, file=AclFile(has_data=False), problem=problem)
    return replace(known, signature=signature, problem=problem)


def write(path: Path, file: AclFile) -> FileState:
    """Puts a changed file on the disk, whole or not at all. AccessError when it cannot be."""
    data = to_text(file).encode(errors="replace")
    if len(data) > MAX_FILE_BYTES:
        raise AccessError(f"{path} would have more than {MAX_FILE_BYTES} bytes: delete accounts first")
    target = Path(os.path.realpath(path))
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o600
        signature = FileSignature.of(replace_file(target, data, mode=mode))
    except OSError as error:
        raise AccessError(f"{path} cannot be written ({error.strerror}): change it where it comes from") from error
    return FileState(path=path, signature=signature, file=file)
