"""Files of a member in the folder `delaymq` of its store: its epochs, its note, and what tells a loss of power.

`epochs.json` contains the store id and each epoch with the offset of its first byte:
`{"version": 1, "storeId": "…", "epochs": [[1, 0], [2, 4711]]}`. `replica.json` contains the boot id of the kernel in
which the member last ran, what it acknowledged, and, if it is no candidate until it has caught up, a note:
`{"version": 1, "bootId": "…", "acknowledge": "Appended", "note": {"kind": "lost tail", "epoch": 2, "serial": 17}}`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from delaymq.replication import Acknowledge, Note, NoteKind
from delaymq.replication.history import EpochStart, History
from delaymq.server.errors import ServerError
from delaymq.store.disk.config_files import ConfigFiles
from delaymq.store.layout import RESTORED

EPOCHS_FILE: Final = "epochs.json"
REPLICA_FILE: Final = "replica.json"
MAX_EPOCHS: Final = 10_000
"""Epochs that a file may contain; a group that fails over each hour reaches it after a year, and drops the oldest."""
_VERSION: Final = 1
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
T = TypeVar("T")


class _Epochs(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    version: int
    store_id: str
    epochs: list[tuple[int, int]]


class _Note(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    epoch: int
    serial: int


class _Replica(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    version: int
    boot_id: str
    acknowledge: str
    note: _Note | None


class KnownReplica(NamedTuple):
    """Content of `replica.json`."""

    boot_id: str
    acknowledge: Acknowledge
    note: Note | None


class Epochs(NamedTuple):
    """Content of `epochs.json`."""

    store_id: str
    history: History


def boot_id() -> str:
    """Return the id of this start of the kernel; empty if the system does not tell it."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def refuse_members_store(store_path: Path) -> None:
    """Raise ServerError if a store belongs to a member of a group, and must not be used on its own.

    What it stored would look like bytes of its newest epoch, which other members have differently.
    """
    path = store_path / "delaymq" / EPOCHS_FILE
    if path.exists():
        raise ServerError(
            f"{store_path} is the store of a member of a replicated group: start it as such, or delete {path} to use it"
            " without replicas"
        )


class MemberFiles:
    """Reads and replaces the files. The methods that write may run in any thread, one at a time."""

    def __init__(self, files: ConfigFiles) -> None:
        self._files = files

    def epochs(self) -> Epochs | None:
        """Return the epochs; None without a file. ServerError: it is unreadable."""
        return self._load(EPOCHS_FILE, _epochs_in)

    @property
    def is_restored(self) -> bool:
        """Whether the store was restored from a backup, possibly before it became that of a member."""
        return Path(self._files.folder, RESTORED).exists()

    def replica(self) -> KnownReplica | None:
        """Return the state of the member when it last ran; None without a file. ServerError: it is unreadable."""
        return self._load(REPLICA_FILE, _replica_in)

    def _load(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """Return the content of a file. Its backup is not used: by older epochs, diverged logs may look equal."""
        path = Path(self._files.folder, name)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ServerError(f"{path} cannot be read ({error.strerror}): check the disk") from error
        try:
            return parse(data)
        except ValueError as error:
            raise ServerError(
                f"{path} is damaged ({error}): delete the volume of this member, which then receives everything from"
                " the master"
            ) from error

    def write_epochs(self, store_id: str, history: History) -> None:
        """Replace the epochs durably. OSError."""
        newest = history[-MAX_EPOCHS:]
        self._files.save(
            EPOCHS_FILE, msgspec.json.encode(_Epochs(_VERSION, store_id, [(each.epoch, each.start) for each in newest]))
        )

    def write_replica(self, note: Note | None, acknowledge: Acknowledge) -> None:
        """Replace the state of the member durably, with the current boot id. OSError."""
        stored = None if note is None else _Note(note.kind.value, note.epoch, note.serial)
        self._files.save(REPLICA_FILE, msgspec.json.encode(_Replica(_VERSION, boot_id(), acknowledge.value, stored)))


def _epochs_in(data: bytes) -> Epochs:
    stored = msgspec.json.decode(data, type=_Epochs)
    history = tuple(EpochStart(*each) for each in stored.epochs)
    if stored.version != _VERSION:
        raise ValueError(f"version {stored.version} is not supported")
    ascending = all(one.epoch < other.epoch and one.start <= other.start for one, other in pairwise(history))
    if not ascending or any(each.epoch <= 0 or each.start < 0 for each in history):
        raise ValueError("the epochs are not in ascending order")
    return Epochs(stored.store_id, history)


def _replica_in(data: bytes) -> KnownReplica:
    stored = msgspec.json.decode(data, type=_Replica)
    if stored.version != _VERSION:
        raise ValueError(f"version {stored.version} is not supported")
    note = None if stored.note is None else Note(NoteKind(stored.note.kind), stored.note.epoch, stored.note.serial)
    return KnownReplica(stored.boot_id, Acknowledge(stored.acknowledge), note)
