"""manifest.json of a backup: its files and their checksums (docs/formats/store.md, "A backup").

It is written last. Files that it does not name belong to an interrupted or running backup.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from delaymq.store.disk.files import Files
from delaymq.store.errors import BackupError, NewerBackupError
from delaymq.store.layout import BASE_VERSION, FORMAT_VERSION
from delaymq.store.segments import is_segment_name

NAME: Final = "manifest.json"
PARTIAL: Final = "partial.json"
"""List of the files that an unfinished backup has copied so far."""
MAX_SEGMENTS: Final = 1_000_000
"""Limit of about a petabyte in RocketMQ's segments; a source or manifest that states more is invalid."""
MAX_MANIFEST_BYTES: Final = 256 * 1024 * 1024
"""Size for a million segments; the limit protects memory from other files of that name."""
_BOUNDS: Final = {
    "commitLogFileBytes": (1, 1 << 31),
    "consumeQueueFileBytes": (20, 1 << 30),
    "indexSlots": (1, 100_000_000),
    "indexEntries": (2, 400_000_000),
}
"""Bounds of the configuration; a log segment of another program may be smaller."""
_PREFIX: Final = b'{"crc32":"'
_PREFIX_BYTES: Final = len(_PREFIX) + 8 + 2


@dataclass(frozen=True, kw_only=True)
class FileSizes:
    """Sizes with which a store's files are created; None where its files do not show them."""

    commit_log_file_bytes: int
    consume_queue_file_bytes: int | None = None
    index_slots: int | None = None
    index_entries: int | None = None
    index_enabled: bool = True


@dataclass(frozen=True, slots=True)
class Copied:
    """One file of a backup: size and checksum of its first `file_bytes` bytes. The file may be longer."""

    file_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A finished backup."""

    program: str
    """Version of the program that created it."""
    minimum_reader: int = BASE_VERSION
    """Lowest format version of programs that may restore it: that of the original store (`store.layout`)."""
    store_id: str
    """Id of the original store; empty for a store that only RocketMQ's broker has opened."""
    broker_name: str | None
    message_delay_level: str | None
    start_offset: int
    end_offset: int
    """Physical offset up to which the backup is complete."""
    started_ms: int
    finished_ms: int
    sizes: FileSizes
    segments: Mapping[str, Copied]
    """Segments by name, in order; the last one may be shorter than its file."""
    tables: str
    """Folder of the small files."""
    small_files: Mapping[str, Copied]
    """Small files by path relative to that folder."""


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the file's bytes: JSON whose first member is the CRC32 of all bytes after it."""
    sizes = manifest.sizes
    content = {
        "formatVersion": manifest.minimum_reader,
        "minimumReader": manifest.minimum_reader,
        "program": manifest.program,
        "storeId": manifest.store_id,
        "brokerName": manifest.broker_name,
        "messageDelayLevel": manifest.message_delay_level,
        "startOffset": manifest.start_offset,
        "endOffset": manifest.end_offset,
        "startedMs": manifest.started_ms,
        "finishedMs": manifest.finished_ms,
        "sizes": {
            "commitLogFileBytes": sizes.commit_log_file_bytes,
            "consumeQueueFileBytes": sizes.consume_queue_file_bytes,
            "indexSlots": sizes.index_slots,
            "indexEntries": sizes.index_entries,
            "indexEnabled": sizes.index_enabled,
        },
        "segments": {name: [each.file_bytes, each.sha256] for name, each in manifest.segments.items()},
        "tables": manifest.tables,
        "smallFiles": {path: [each.file_bytes, each.sha256] for path, each in manifest.small_files.items()},
    }
    rest = json.dumps(content, indent=1).encode()[1:] + b"\n"
    return _PREFIX + f"{crc32(rest):08x}".encode() + b'",' + rest


def decode_manifest(data: bytes) -> Manifest:
    """Return the manifest in a file. BackupError with the reason if it is invalid."""
    if not data.startswith(_PREFIX) or data[len(_PREFIX) : len(_PREFIX) + 8] != b"%08x" % crc32(data[_PREFIX_BYTES:]):
        raise BackupError(f"{NAME} is damaged (its checksum does not match): take another backup")
    try:
        content = json.loads(data)
        least = content.get("minimumReader", content["formatVersion"])
        if least > FORMAT_VERSION:
            raise NewerBackupError(
                f"{NAME} requires a program that reads format version {least}, but this one reads {FORMAT_VERSION}: "
                f"use the version that created it ({content.get('program')}), or a later one"
            )
        return _manifest(content)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BackupError(f"{NAME} cannot be read ({error!r}): take another backup") from error


