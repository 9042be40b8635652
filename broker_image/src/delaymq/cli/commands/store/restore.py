"""`delaymq store restore` and `delaymq store clone`: create a store from a backup or from another store."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from delaymq import __version__
from delaymq.cli.commands.store.backup import open_source
from delaymq.cli.commands.store.common import explain_errors, progress
from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, Yes, confirm
from delaymq.cli.overdue_policy import OverduePolicy, parse_overdue
from delaymq.cli.terminal.output import console, counted, print_json
from delaymq.clock import now_ms
from delaymq.store.backup.backup import Backup, Progress
from delaymq.store.backup.manifest import is_backup
from delaymq.store.backup.restore import Restore
from delaymq.store.disk.config_files import CONSUMER_OFFSETS

if TYPE_CHECKING:
    from delaymq.cli.commands.store.reopening import Reopened

CLONING = ".clone"
"""Folder in the new store for the intermediate copy when a store is cloned without a backup."""
POLICY_FILE = "delaymq/delivery.json"

Target = Annotated[Path, typer.Argument(metavar="STORE", help="Directory of the new store; must be missing or empty.")]


def restore(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the backup.")],
    store: Target,
    overdue: Annotated[
        str | None,
        typer.Option(
            "--overdue",
            metavar="CHOICE",
            help="For overdue delayed messages: deliver (immediately; the default), spread=30m, drop or pause.",
        ),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Create a store from a backup, to replace a lost one."""
    choice = parse_overdue(overdue) if overdue is not None else None
    with explain_errors(str(store), "then run the restore again"):
        with progress("restore", quiet=as_json) as shown:
            work = Restore(str(folder), str(store), progress=shown)
            if choice is None and POLICY_FILE in work.manifest.small_files:
                choice = OverduePolicy(what="pause")  # a store whose deliveries were paused stays paused
            work.lay_out()
        done = _finish(work, store, choice, yes)
    _report(work, store, done, done.overdue_policy, as_json)


def clone(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A backup, a store's directory, or a broker's address (http://…).")
    ],
    store: Target,
    overdue: Annotated[
        str,
        typer.Option("--overdue", metavar="CHOICE", help="The same choices as for `delaymq store restore`."),
    ] = "pause",
    consumer_offsets: Annotated[
        str, typer.Option("--offsets", metavar="keep|drop", help="Keep or drop the consumer offsets.")
    ] = "keep",
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="FILE", help="File with the broker's httpToken.")
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Create a copy of a store, with a new store id and with deliveries paused by default."""
    choice = parse_overdue(overdue)
    if consumer_offsets not in ("keep", "drop"):
        raise CommandError(f"--offsets: {consumer_offsets!r} is invalid: use keep or drop", EXIT_USAGE)
    left_out = frozenset({CONSUMER_OFFSETS, POLICY_FILE} if consumer_offsets == "drop" else {POLICY_FILE})
    with explain_errors(str(store), "then empty the folder and clone again"):
        with progress("clone", quiet=as_json) as shown:
            if is_backup(source):
                work = Restore(source, str(store), new_store_id=True, left_out=left_out, progress=shown)
                work.lay_out()
            else:
                work = _by_backup(source, store, token_file, left_out, shown)
        done = _finish(work, store, choice, yes)
    _report(work, store, done, choice, as_json, is_clone=True)


def _by_backup(source: str, store: Path, token_file: str | None, left_out: frozenset[str], shown: Progress) -> Restore:
    """Copy a store into a folder inside the new store, and move the segments from there."""
    if store.exists() and any(each.name not in ("lost+found", CLONING) for each in store.iterdir()):
        raise CommandError(f"{store} is not empty: specify an empty or missing folder", EXIT_USAGE)
    store.mkdir(parents=True, exist_ok=True)
    folder = store / CLONING
    opened = open_source(source, str(folder), token_file)
    try:
        Backup(opened, str(folder), program=__version__, now_ms=now_ms, progress=shown).run()
    finally:
        opened.close()
    work = Restore(str(folder), str(store), new_store_id=True, move=True, left_out=left_out)
    work.lay_out()
    shutil.rmtree(folder)
    return work


def _finish(work: Restore, store: Path, choice: OverduePolicy | None, yes: bool) -> Reopened:
    # The broker's modules take a while to load, and `--help` does not need them.
    from delaymq.cli.commands.store.reopening import pause_deliveries, reopen

    pause_deliveries(store)
    work.finish()

    def may_drop(count: int) -> None:
        confirm(f"Permanently drop {counted(count, 'overdue delayed message')}?", yes)

    try:
        return reopen(store, work.manifest, work.options(), choice, may_drop)
    except CommandError as error:
        raise CommandError(
            f"{error}; the store is restored with deliveries paused: start a broker on it and use"
            " `delaymq delay resume`",
            error.exit_code,
        ) from error


def _report(
    work: Restore, store: Path, done: Reopened, choice: OverduePolicy, as_json: bool, *, is_clone: bool = False
) -> None:
    manifest = work.manifest
    if as_json:
        print_json(
            {
                "store": str(store),
                "storeId": work.store_id,
                "startOffset": manifest.start_offset,
                "endOffset": manifest.end_offset,
                "records": done.records,
                "rebuildMs": done.rebuild_ms,
                "pending": done.pending,
                "overdue": done.overdue,
                "dropped": done.dropped,
                "openTransactions": done.open_transactions,
                "overdueChoice": choice.what,
                "messageDelayLevel": manifest.message_delay_level,
                "brokerName": manifest.broker_name,
            }
        )
        return
    out = console()
    lines = [
        f"{store} contains everything up to offset {manifest.end_offset}: {done.records} records,"
        f" {done.pending} pending delayed messages"
    ]
    if done.overdue:
        lines.append(f"{done.overdue} were overdue: {_fate(choice, done)}")
    if done.open_transactions:
        lines.append(
            f"{done.open_transactions} transactions are open: the broker checks them with their producers after it"
            " starts"
        )
    if done.paused:
        lines.append("deliveries are paused: start the broker, then `delaymq delay resume --overdue deliver`")
    if is_clone:
        lines.append(
            f"start its broker with a different brokerName (the original's is {manifest.broker_name or 'in its file'})"
        )
    if manifest.message_delay_level is not None:
        lines.append(f"messageDelayLevel of the original: {manifest.message_delay_level}")
    for line in lines:
        out.print(line, soft_wrap=True)


def _fate(choice: OverduePolicy, done: Reopened) -> str:
    return {
        "deliver": "the broker delivers them as soon as it starts",
        "spread": f"the broker delivers them over {choice.over_ms / 1000:g} s from its start",
        "drop": f"{done.dropped} were dropped, each recorded by a mark in the commit log"
        + ("" if done.dropped == done.overdue else "; the broker drops the others: is the disk full?"),
        "pause": "they stay pending until deliveries are resumed",
    }[choice.what]
