"""`delaymq store verify` and `delaymq store inspect`: read the files of a store without a broker."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from delaymq.cli.commands.store.common import explain_errors, progress
from delaymq.cli.errors import CommandError
from delaymq.cli.terminal.output import console, print_json
from delaymq.cli.terminal.tables import table
from delaymq.clock import now_ms
from delaymq.message.errors import LevelTableError, NewerFormError
from delaymq.message.levels import DEFAULT_LEVELS, DelayLevels
from delaymq.store.backup.check import check_backup
from delaymq.store.backup.manifest import holds_backup
from delaymq.store.tools.inspect import Inspection
from delaymq.store.tools.inspect import inspect as inspect_store
from delaymq.store.tools.rocketmq_compat import Prospect, prospect_for_rocketmq
from delaymq.store.tools.verify import DAMAGED, NOT_A_STORE, SOUND, Finding, Verification
from delaymq.store.tools.verify import verify as verify_store

EXIT_USAGE = 2
SHOWN_FINDINGS = 50
"""Findings shown of each kind; --json shows all."""

StorePath = Annotated[Path, typer.Argument(metavar="PATH", help="The store's directory.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def verify(
    path: StorePath,
    for_rocketmq: Annotated[
        bool, typer.Option("--for-rocketmq", help="Report what RocketMQ's broker would do with the delayed messages.")
    ] = False,
    levels: Annotated[
        str, typer.Option("--levels", metavar="TABLE", help="The messageDelayLevel of RocketMQ's broker.")
    ] = DEFAULT_LEVELS,
    as_json: AsJson = False,
) -> None:
    """Verify a store or a backup; exits with code 0 if sound or rebuildable, 1 if damaged, 2 if not a store."""
    try:
        table_of_levels = DelayLevels.parse(levels)
    except LevelTableError as error:
        raise CommandError(f"--levels: {error}", EXIT_USAGE) from error
    if holds_backup(str(path)):
        raise typer.Exit(_verify_backup(path, as_json))
    prospect: Prospect | None = None
    try:
        result = verify_store(path)
        if for_rocketmq and result.exit_code != NOT_A_STORE:
            prospect = prospect_for_rocketmq(path, table_of_levels, now_ms())
    except NewerFormError as error:
        raise CommandError(f"{path}: {error}", NOT_A_STORE) from error
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}", NOT_A_STORE) from error
    if as_json:
        data = result.as_json()
        print_json(data if prospect is None else data | {"for_rocketmq": prospect.as_json()})
    else:
        out = console()
        _show_verification(out, result)
        if prospect is not None:
            _show_prospect(out, prospect)
    raise typer.Exit(result.exit_code)


def inspect(path: StorePath, as_json: AsJson = False) -> None:
    """Show the contents of a store: records by topic, kind and segment."""
    try:
        result = inspect_store(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CommandError(f"{path} is not a store: it contains no commitlog folder", NOT_A_STORE) from error
    except NewerFormError as error:
        raise CommandError(f"{path}: {error}", NOT_A_STORE) from error
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}", NOT_A_STORE) from error
    if as_json:
        print_json(result.as_json())
    else:
        _show_inspection(console(), result)


def _verify_backup(path: Path, as_json: bool) -> int:
    with explain_errors(str(path), "then try again"), progress("verify", quiet=as_json) as shown:
        result = check_backup(str(path), shown)
    if as_json:
        print_json(result.as_json())
        return result.exit_code
    out = console()
    if result.exit_code == NOT_A_STORE:
        out.print(result.damage[0].detail)
        return result.exit_code
    _show_findings(out, "damage", result.damage)
    verdict = "DAMAGED" if result.damage else "sound"
    out.print(
        f"{verdict}: backup from offset {result.start_offset} to {result.end_offset}, {result.files} files,"
        f" {result.checked_bytes} bytes",
    )
    return result.exit_code


def _show_verification(out: Console, result: Verification) -> None:
    if result.exit_code == NOT_A_STORE:
        out.print(result.damage[0].detail)
        return
    _show_findings(out, "damage", result.damage)
    _show_findings(out, "will be rebuilt when a broker opens the store", result.rebuildable)
    verdicts = {
        SOUND: "sound, apart from files that will be rebuilt" if result.rebuildable else "sound",
        DAMAGED: "DAMAGED",
    }
    out.print(
        f"{verdicts[result.exit_code]}: {result.records} records from {result.log_begin} to {result.log_end},"
        f" {result.queue_entries} queue entries, {result.index_entries} index entries",
    )


def _show_findings(out: Console, title: str, findings: list[Finding]) -> None:
    if not findings:
        return
    out.print(f"{title}:")
    for finding in findings[:SHOWN_FINDINGS]:
        out.print(f"  {finding.what}: {finding.file} at {finding.offset}: {finding.detail}")
    if len(findings) > SHOWN_FINDINGS:
        out.print(f"  … and {len(findings) - SHOWN_FINDINGS} more, see --json")


def _show_prospect(out: Console, prospect: Prospect) -> None:
    parts = (
        ("would be delivered again", prospect.repeated),
        ("would be delivered immediately, before they are due", prospect.early),
        ("would never be delivered", prospect.never),
        ("would be delivered late, behind messages that are due later", prospect.late),
    )
    timed = (
        ("pending timed messages would never be delivered by RocketMQ 4.9, and on time by 5", prospect.timed_pending),
        ("ended timed messages would be delivered again by RocketMQ 5", prospect.timed_ended),
    )
    if not any(messages for _, messages in parts) and not any(messages for _, messages in timed):
        out.print("RocketMQ's broker would deliver every pending message once and on time")
    for what, messages in parts:
        if messages:
            out.print(f"{len(messages)} {what} by RocketMQ's broker:")
        for each in messages[:SHOWN_FINDINGS]:
            due = _time(each.due_ms)
            if each.waits_until_ms is not None:
                due += f", delivered by {_time(each.waits_until_ms)}"
            out.print(
                f"  level {each.level}, queue offset {each.queue_offset},"
                f" physical offset {each.physical_offset}, due {due}"
            )
        if len(messages) > SHOWN_FINDINGS:
            out.print(f"  … and {len(messages) - SHOWN_FINDINGS} more, see --json")
    for what, timed_messages in timed:
        if timed_messages:
            out.print(f"{len(timed_messages)} {what}:")
        for message in timed_messages[:SHOWN_FINDINGS]:
            ended = "" if message.ended is None else f", {message.ended}"
            out.print(
                f"  queue offset {message.queue_offset}, physical offset {message.physical_offset},"
                f" due {_time(message.due_ms)}{ended}"
            )
        if len(timed_messages) > SHOWN_FINDINGS:
            out.print(f"  … and {len(timed_messages) - SHOWN_FINDINGS} more, see --json")


def _show_inspection(out: Console, result: Inspection) -> None:
    kinds = list(result.kinds)
    if kinds:
        rows = [(topic, *_counts(kinds, by_kind)) for topic, by_kind in result.topics.items()]
        out.print(table(("topic", *kinds), rows))
        segments = [
            (
                each.file,
                str(each.records),
                str(each.record_bytes),
                _time(each.first_stored_ms),
                _time(each.last_stored_ms),
            )
            for each in result.segments
        ]
        out.print(table(("segment", "records", "bytes", "first stored", "last stored"), segments))
    out.print(
        f"{result.records} records from {result.first_offset} to {result.end_offset} in {len(result.segments)}"
        f" segments and {result.queues} queues",
    )
    if any(result.timed.values()):
        out.print(f"timed messages: {', '.join(f'{count} {state}' for state, count in result.timed.items())}")
    if result.open_or_killed:
        out.print("a broker has the store open or was killed: counts may be slightly out of date")
    if result.damaged_places:
        out.print(f"{result.damaged_places} damaged places: run `delaymq store verify {result.path}`")


def _counts(kinds: Iterable[str], by_kind: dict[str, int]) -> list[str]:
    return [str(by_kind[kind]) if kind in by_kind else "" for kind in kinds]


def _time(time_ms: int | None) -> str:
    if time_ms is None:
        return ""
    try:
        return datetime.fromtimestamp(time_ms / 1000).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return f"{time_ms} ms since 1970"  # beyond the calendar: damage, or a record of another program