def _manifest(content: dict[str, Any]) -> Manifest:
    sizes = content["sizes"]
    manifest = Manifest(
        program=str(content["program"]),
        minimum_reader=max(int(content.get("minimumReader", content["formatVersion"])), BASE_VERSION),
        store_id=str(content["storeId"]),
        broker_name=content["brokerName"],
        message_delay_level=content["messageDelayLevel"],
        start_offset=int(content["startOffset"]),
        end_offset=int(content["endOffset"]),
        started_ms=int(content["startedMs"]),
        finished_ms=int(content["finishedMs"]),
        sizes=sizes_from(sizes),
        segments={name: Copied(int(each[0]), str(each[1])) for name, each in content["segments"].items()},
        tables=str(content["tables"]),
        small_files={path: Copied(int(each[0]), str(each[1])) for path, each in content["smallFiles"].items()},
    )
    if not all(map(is_segment_name, manifest.segments)) or not is_plain(manifest.tables):
        raise ValueError("it names files that do not belong to a backup")
    if not all(map(is_small_file, manifest.small_files)):
        raise ValueError("it names files that do not belong to a store")
    return manifest


def sizes_from(sizes: Mapping[str, Any]) -> FileSizes:
    """Return the file sizes from a manifest or from /api/v1/store. KeyError, TypeError, ValueError."""
    log_bytes = _bounded(sizes, "commitLogFileBytes")
    if log_bytes is None:
        raise ValueError("commitLogFileBytes is missing")
    return FileSizes(
        commit_log_file_bytes=log_bytes,
        consume_queue_file_bytes=_bounded(sizes, "consumeQueueFileBytes"),
        index_slots=_bounded(sizes, "indexSlots"),
        index_entries=_bounded(sizes, "indexEntries"),
        index_enabled=bool(sizes["indexEnabled"]),
    )


def _bounded(sizes: Mapping[str, Any], name: str) -> int | None:
    """Return a size within the bounds of the configuration: other values could fill the disk or the memory."""
    value, (least, most) = sizes[name], _BOUNDS[name]
    if value is not None and not (type(value) is int and least <= value <= most):
        raise ValueError(f"{name} is {str(value)[:40]}, not a number from {least} to {most}")
    return None if value is None else int(value)


def is_plain(name: str) -> bool:
    """Whether this is a plain name, not a path that leads out of its folder."""
    return bool(name) and "/" not in name and "\0" not in name and not name.startswith(".")


def is_small_file(path: str) -> bool:
    """Whether this is the path of one of a store's small files in a backup."""
    folder, _, name = path.partition("/")
    return folder in ("config", "delaymq") and is_plain(name)


def is_backup(folder: str) -> bool:
    """Whether the folder contains a finished backup."""
    return os.path.isfile(f"{folder}/{NAME}")


def holds_backup(folder: str) -> bool:
    """Whether the folder contains a backup, finished or not."""
    return is_backup(folder) or os.path.isfile(f"{folder}/{PARTIAL}")


def read_manifest(files: Files, folder: str) -> Manifest | None:
    """Return the manifest of a folder; None if there is none. BackupError if it cannot be used."""
    facts = files.facts(f"{folder}/{NAME}")
    if facts is not None and facts.file_bytes > MAX_MANIFEST_BYTES:
        raise BackupError(f"{folder}/{NAME} has {facts.file_bytes} bytes, too many for a manifest: check the file")
    data = files.read(f"{folder}/{NAME}")
    return None if data is None else decode_manifest(data)


def write_manifest(files: Files, folder: str, manifest: Manifest) -> None:
    """Replace the manifest durably."""
    files.write(f"{folder}/{NAME}.tmp", encode_manifest(manifest))
    files.rename(f"{folder}/{NAME}.tmp", f"{folder}/{NAME}")
    files.sync_folder(folder)
