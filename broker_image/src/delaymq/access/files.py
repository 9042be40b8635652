"""Rule files of one server: discovery, reloading of changed files, and writing on administrators' requests.

There is one file and, next to it, the folder `acl` with any number of `.yml` and `.yaml` files. Invariant: if a file
is unreadable, its last valid rules stay in effect, and the problem is reported; of duplicate keys, the first applies.
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
from delaymq.config.replacing import changing, replace_file

FOLDER: Final = "acl"
TOOLS_FILE: Final = "tools.yml"
"""Account file of RocketMQ's tools, which contains no rules."""
MAX_FILE_BYTES: Final = 1 << 20
"""Enough for thousands of accounts; a wrong file must not exhaust the memory."""
MAX_FILES: Final = 1_000
MAX_FOLDER_DEPTH: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class FileState:
    """Last known state of one file."""

    path: Path
    signature: FileSignature | None
    """None if the file does not exist."""
    file: AclFile
    """Content in effect: the last one read without a problem."""
    problem: str = ""
    """Why the current content is not in effect; empty if it is."""


States = dict[Path, FileState]
"""States in the order of precedence."""


Parse = Callable[[str, int], AclFile]
"""Parses a text, given its modification time in ms."""


def load_changed(default_path: Path, known: States, now_ms: int, parse: Parse = parse) -> States:
    """Return the current states of the files, reading only changed ones; in any thread."""
    return {path: load_file(path, known.get(path), now_ms, parse) for path in _paths(default_path)}


def versions(states: States) -> dict[str, dict[str, int]]:
    """Return RocketMQ's dataVersion of each file in effect, by path."""
    return {str(path): state.file.version.json() for path, state in states.items()}


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
        # A mounted Secret contains its files a second time in folders whose names start with two dots.
        if name.startswith(".") or (name == TOOLS_FILE and not is_folder):
            continue
        if is_folder:
            if depth:
                yield from _below(folder / name, depth - 1)
        elif name.endswith((".yml", ".yaml")):
            yield folder / name


def load_file(path: Path, known: FileState | None, now_ms: int, parse: Parse = parse) -> FileState:
    """Return the current state of one file; the known state itself if it has not changed."""
    try:
        signature = FileSignature.of(os.stat(path))
    except FileNotFoundError:
        # Deleting a file removes its accounts.
        return FileState(path=path, signature=None, file=AclFile(has_data=False))
    except OSError as error:
        return _unreadable(path, None, known, f"is inaccessible: {error.strerror}")
    if known is not None and known.signature == signature:
        return known
    return read(path, known, now_ms, parse)


def read(path: Path, known: FileState | None, now_ms: int, parse: Parse = parse) -> FileState:
    """Read a file; with a problem, its last valid rules stay in effect."""
    signature: FileSignature | None = None
    try:
        with open(path, "rb", opener=_without_waiting) as opened:
            found = os.fstat(opened.fileno())
            signature = FileSignature.of(found)
            if not stat.S_ISREG(found.st_mode):
                raise AccessError("is not a regular file")
            data = opened.read(MAX_FILE_BYTES + 1)
            if FileSignature.of(os.fstat(opened.fileno())) != signature:
                # The file is being written; it is read again at the next check.
                signature = None
                raise AccessError("is being written")
        if len(data) > MAX_FILE_BYTES:
            raise AccessError(f"exceeds {MAX_FILE_BYTES} bytes: split the accounts into several files in {FOLDER}/")
        file = parse(data.decode("utf-8-sig"), now_ms if signature is None else signature.modified_ns // 1_000_000)
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        return _unreadable(path, signature, known, f"is not UTF-8 (line {line})")
    except OSError as error:
        return _unreadable(path, signature, known, f"cannot be read: {error.strerror}")
    except AccessError as error:
        return _unreadable(path, signature, known, str(error))
    if not file.has_data and known is not None and known.file.accounts:
        # Editors truncate a file before writing it; an intentionally empty file contains an empty list.
        return _unreadable(path, signature, known, "is empty: use `accounts: []` for no accounts")
    return FileState(path=path, signature=signature, file=file)


def _without_waiting(path: str, flags: int) -> int:
    # Opening a pipe would otherwise block until it has a writer.
    return os.open(path, flags | os.O_NONBLOCK)


def _unreadable(path: Path, signature: FileSignature | None, known: FileState | None, problem: str) -> FileState:
    if known is None:
        return FileState(path=path, signature=signature, file=AclFile(has_data=False), problem=problem)
    return replace(known, signature=signature, problem=problem)


def write(path: Path, file: AclFile) -> FileState:
    """Write a changed file atomically; raise AccessError on failure."""
    data = to_text(file).encode(errors="replace")
    if len(data) > MAX_FILE_BYTES:
        raise AccessError(f"{path} would exceed {MAX_FILE_BYTES} bytes: delete accounts first")
    target = Path(os.path.realpath(path))
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o600
        with changing(target):
            signature = FileSignature.of(replace_file(target, data, mode=mode))
    except OSError as error:
        raise AccessError(
            f"cannot write {path} ({error.strerror}): make its folder writable, or change the Secret from which the"
            " file is mounted"
        ) from error
    return FileState(path=path, signature=signature, file=file)
