"""Copies a store into a folder: full segments once, the last one up to the log's end, small files each time.

An interrupted backup does not change the previous one, and the next run does not repeat what is already copied.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from delaymq.store.backup.manifest import NAME, PARTIAL, Copied, Manifest, read_manifest, write_manifest
from delaymq.store.backup.source import BackupSource, SourceState, encode_ended_queues, require_plausible
from delaymq.store.disk.files import Files
from delaymq.store.errors import BackupError, NewerBackupError, SegmentGoneError, WrongFolderError
from delaymq.store.segments import is_segment_name, segment_name

CHUNK_BYTES: Final = 4 << 20
SYNC_BYTES: Final = 64 << 20
"""Maximum amount of data that must be copied again after an interruption."""
SAMPLE_BYTES: Final = 64 << 10
"""Size of the samples compared with the source at both ends of a segment: after a power failure, a log that lost its
tail may continue with other records."""
LOCK: Final = "lock"
TABLES_PREFIX: Final = "tables-"
QUEUES: Final = "delaymq/queues.json"

Progress = Callable[[int, int], None]
"""Callback with the number of bytes done and the total number of bytes."""


@dataclass(frozen=True, kw_only=True)
class BackupResult:
    """Result of a backup."""

    manifest: Manifest
    copied_bytes: int
    kept_segments: int
    """Number of segments that were already complete in the folder."""
    renewed: tuple[str, ...]
    """Segments copied again because the copy was damaged or the source's log differs."""
    deleted_segments: int
    """Number of segments deleted because the source no longer has them."""
    duration_ms: int


@dataclass(slots=True)
class _Held:
    """State of a segment in the folder: number of durable bytes, and their checksum if all of them can be used."""

    file_bytes: int
    sha256: str | None


