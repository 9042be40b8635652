"""`delaymq store backup`: a store, also one in use, copied up to one confirmed end."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from delaymq import __version__
from delaymq.cli.commands.store.common import explained, parse_bytes, progress, size
from delaymq.cli.commands.store.remote_source import RemoteSource
from delaymq.cli.errors import CommandError
from delaymq.cli.options import AsJson, TokenFile
from delaymq.cli.target.contexts import target
from delaymq.cli.terminal.output import console, print_json
from delaymq.clock import now_ms
from delaymq.store.backup.backup import Backup, BackupResult
from delaymq.store.backup.manifest import is_backup
from delaymq.store.backup.source import BackupSource, FolderSource

BackupFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The backup's folder; made if it is missing.")]


def backup(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A store's folder, or a running broker's HTTP address (http://…).")
    ],
    folder: BackupFolder,
    limit: Annotated[
        str | None, typer.Option("--limit", metavar="BYTES", help="Copy at most so much a second, such as 50M.")
    ] = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Copy a store while it is used; again into the same folder copies only what is new."""
    bytes_per_s = parse_bytes(limit, "--limit") if limit is not None else None
    with explained(str(folder), "what is copied is kept, run the backup again to go on"):
        opened = open_source(source, str(folder), token_file)
        try:
            with progress("backup", quiet=as_json) as shown:
                result = Backup(
                    opened,
                    str(folder),
                    program=__version__,
                    now_ms=now_ms,
                    progress=shown,
                    bytes_per_s=bytes_per_s,
                ).run()
        finally:
            opened.close()
    if as_json:
        print_json(as_data(result, str(folder)))
    else:
        _show(result, str(folder))


def open_source(source: str, folder: str, token_file: str | None) -> BackupSource:
    """The store named by a folder or an address. CommandError, BackupError."""
    if "://" in source:
        asked = target(http=source, token_file=token_file)
        return RemoteSource(asked.http, asked.token, folder)
    if not os.path.isdir(source):
        raise CommandError(
            f"{source} is not a folder: name a store's folder, or a running broker's address such as"
            " http://127.0.0.1:8080",
            2,
        )
    if is_backup(source):
        raise CommandError(f"{source} is a backup already: copy the folder, or restore it", 2)
    if os.path.realpath(source) == os.path.realpath(folder) or Path(folder).resolve().is_relative_to(
        Path(source).resolve()
    ):
        raise CommandError(f"{folder} lies in the store: name a folder elsewhere, best on another disk", 2)
    return FolderSource(source)


def as_data(result: BackupResult, folder: str) -> dict[str, object]:
    """For --json."""
    manifest = result.manifest
    return {
        "backup": folder,
        "storeId": manifest.store_id,
        "startOffset": manifest.start_offset,
        "endOffset": manifest.end_offset,
        "segments": len(manifest.segments),
        "copiedBytes": result.copied_bytes,
        "keptSegments": result.kept_segments,
        "renewed": list(result.renewed),
        "deletedSegments": result.deleted_segments,
        "durationMs": result.duration_ms,
    }


def _show(result: BackupResult, folder: str) -> None:
    manifest = result.manifest
    out = console()
    seconds = max(result.duration_ms, 1) / 1000
    rate = f", {size(result.copied_bytes / seconds)}/s" if result.copied_bytes else ""
    when = datetime.fromtimestamp(manifest.finished_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")
    out.print(
        f"{folder} holds everything from {manifest.start_offset} up to offset {manifest.end_offset} ({when})",
        soft_wrap=True,
    )
    out.print(
        f"{size(result.copied_bytes)} copied in {seconds:.1f} s{rate}; {result.kept_segments} complete segments were"
        f" there already, {result.deleted_segments} are gone as the store deleted them",
        soft_wrap=True,
    )
    for name in result.renewed:
        out.print(f"segment {name} was copied anew: it was damaged, or the log went on otherwise")
