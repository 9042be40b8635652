"""`delaymq audit`: changes and refused attempts, from running brokers or from files."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from delaymq.api_types.audit import AuditLine
from delaymq.audit.files import file_numbers
from delaymq.audit.reading import Filter, read_page
from delaymq.cli.errors import EXIT_NOT_DONE, EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson, ContextName, HttpAddress, NameServers, TokenFile
from delaymq.cli.target.contexts import target
from delaymq.cli.target.http_api import HttpApi
from delaymq.cli.terminal.output import console, counted, end_if_missing, explain_bad_answers, print_json, warn
from delaymq.cli.terminal.tables import table
from delaymq.cli.terminal.times import format_time, parse_time

MAX_LISTED: Final = 10_000
DEFAULT_LISTED: Final = 100
_PAGE: Final = 200
_MAX_PAGES: Final = 100_000
_IN_STORE: Final = ("delaymq/audit", "delaymq/namesrv-audit", "delaymq/audit/supervisor")
"""Folders of audit logs in a store."""
_SUBFOLDERS: Final = ("", "namesrv", "supervisor")
"""The same in a folder of `auditLogPath`."""


class Result(StrEnum):
    """Results of requests."""

    DONE = "done"
    UNCONFIRMED = "unconfirmed"
    REFUSED = "refused"


def audit(
    account: Annotated[str, typer.Option("--account", metavar="KEY", help="Only requests of this account.")] = "",
    action: Annotated[
        str,
        typer.Option("--action", metavar="ACTION", help="Only this action: topic.delete; topic for all of topics."),
    ] = "",
    name: Annotated[
        str, typer.Option("--target", metavar="TEXT", help="Only changes of something whose name has this text.")
    ] = "",
    result: Annotated[Result | None, typer.Option("--result", help="Only requests with this result.")] = None,
    peer: Annotated[
        str, typer.Option("--peer", metavar="ADDRESS", help="Only clients whose address begins with this text.")
    ] = "",
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="At or after this time: ISO, '2h ago', ms since 1970.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Before this time.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=MAX_LISTED, help="Maximum number of lines, the newest ones.")
    ] = DEFAULT_LISTED,
    files: Annotated[
        Path | None,
        typer.Option("--files", metavar="FOLDER", help="Read the files in a store, or in a folder of audit files."),
    ] = None,
    namesrv: NameServers = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    context: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Show who changed what on brokers and NameServers.

    Prints the newest lines of the audit log, in the order of their times. Asks all brokers of the cluster, or only the
    one at --http. With --files, no server is needed; this is also the way to read the audit log of a NameServer.
    Examples: delaymq audit --action topic --from '2h ago'; delaymq audit --result refused --json; delaymq audit --files
    /data/store
    """
    wanted = Filter(
        account=account,
        action=action,
        target=name,
        result=result.value if result is not None else "",
        peer=peer,
        from_ms=None if since is None else parse_time(since),
        until_ms=None if until is None else parse_time(until),
    )
    missing: list[str] = []
    unreadable = 0
    if files is not None:
        rows, unreadable = _from_files(files, wanted, limit)
    else:
        from delaymq.cli.target.every_broker import ask_every_broker

        where = target(namesrv, http, token_file, context)
        found = ask_every_broker(where, http is not None, lambda api: _from_broker(api, wanted, limit))
        rows = [row for each, _ in found.by_broker.values() for row in each]
        unreadable = sum(number for _, number in found.by_broker.values())
        missing = found.missing
    rows.sort(key=lambda row: row.time_ms)
    for row in rows[-limit:] if as_json else ():
        print_json(msgspec.to_builtins(row))
    if not as_json:
        _show(rows[-limit:])
    if unreadable:
        warn(f"{counted(unreadable, 'line')} of the audit log cannot be read")
    end_if_missing(missing)


def _from_files(folder: Path, wanted: Filter, limit: int) -> tuple[list[AuditLine], int]:
    lines: list[AuditLine] = []
    unreadable = 0
    try:
        folders = {folder / part for part in (*_SUBFOLDERS, *_IN_STORE)}
        with_files = sorted(each for each in folders if file_numbers(each))
        for each in with_files:
            page = read_page(each, wanted, limit)
            lines += page.lines
            unreadable += page.unreadable
    except OSError as error:
        raise CommandError(f"cannot read {error.filename}: {error.strerror}", EXIT_NOT_DONE) from error
    if not with_files:
        text = f"{folder} has no audit log: name a store, or a folder with files such as audit-00000001.jsonl"
        raise CommandError(text, EXIT_USAGE)
    return lines, unreadable


def _from_broker(api: HttpApi, wanted: Filter, limit: int) -> tuple[list[AuditLine], int]:
    """Return the newest lines of a broker, and the number of those that cannot be read."""
    filters: dict[str, Any] = {key: value or None for key, value in asdict(wanted).items()}
    filters |= {"fromMs": filters.pop("from_ms"), "untilMs": filters.pop("until_ms")}
    lines: list[AuditLine] = []
    unreadable, before = 0, None
    with explain_bad_answers(api.url, "the audit log"):
        for _ in range(_MAX_PAGES):
            page = api.get("audit", **filters, before=before, limit=min(limit - len(lines), _PAGE))
            if not page["enabled"]:
                raise CommandError(f"{api.url} writes no audit log (auditLogEnable, auditLogPath)", EXIT_NOT_DONE)
            lines += _converted(page["lines"])
            unreadable += page["unreadable"]
            if len(lines) >= limit or page["next"] in (None, before):
                break
            before = page["next"]
    return lines, unreadable


def _converted(rows: object) -> list[AuditLine]:
    try:
        return msgspec.convert(rows, list[AuditLine])
    except msgspec.ValidationError as error:
        raise TypeError(str(error)) from error


def _show(rows: list[AuditLine]) -> None:
    out = console()
    if not rows:
        out.print("no such lines in the audit log")
        return
    shown = [
        (
            format_time(row.time_ms),
            row.server,
            _account(row),
            row.peer,
            row.action,
            " ".join(f"{kind}={each}" for kind, each in row.target.items()),
            _result(row),
        )
        for row in rows
    ]
    out.print(table(("time", "server", "account", "peer", "action", "target", "result"), shown, left=7))


def _account(row: AuditLine) -> str:
    if not row.account:
        return "(token)" if row.verified else ""
    return row.account if row.verified else f"{row.account} (unverified)"


def _result(row: AuditLine) -> str:
    text = row.result if row.result == "done" else f"{row.result} {row.status}"
    text += f": {row.remark}" if row.remark else ""
    text += f" ({row.suppressed} more suppressed)" if row.suppressed else ""
    return text + (f" ({row.dropped} lines before lost)" if row.dropped else "")
