"""A twin of the file layer that remembers every call, and the crash states that may follow from them.

The model is harsher than a journalling file system: what was not synced may be lost page by page in any order, the
last page write may be torn, sizes and names lag behind independently, and unlinked files may come back.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from delaymq.store.disk.files import Files

PAGE_BYTES = 4096
Found = TypeVar("Found")


@dataclass
class RecordedFile:
    """One file by its identity, whatever its name."""

    number: int
    size: int = 0
    changes: list[tuple[int, str, int, bytes]] = field(default_factory=list)
    """Call number, "write" or "size", position or size, data."""
    synced: list[tuple[int, int]] = field(default_factory=list)
    """Call number of each sync, and how many changes it covers."""


@dataclass(frozen=True)
class NameChange:
    """One change of a folder."""

    call: int
    kind: str
    """create, mkdir, rename, unlink, rmdir"""
    path: str
    source: str = ""
    file: int = -1

    @property
    def folder(self) -> str:
        """The folder whose sync makes it last."""
        return os.path.dirname(self.path)


class RecordingMap(mmap.mmap):
    """Shared memory that reports what is written to it."""

    recorder: RecordingFiles
    file: RecordedFile

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.recorder.changed(self.file, key.start, bytes(value))


class RecordingFiles(Files):
    """Works on real files below `root`, does not wait for the disk, remembers all that would have to."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.calls = 0
        self.files: list[RecordedFile] = []
        self.names: dict[str, int] = {}
        self.name_changes: list[NameChange] = []
        self.folder_syncs: dict[str, list[int]] = defaultdict(list)
        self._by_descriptor: dict[int, RecordedFile] = {}
        self.used_ratio = 0.1

    def _relative(self, path: str) -> str:
        return os.path.relpath(path, self.root)

    def _call(self) -> int:
        self.calls += 1
        return self.calls

    def changed(self, file: RecordedFile, position: int, data: bytes) -> None:
        file.changes.append((self._call(), "write", position, data))
        file.size = max(file.size, position + len(data))

    def open(self, path: str, *, create: bool = False) -> int:
        known = os.path.exists(path)
        descriptor = super().open(path, create=create)
        relative = self._relative(path)
        if not known:
            number = len(self.files)
            self.files.append(RecordedFile(number))
            self.names[relative] = number
            self.name_changes.append(NameChange(self._call(), "create", relative, file=number))
        self._by_descriptor[descriptor] = self.files[self.names[relative]]
        return descriptor

    def allocate(self, descriptor: int, file_bytes: int) -> None:
        super().allocate(descriptor, file_bytes)
        file = self._by_descriptor[descriptor]
        if file.size < file_bytes:
            file.changes.append((self._call(), "size", file_bytes, b""))
            file.size = file_bytes

    def set_size(self, descriptor: int, file_bytes: int) -> None:
        super().set_size(descriptor, file_bytes)
        file = self._by_descriptor[descriptor]
        if file.size != file_bytes:
            file.changes.append((self._call(), "size", file_bytes, b""))
            file.size = file_bytes

    def map(self, descriptor: int, file_bytes: int) -> mmap.mmap:
        mapping = RecordingMap(descriptor, file_bytes)
        mapping.recorder = self
        mapping.file = self._by_descriptor[descriptor]
        return mapping

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        super().pwrite(descriptor, data, position)
        self.changed(self._by_descriptor[descriptor], position, bytes(data))

    def fdatasync(self, descriptor: int) -> None:
        file = self._by_descriptor[descriptor]
        file.synced.append((self._call(), len(file.changes)))

    def sync_filesystem(self, folder: str) -> bool:
        return False  # so that each file is synced, and an omitted sync shows

    def sync_folder(self, path: str) -> None:
        os.stat(path)
        self.folder_syncs[self._relative(path)].append(self._call())

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        number = self.names.pop(self._relative(source))
        self.names[self._relative(target)] = number
        self.name_changes.append(
            NameChange(self._call(), "rename", self._relative(target), self._relative(source), number)
        )

    def unlink(self, path: str) -> None:
        if os.path.exists(path):
            super().unlink(path)
            self.names.pop(self._relative(path))
            self.name_changes.append(NameChange(self._call(), "unlink", self._relative(path)))

    def remove_folder(self, path: str) -> None:
        super().remove_folder(path)
        if not os.path.exists(path):
            self.name_changes.append(NameChange(self._call(), "rmdir", self._relative(path)))

    def make_folder(self, path: str) -> bool:
        made = super().make_folder(path)
        if made:
            self.name_changes.append(NameChange(self._call(), "mkdir", self._relative(path)))
        return made

    def disk_used_ratio(self, path: str) -> float:
        return self.used_ratio


class QuietFiles(Files):
    """The real file layer without waiting for the disk, for opening many crash states."""

    def fdatasync(self, descriptor: int) -> None:
        os.fstat(descriptor)

    def sync_filesystem(self, folder: str) -> bool:
        return False  # so that each file is synced, and an omitted sync shows

    def sync_folder(self, path: str) -> None:
        os.stat(path)

    def disk_used_ratio(self, path: str) -> float:
        return 0.1


def after_crashes(
    recording: RecordingFiles, *, seed: int, states: int, folder: Path, check: Callable[[Path, int], Found]
) -> list[Found]:
    """Return the findings of `check` in `states` states, given the folder and the call at which the machine stopped."""
    crashes, chance = CrashStates(recording), random.Random(seed)
    found: list[Found] = []
    for number in range(states):
        call = chance.randint(1, recording.calls)
        mode = chance.choice(["kill", "power", "power", "torn", "torn", "nothing"])
        target = folder / f"state-{number}"
        crashes.write(call, random.Random(seed * 100_003 + number), mode, str(target))
        try:
            found.append(check(target, call))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, state {number}, call {call}, {mode}: {error}") from error
        shutil.rmtree(target)
    return found