class Backup:
    """One backup run; `run` can be called once."""

    def __init__(
        self,
        source: BackupSource,
        folder: str,
        *,
        program: str,
        now_ms: Callable[[], int],
        progress: Progress = lambda done, total: None,
        bytes_per_s: int | None = None,
        files: Files | None = None,
    ) -> None:
        self._source = source
        self._folder = folder.rstrip("/")
        self._program = program
        self._now_ms = now_ms
        self._progress = progress
        self._bytes_per_s = bytes_per_s
        self._files = files or Files()
        self._held: dict[str, _Held] = {}
        self._renewed: list[str] = []
        self._copied_bytes = 0
        self._kept = 0
        self._began = time.monotonic()

    def run(self) -> BackupResult:
        """Copy until the folder is consistent up to one log end. BackupError; OSError if the disk fails."""
        started_ms = self._now_ms()
        with _locked(self._files, self._folder):
            before = self._read_folder()
            state = self._read_state()
            self._check_same_store(before, state)
            self._forget_what_differs(state)
            self._keep_partial(state.store_id)
            while True:
                try:
                    segments = self._copy_log(state)
                    break
                except SegmentGoneError as error:
                    # Pending messages in the segment may have been delivered since: only a later end is consistent.
                    first = state.start_offset
                    state = self._read_state()
                    if state.start_offset <= first:
                        raise BackupError(
                            f"{error}, but the log still starts at {first}: check the disk of the source"
                        ) from error
            tables, small_files = self._write_small_files(state, started_ms)
            manifest = Manifest(
                program=self._program,
                minimum_reader=state.minimum_reader,
                store_id=state.store_id,
                broker_name=state.broker_name,
                message_delay_level=state.message_delay_level,
                start_offset=state.start_offset,
                end_offset=state.end_offset,
                started_ms=started_ms,
                finished_ms=self._now_ms(),
                sizes=state.sizes,
                segments=segments,
                tables=tables,
                small_files=small_files,
            )
            write_manifest(self._files, self._folder, manifest)
            deleted = self._remove_old(manifest)
        return BackupResult(
            manifest=manifest,
            copied_bytes=self._copied_bytes,
            kept_segments=self._kept,
            renewed=tuple(self._renewed),
            deleted_segments=deleted,
            duration_ms=int((time.monotonic() - self._began) * 1000),
        )

    def _read_state(self) -> SourceState:
        state = self._source.state()
        require_plausible(state)
        return state

    # -- existing files -------------------------------------------------------------------------------------------

    def _read_folder(self) -> Manifest | None:
        files, folder = self._files, self._folder
        try:
            before = read_manifest(files, folder)
        except NewerBackupError:
            raise
        except BackupError:
            before = None  # treat its files like those of an interrupted run: checksums decide
        if before is not None:
            self._held = {name: _Held(each.file_bytes, each.sha256) for name, each in before.segments.items()}
        elif foreign := [name for name in files.names_in(folder) if not _is_ours(name)]:
            raise WrongFolderError(f"{folder} contains other files ({foreign[0]}): specify an empty folder or a backup")
        files.make_folder(f"{folder}/commitlog")
        self._partial_of = self._read_partial()
        return before

    def _read_partial(self) -> str | None:
        """Add what an interrupted run copied; return the id of the store that it copied."""
        try:
            content = json.loads(self._files.read(f"{self._folder}/{PARTIAL}") or b"{}")
            for name, (file_bytes, checksum) in content.get("segments", {}).items():
                if is_segment_name(name):
                    self._held[name] = _Held(int(file_bytes), None if checksum is None else str(checksum))
            return str(content["storeId"]) if "storeId" in content else None
        except (ValueError, TypeError, AttributeError):
            return None  # truncated by a power failure: what it named is copied again

    def _check_same_store(self, before: Manifest | None, state: SourceState) -> None:
        for store_id in (before.store_id if before is not None else None, self._partial_of):
            if store_id is not None and store_id != state.store_id:
                raise WrongFolderError(
                    f"{self._folder} holds a backup of another store ({store_id or 'RocketMQ'}, not "
                    f"{state.store_id or 'RocketMQ'}): specify another folder"
                )

    def _forget_what_differs(self, state: SourceState) -> None:
        """Drop segments beyond the offset up to which source and folder have the same history."""
        for name in sorted(self._held, reverse=True):
            held, base = self._held[name], int(name)
            if base < state.start_offset:
                break
            if base + held.file_bytes <= state.end_offset and self._is_alike(base, held.file_bytes):
                break
            del self._held[name]
            self._renewed.append(name)

    def _is_alike(self, base: int, file_bytes: int) -> bool:
        path = f"{self._folder}/commitlog/{segment_name(base)}"
        facts = self._files.facts(path)
        if facts is None or facts.file_bytes < file_bytes:
            return False
        with open(path, "rb") as file:
            for position in {0, max(file_bytes - SAMPLE_BYTES, 0)}:
                count = min(SAMPLE_BYTES, file_bytes - position)
                try:
                    if os.pread(file.fileno(), count, position) != self._read(base, position, count):
                        return False
                except SegmentGoneError:
                    return True  # will not be copied again
        return True

    def _read(self, base: int, position: int, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += self._source.read(base, position + len(data), count - len(data))
        return data

    # -- the log --------------------------------------------------------------------------------------------------

    def _copy_log(self, state: SourceState) -> dict[str, Copied]:
        segment_bytes, end = state.sizes.commit_log_file_bytes, state.end_offset
        self._kept = 0
        segments: dict[str, Copied] = {}
        bases = range(state.start_offset, end, segment_bytes)
        total = sum(self._missing(base, min(end - base, segment_bytes)) for base in bases) + self._copied_bytes
        self._progress(self._copied_bytes, total)
        for base in bases:
            name, wanted = segment_name(base), min(end - base, segment_bytes)
            held = self._held.get(name)
            if (
                held is not None
                and held.sha256 is not None
                and held.file_bytes == wanted
                and self._is_there(name, wanted)
            ):
                self._kept += wanted == segment_bytes
                segments[name] = Copied(wanted, held.sha256)
                continue
            segments[name] = self._copy_segment(base, wanted, total, state.store_id)
        return segments

    def _is_there(self, name: str, file_bytes: int) -> bool:
        facts = self._files.facts(f"{self._folder}/commitlog/{name}")
        return facts is not None and facts.file_bytes >= file_bytes

    def _missing(self, base: int, wanted: int) -> int:
        held = self._held.get(segment_name(base))
        return wanted if held is None else max(wanted - held.file_bytes, 0)

    def _copy_segment(self, base: int, wanted: int, total: int, store_id: str) -> Copied:
        """Copy a segment, or its new bytes, up to `wanted` bytes."""
        files, name = self._files, segment_name(base)
        path = f"{self._folder}/commitlog/{name}"
        position, checksum = self._continued(path, name, wanted)
        if position == 0:
            # Writes a new file, not new bytes: a hard-linked copy of this backup must not change.
            files.unlink(path)
        descriptor = files.open(path, create=True)
        try:
            files.set_size(descriptor, position)
            synced = position
            while position < wanted:
                self._source.pin(base)
                data = self._source.read(base, position, min(CHUNK_BYTES, wanted - position))
                checksum.update(data)
                if any(data):
                    files.pwrite(descriptor, data, position)
                position += len(data)
                self._copied_bytes += len(data)
                self._progress(self._copied_bytes, max(total, self._copied_bytes))
                self._hold_back(base)
                if position - synced >= SYNC_BYTES:
                    files.set_size(descriptor, position)
                    files.fdatasync(descriptor)
                    synced = position
                    self._note(name, _Held(synced, None), store_id)
            files.set_size(descriptor, wanted)
            files.fdatasync(descriptor)
        finally:
            files.close(descriptor)
        copied = Copied(wanted, checksum.hexdigest())
        self._note(name, _Held(wanted, copied.sha256), store_id)
        return copied

    def _continued(self, path: str, name: str, wanted: int) -> tuple[int, Any]:
        """Return the position to continue from and the checksum up to it; the start if the copy is damaged."""
        checksum = sha256()
        held = self._held.get(name)
        if held is None or held.file_bytes > wanted or not self._is_there(name, held.file_bytes):
            return 0, checksum
        with open(path, "rb") as file:
            for position in range(0, held.file_bytes, CHUNK_BYTES):
                checksum.update(file.read(min(CHUNK_BYTES, held.file_bytes - position)))
        if held.sha256 is None or checksum.hexdigest() == held.sha256:
            return held.file_bytes, checksum
        self._renewed.append(name)
        return 0, sha256()

    def _hold_back(self, base: int) -> None:
        """Sleep as the rate limit requires; the source stays pinned meanwhile."""
        if self._bytes_per_s is None:
            return
        until = self._began + self._copied_bytes / self._bytes_per_s
        while (wait_s := until - time.monotonic()) > 0:
            time.sleep(min(wait_s, 1.0))
            self._source.pin(base)

    def _note(self, name: str, held: _Held, store_id: str) -> None:
        """Record what is copied, so that a run after an interruption can continue."""
        self._held[name] = held
        self._keep_partial(store_id)

    def _keep_partial(self, store_id: str) -> None:
        content = {
            "storeId": store_id,
            "segments": {key: [each.file_bytes, each.sha256] for key, each in sorted(self._held.items())},
        }
        path = f"{self._folder}/{PARTIAL}"
        self._files.write(f"{path}.tmp", json.dumps(content).encode())
        self._files.rename(f"{path}.tmp", path)

    # -- small files and completion -------------------------------------------------------------------------------

    def _write_small_files(self, state: SourceState, started_ms: int) -> tuple[str, dict[str, Copied]]:
        """Copy the small files to a new folder: the previous backup keeps its own until this one is complete."""
        files = self._files
        tables = f"{TABLES_PREFIX}{state.end_offset:020d}-{started_ms}"
        folder = f"{self._folder}/{tables}"
        for path in (folder, f"{folder}/config", f"{folder}/delaymq"):
            files.make_folder(path)
        contents = dict(state.small_files) | {QUEUES: encode_ended_queues(state.ended_queues)}
        for name, data in contents.items():
            files.write(f"{folder}/{name}", data)
        for path in (f"{folder}/config", f"{folder}/delaymq", folder, f"{self._folder}/commitlog", self._folder):
            files.sync_folder(path)
        return tables, {name: Copied(len(data), sha256(data).hexdigest()) for name, data in contents.items()}

    def _remove_old(self, manifest: Manifest) -> int:
        """Delete what the finished backup does not name; return the number of segments."""
        self._files.unlink(f"{self._folder}/{PARTIAL}")
        for name in self._files.names_in(self._folder):
            if name.startswith(TABLES_PREFIX) and name != manifest.tables:
                shutil.rmtree(f"{self._folder}/{name}", ignore_errors=True)
        deleted = 0
        for name in self._files.names_in(f"{self._folder}/commitlog"):
            if is_segment_name(name) and name not in manifest.segments:
                self._files.unlink(f"{self._folder}/commitlog/{name}")
                deleted += 1
        return deleted


def _is_ours(name: str) -> bool:
    return name in (NAME, f"{NAME}.tmp", PARTIAL, f"{PARTIAL}.tmp", LOCK, "commitlog", "lost+found") or name.startswith(
        TABLES_PREFIX
    )


@contextmanager
def _locked(files: Files, folder: str) -> Iterator[None]:
    """Lock a folder, which is created if it is missing, against other backups."""
    if os.path.exists(folder) and not files.is_folder(folder):
        raise WrongFolderError(f"{folder} is not a folder: specify another one")
    os.makedirs(folder, exist_ok=True)
    if os.path.exists(f"{folder}/consumequeue"):
        raise WrongFolderError(f"{folder} is a store, not a backup: specify another folder")
    descriptor = files.open(f"{folder}/{LOCK}", create=True)
    try:
        if not files.try_lock(descriptor):
            raise BackupError(f"another backup to {folder} is running: wait until it ends")
        yield
    finally:
        files.close(descriptor)
