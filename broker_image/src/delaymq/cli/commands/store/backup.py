"""`delaymq store backup`: copy a store, even one in use, up to a confirmed end offset."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from delaymq import __version__
from delaymq.cli.commands.store.common import explain_errors, parse_bytes, progress, size
from delaymq.cli.commands.store.remote_source import RemoteSource
from delaymq.cli.errors import CommandError
from delaymq.cli.options import AsJson, TokenFile
from delaymq.cli.target.contexts import target
from delaymq.cli.terminal.output import console, print_json
from delaymq.clock import now_ms
from delaymq.store.backup.backup import Backup, BackupResult
from delaymq.store.backup.manifest import is_backup
from delaymq.store.backup.source import BackupSource, FolderSource

BackupFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The backup's folder; created if missing.")]


def backup(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="Directory of a store, or HTTP address of a running broker (http://…)."),
    ],
    folder: BackupFolder,
    limit: Annotated[
        str | None, typer.Option("--limit", metavar="BYTES", help="Maximum bytes per second, such as 50M.")
    ] = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Back up a store, even one in use; a repeated backup into the same folder copies only new data."""
    bytes_per_s = parse_bytes(limit, "--limit") if limit is not None else None
    with explain_errors(str(folder), "the copied data is kept: run the backup again to continue"):
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
    """Open the store named by a folder or an address; raise CommandError or BackupError."""
    if "://" in source:
        return RemoteSource(target(http=source, token_file=token_file), folder)
    if not os.path.isdir(source):
        raise CommandError(
            f"{source} is not a directory: specify a store's directory, or the address of a running broker such as"
            " http://127.0.0.1:8080",
            2,
        )
    if is_backup(source):
        raise CommandError(f"{source} is already a backup: copy the folder, or restore it", 2)
    if os.path.realpath(source) == os.path.realpath(folder) or Path(folder).resolve().is_relative_to(
        Path(source).resolve()
    ):
        raise CommandError(f"{folder} is inside the store: specify a folder elsewhere, preferably on another disk", 2)
    return FolderSource(source)


def as_data(result: BackupResult, folder: str) -> dict[str, object]:
    """Return the result as printed by --json."""
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
        f"{folder} contains the commit log from offset {manifest.start_offset} to {manifest.end_offset} ({when})",
        soft_wrap=True,
    )
    out.print(
        f"{size(result.copied_bytes)} copied in {seconds:.1f} s{rate}; {result.kept_segments} complete segments"
        f" unchanged, {result.deleted_segments} removed because the store deleted them",
        soft_wrap=True,
    )
    for name in result.renewed:
        out.print(f"segment {name} was copied again: it was damaged, or the log diverged")
