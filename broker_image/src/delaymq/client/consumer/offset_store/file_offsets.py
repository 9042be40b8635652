"""Offsets of a broadcasting member in its own file, in the location and format of RocketMQ's Java client."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
from pathlib import Path

from delaymq.client.consumer.rebalance.strategies import queue_order
from delaymq.client.errors import ClientError
from delaymq.protocol.bodies import MessageQueue, ResetOffset
from delaymq.protocol.errors import RequestError

FOLDER = ".rocketmq_offsets"
FILE_NAME = "offsets.json"
DEFAULT_INSTANCE = "DEFAULT"
"""RocketMQ's default instance name. A process ID would create a new file at each start."""
MAX_FILE_BYTES = 16 * 1024 * 1024
"""Maximum size of an offset file; it suffices for more than 100,000 queues."""

_logger = logging.getLogger(__name__)


class OffsetsInUseError(ClientError):
    """Another consumer uses the same offset file."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"another consumer stores its offsets in {path}: each broadcasting member requires its own file, so give "
            "each Client an instance_name, or each consumer an offsets_path"
        )
        self.path = path


def default_path(client_id: str, instance_name: str, group: str) -> Path:
    """Return the file used by RocketMQ's client of the same address, instance and group. ClientError without a home
    directory.
    """
    try:
        home = Path.home()
    except RuntimeError as error:
        raise ClientError("there is no home directory for a member's offsets: set HOME, or offsets_path") from error
    address = client_id.partition("@")[0]
    instance = (instance_name or DEFAULT_INSTANCE).replace("/", "_")
    return home / FOLDER / f"{address}@{instance}" / group / FILE_NAME


class FileOffsets:
    """Offsets in a file that is replaced atomically; the previous one is kept as `.bak`, which is read if the file
    is unreadable.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lock: int | None = None
        self._offsets: dict[MessageQueue, int] = {}
        self._written: dict[MessageQueue, int] = {}
        self._is_told = False
        self._writing = threading.Lock()
        """Lock for writes: a save can start before the thread of a cancelled save has finished."""

    async def open(self, path: Path) -> None:
        """Lock the file for this consumer and read it. OffsetsInUseError if another consumer uses it."""
        self._path = path
        opening = asyncio.ensure_future(asyncio.to_thread(self._open))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._opened_too_late)
            raise

    def close(self) -> None:
        """Release the file."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def load(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    async def save(self, offsets: dict[MessageQueue, int]) -> None:
        self._offsets = self._offsets | offsets
        if self._offsets == self._written or self._path is None:
            return
        try:
            self._written = await asyncio.to_thread(self._write_all, self._path)
        except OSError as error:
            # Retried every few seconds, so one line is enough.
            if not self._is_told:
                _logger.warning(
                    ("offsets could not be saved to %s; messages will be repeated after a restart: %s"),
                    self._path,
                    error,
                )
            self._is_told = True
        else:
            self._is_told = False

    def forget_saved(self) -> None:
        """Do nothing: a file loses no offsets."""

    def _opened_too_late(self, opening: asyncio.Future[None]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self.close()

    def _write_all(self, path: Path) -> dict[MessageQueue, int]:
        with self._writing:
            offsets = self._offsets
            _write(path, offsets)
            return offsets

    def _open(self) -> None:
        assert self._path is not None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._path.with_name(f"{self._path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise OffsetsInUseError(self._path) from None
        except OSError as error:
            # Every member receives every message, so a start as a new member is better than no start.
            _logger.warning(
                ("offsets cannot be stored in %s; messages will be repeated after a restart: %s"), self._path, error
            )
            self.close()
            self._is_told = True
        self._offsets = self._written = _read(self._path)


def _backup_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.bak")


def _read(path: Path) -> dict[MessageQueue, int]:
    for each in (path, _backup_of(path)):
        try:
            with each.open("rb") as file:
                return ResetOffset.decode(file.read(MAX_FILE_BYTES + 1), max_bytes=MAX_FILE_BYTES).offset_table
        except FileNotFoundError:
            continue
        except (OSError, RequestError) as error:
            _logger.warning("offsets in %s cannot be read and are ignored: %s", each, error)
    return {}


def _write(path: Path, offsets: dict[MessageQueue, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft, backup = path.with_name(f"{path.name}.tmp"), _backup_of(path)
    ordered = {queue: offsets[queue] for queue in sorted(offsets, key=queue_order)}
    # The table has the same format as in a broker's request to reset offsets.
    draft.write_bytes(ResetOffset(offset_table=ordered).encode())
    try:
        before = path.read_bytes()
    except FileNotFoundError:
        before = b""
    if before:
        # Also replaced atomically, so that a crash does not leave two incomplete files.
        copy = path.with_name(f"{path.name}.bak.tmp")
        copy.write_bytes(before)
        copy.replace(backup)
    draft.replace(path)
