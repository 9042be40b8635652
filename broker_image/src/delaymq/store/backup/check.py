"""Completeness check of a backup: size and checksum of every file that its manifest names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Final

from delaymq.store.backup.manifest import NAME, Copied, Manifest, read_manifest
from delaymq.store.disk.files import Files
from delaymq.store.errors import BackupError
from delaymq.store.segments import segment_name
from delaymq.store.tools.verify import DAMAGED, NOT_A_STORE, SOUND, Finding

CHUNK_BYTES: Final = 1 << 20


@dataclass(kw_only=True)
class BackupCheck:
    """Result of a check, with the exit codes of `verify`."""

    path: str
    exit_code: int = SOUND
    start_offset: int = 0
    end_offset: int = 0
    files: int = 0
    checked_bytes: int = 0
    damage: list[Finding] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """Return the result for `--json`."""
        return asdict(self)


def check_backup(folder: str, progress: Callable[[int, int], None] = lambda done, total: None) -> BackupCheck:
    """Check the whole backup; never writes, and reports problems instead of raising. OSError if it cannot be read."""
    folder = folder.rstrip("/")
    result = BackupCheck(path=folder)
    try:
        manifest = read_manifest(Files(), folder)
        if manifest is None:
            raise BackupError(
                f"{folder} contains no finished backup: {NAME} is missing; run the backup again and let it finish"
            )
    except BackupError as error:
        result.exit_code = DAMAGED if os.path.exists(f"{folder}/{NAME}") else NOT_A_STORE
        result.damage.append(Finding(what="manifest", file=NAME, offset=0, detail=str(error)))
        return result
    result.start_offset, result.end_offset = manifest.start_offset, manifest.end_offset
    total = sum(each.file_bytes for _, each in files_of(manifest))
    if problem := _gap(manifest):
        result.damage.append(Finding(what="manifest", file=NAME, offset=0, detail=problem))
    for name, copied in files_of(manifest):
        problem = problem_of(f"{folder}/{name}", copied)
        if problem is not None:
            result.damage.append(Finding(what="backup-damaged", file=name, offset=0, detail=problem))
        result.files += 1
        result.checked_bytes += copied.file_bytes
        progress(result.checked_bytes, total)
    if result.damage:
        result.exit_code = DAMAGED
    return result


def files_of(manifest: Manifest) -> Iterator[tuple[str, Copied]]:
    """Yield path relative to the backup and expected content of each file."""
    for name, copied in manifest.small_files.items():
        yield f"{manifest.tables}/{name}", copied
    for name, copied in manifest.segments.items():
        yield f"commitlog/{name}", copied


def _gap(manifest: Manifest) -> str | None:
    """Return the problem with the sequence of segments; None if they reach from start to end."""
    segment_bytes, end = manifest.sizes.commit_log_file_bytes, manifest.end_offset
    if segment_bytes <= 0 or manifest.start_offset % segment_bytes or not 0 <= manifest.start_offset <= end < 1 << 63:
        return "its offsets and sizes do not match: take another backup"
    bases = range(manifest.start_offset, end, segment_bytes)
    expected = {segment_name(base): min(end - base, segment_bytes) for base in bases[: len(manifest.segments)]}
    if len(bases) != len(expected) or {name: each.file_bytes for name, each in manifest.segments.items()} != expected:
        return "its segments do not reach from its start to its end: take another backup"
    return None


def require_complete_row(manifest: Manifest) -> None:
    """Raise BackupError if the manifest itself lacks segments."""
    if problem := _gap(manifest):
        raise BackupError(f"{NAME}: {problem}")


def problem_of(path: str, copied: Copied) -> str | None:
    """Return the problem with one file; None if its content is the copied one."""
    checksum = sha256()
    try:
        with open(path, "rb") as file:
            left = copied.file_bytes
            while left and (piece := file.read(min(CHUNK_BYTES, left))):
                checksum.update(piece)
                left -= len(piece)
    except FileNotFoundError:
        return "the file is missing: take another backup"
    if left:
        return f"the file is truncated: {left} of its {copied.file_bytes} bytes are missing; take another backup"
    if checksum.hexdigest() != copied.sha256:
        return "its content differs from the copied data (different checksum): take another backup"
    return None
