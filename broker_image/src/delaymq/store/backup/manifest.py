"""manifest.json of a backup: what it holds, and with which checksums (docs/formats/store.md, "A backup").

It is written last. What it does not name belongs to a backup that was interrupted, or goes on being made.
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
from delaymq.store.segments import is_segment_name

NAME: Final = "manifest.json"
PARTIAL: Final = "partial.json"
"""What an unfinished backup has copied so far."""
FORMAT_VERSION: Final = 1
MAX_SEGMENTS: Final = 1_000_000
"""A petabyte of RocketMQ's segments; a source or a manifest that states more is none."""
MAX_MANIFEST_BYTES: Final = 256 * 1024 * 1024
"""A million segments; another file of that name must not fill the memory."""
_BOUNDS: Final = {
    "commitLogFileBytes": (1, 1 << 31),
    "consumeQueueFileBytes": (20, 1 << 30),
    "indexSlots": (1, 100_000_000),
    "indexEntries": (2, 400_000_000),
}
"""As the configuration has them; a log segment of another program may be smaller."""
_PREFIX: Final = b'{"crc32":"'
_PREFIX_BYTES: Final = len(_PREFIX) + 8 + 2


@dataclass(frozen=True, kw_only=True)
class FileSizes:
    """With which sizes a store's files are made; None where its files do not tell."""

    commit_log_file_bytes: int
    consume_queue_file_bytes: int | None = None
    index_slots: int | None = None
    index_entries: int | None = None
    index_enabled: bool = True


@dataclass(frozen=True, slots=True)
class Copied:
    """One file of a backup: its first `file_bytes` bytes have this checksum. More may stand behind them."""

    file_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A finished backup."""

    program: str
    """Version of the program that made it."""
    store_id: str
    """The origin's; empty for a store that only RocketMQ's own broker has opened."""
    broker_name: str | None
    message_delay_level: str | None
    start_offset: int
    end_offset: int
    """Physical offset up to which everything is there, once."""
    started_ms: int
    finished_ms: int
    sizes: FileSizes
    segments: Mapping[str, Copied]
    """By name, in order; the last one may end before its file does."""
    tables: str
    """Folder of the small files."""
    small_files: Mapping[str, Copied]
    """By path below that folder."""


def encode_manifest(manifest: Manifest) -> bytes:
    """The file's bytes: JSON whose first member is the CRC32 of all bytes behind it."""
    sizes = manifest.sizes
    content = {
        "formatVersion": FORMAT_VERSION,
        "minimumReader": FORMAT_VERSION,
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
    """The manifest in a file; BackupError says what is wrong."""
    if not data.startswith(_PREFIX) or data[len(_PREFIX) : len(_PREFIX) + 8] != b"%08x" % crc32(data[_PREFIX_BYTES:]):
        raise BackupError(f"{NAME} is damaged (its checksum does not match): take another backup")
    try:
        content = json.loads(data)
        least = content.get("minimumReader", content["formatVersion"])
        if least > FORMAT_VERSION:
            raise NewerBackupError(
                f"{NAME} needs a program that reads format version {least}, this one reads {FORMAT_VERSION}: use the "
                f"version that made it ({content.get('program')}), or a later one"
            )
        return _manifest(content)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BackupError(f"{NAME} cannot be read ({error!r}): take another backup") from error


def _manifest(content: dict[str, Any]) -> Manifest:
    sizes = content["sizes"]
    manifest = Manifest(
        program=str(content["program"]),
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
        raise ValueError("it names files that no backup has")
    if not all(map(is_small_file, manifest.small_files)):
        raise ValueError("it names files that no store has")
    return manifest


def sizes_from(sizes: Mapping[str, Any]) -> FileSizes:
    """The sizes as manifests and /api/v1/store tell them; KeyError, TypeError, ValueError."""
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
    """A size that a store may have; nobody makes us fill a disk or the memory by stating another."""
    value, (least, most) = sizes[name], _BOUNDS[name]
    if value is not None and not (type(value) is int and least <= value <= most):
        raise ValueError(f"{name} is {str(value)[:40]}, not a number from {least} to {most}")
    return None if value is None else int(value)


def is_plain(name: str) -> bool:
    """A name, not a path that leads out of the folder that it stands in."""
    return bool(name) and "/" not in name and "\0" not in name and not name.startswith(".")


def is_small_file(path: str) -> bool:
    """Whether it is the path of one of a store's small files, as backups have them."""
    folder, _, name = path.partition("/")
    return folder in ("config", "delaymq") and is_plain(name)


def is_backup(folder: str) -> bool:
    """Whether a finished backup is there."""
    return os.path.isfile(f"{folder}/{NAME}")


def holds_backup(folder: str) -> bool:
    """Whether a backup is there, finished or begun."""
    return is_backup(folder) or os.path.isfile(f"{folder}/{PARTIAL}")


def read_manifest(files: Files, folder: str) -> Manifest | None:
    """The manifest of a folder; None without one. BackupError when it cannot be used."""
    facts = files.facts(f"{folder}/{NAME}")
    if facts is not None and facts.file_bytes > MAX_MANIFEST_BYTES:
        raise BackupError(f"{folder}/{NAME} has {facts.file_bytes} bytes: that is no manifest")
    data = files.read(f"{folder}/{NAME}")
    return None if data is None else decode_manifest(data)


def write_manifest(files: Files, folder: str, manifest: Manifest) -> None:
    """Replace it; on disk when this returns."""
    files.write(f"{folder}/{NAME}.tmp", encode_manifest(manifest))
    files.rename(f"{folder}/{NAME}.tmp", f"{folder}/{NAME}")
    files.sync_folder(folder)