class CrashStates:
    """What the disk may hold if the machine stops after a call."""

    def __init__(self, recording: RecordingFiles) -> None:
        self._recording = recording
        self._contents: dict[tuple[int, int], bytes] = {}

    def write(self, call: int, chance: random.Random, mode: str, target: str) -> None:
        """Put one possible state into the folder `target`. Modes: kill (the process only), power, torn, nothing."""
        keep = {"kill": 1.0, "power": 0.5, "torn": 0.85, "nothing": 0.0}[mode]
        folders, names = self._names(call, chance, keep)
        os.mkdir(target)
        for folder in sorted(folders):
            if folder != ".":
                os.makedirs(f"{target}/{folder}", exist_ok=True)
        for path, number in names.items():
            if os.path.dirname(path) in folders:
                with open(f"{target}/{path}", "wb") as file:
                    file.write(self._content(self._recording.files[number], call, chance, keep))

    def _names(self, call: int, chance: random.Random, keep: float) -> tuple[set[str], dict[str, int]]:
        """The existing folders and files. Each folder lags behind independently, in the order of its changes."""
        changes = [change for change in self._recording.name_changes if change.call <= call]
        horizon: dict[str, int] = {}
        for folder in {change.folder for change in changes}:
            synced = max((c for c in self._recording.folder_syncs[folder or "."] if c <= call), default=0)
            pending = [change.call for change in changes if change.folder == folder and change.call > synced]
            if keep == 1.0:
                horizon[folder] = call
            elif pending and keep > 0:
                horizon[folder] = chance.choice([synced, *pending])
            else:
                horizon[folder] = synced
        folders, names = {"", "."}, {}
        for change in changes:
            if change.call > horizon[change.folder]:
                continue
            if change.kind == "mkdir":
                folders.add(change.path)
            elif change.kind == "rmdir":
                folders.discard(change.path)
            elif change.kind == "create":
                names[change.path] = change.file
            elif change.kind == "unlink":
                names.pop(change.path, None)
            else:
                names.pop(change.source, None)
                names[change.path] = change.file
        reachable = {folder for folder in folders if self._is_reachable(folder, folders)}
        return reachable, names

    @staticmethod
    def _is_reachable(folder: str, folders: set[str]) -> bool:
        while folder not in ("", "."):
            if folder not in folders:
                return False
            folder = os.path.dirname(folder)
        return True

    def _content(self, file: RecordedFile, call: int, chance: random.Random, keep: float) -> bytes:
        covered = max((count for sync, count in file.synced if sync <= call), default=0)
        base = self._synced_content(file, covered)
        pending = [change for change in file.changes[covered:] if change[0] <= call]
        if not pending or keep == 0.0:
            return base
        if keep == 1.0:
            content = bytearray(base)
            for change in pending:
                _apply(content, change)
            return bytes(content)
        return self._partly(base, pending, chance, keep)

    def _synced_content(self, file: RecordedFile, covered: int) -> bytes:
        key = file.number, covered
        content = self._contents.get(key)
        if content is None:
            earlier = max(
                (count for number, count in self._contents if number == file.number and count < covered), default=0
            )
            building = bytearray(self._contents.get((file.number, earlier), b""))
            for change in file.changes[earlier:covered]:
                _apply(building, change)
            content = self._contents[key] = bytes(building)
        return content

    @staticmethod
    def _partly(base: bytes, pending: list[tuple[int, str, int, bytes]], chance: random.Random, keep: float) -> bytes:
        """Each page stops at a version of its own; so does the size."""
        sizes = [len(base)]
        for _, kind, position, data in pending:
            sizes.append(position if kind == "size" else max(sizes[-1], position + len(data)))
        size = sizes[-1] if chance.random() < keep else chance.choice(sizes)
        whole = bytearray(base.ljust(max(sizes), b"\0"))
        by_page: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        for _, kind, position, data in pending:
            if kind == "size":
                for page in range(position // PAGE_BYTES, (max(sizes) + PAGE_BYTES - 1) // PAGE_BYTES):
                    start = max(position, page * PAGE_BYTES)
                    end = min((page + 1) * PAGE_BYTES, max(sizes))
                    if end > start:
                        by_page[page].append((start, bytes(end - start)))
                continue
            at = 0
            while at < len(data):
                page = (position + at) // PAGE_BYTES
                count = min((page + 1) * PAGE_BYTES - position - at, len(data) - at)
                by_page[page].append((position + at, data[at : at + count]))
                at += count
        for versions in by_page.values():
            draw = chance.random()
            count = len(versions) if draw < keep else chance.randint(0, len(versions))
            for number, (position, data) in enumerate(versions[:count]):
                torn = number == count - 1 and count < len(versions) and chance.random() < 0.5
                piece = data[: chance.randint(0, len(data))] if torn else data
                whole[position : position + len(piece)] = piece
        return bytes(whole[:size].ljust(size, b"\0"))


def _apply(content: bytearray, change: tuple[int, str, int, bytes]) -> None:
    _, kind, position, data = change
    if kind == "size":
        if len(content) > position:
            del content[position:]
        else:
            content.extend(bytes(position - len(content)))
        return
    if len(content) < position + len(data):
        content.extend(bytes(position + len(data) - len(content)))
    content[position : position + len(data)] = data
