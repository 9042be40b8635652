"""`delaymq config`: effective settings and their origins, checks of configuration files, and the meaning of keys."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.options import AsJson
from delaymq.cli.servers.serve import parser
from delaymq.cli.servers.settings import settings_of
from delaymq.cli.terminal.sanitize import on_one_line, visible
from delaymq.config import STANDALONE_DEFAULTS, BrokerConfig, ConfigError, NamesrvConfig, keys_of, resolve
from delaymq.config.build import Resolved, to_text, unknown_key
from delaymq.config.describe import STANDALONE_DEFAULT, describe
from delaymq.config.known_keys import REFUSED, WITHOUT_MEANING
from delaymq.config.layers import DEFAULT, Config, file_layer, only, variable_of
from delaymq.config.page import limits_of

SERVERS: Final = ("standalone", "broker", "namesrv")
_NOT_CHANGED: Final = (DEFAULT, STANDALONE_DEFAULT)
MAX_COLUMN: Final = 40
"""Longer cells, such as a delay level table, do not widen their column."""
Row = Mapping[str, Any]


def print_settings(context: typer.Context) -> None:
    """Show every setting of a server: its value, its origin, and whether a change needs a restart.

    Takes the server's name and options; with --http URL, shows the settings of a running broker instead. --changed
    omits defaults, and --json prints one JSON object.

    Example: delaymq config print standalone -c broker.conf --changed
    """
    words = list(context.args)
    which = argparse.ArgumentParser(prog="delaymq config print", add_help=False)
    which.add_argument("--http")
    if which.parse_known_args(words)[0].http is not None:
        _print_running(words)
        return
    command = words.pop(0) if words and not words[0].startswith("-") else "standalone"
    if command not in SERVERS:
        raise CommandError(f"{command[:64]!r} is not a server: use one of {', '.join(SERVERS)}", EXIT_USAGE)
    made = parser(command)
    made.prog = f"delaymq config print {command}"
    made.description = (
        "Show the settings that this server would use. Pass the same arguments as you would to the server."
    )
    _printing(made)
    made.add_argument("--http", metavar="URL", help="show the settings of the running broker at this address instead")
    options = made.parse_args(words)
    try:
        found = settings_of(command, options, os.environ)
    except ConfigError as error:
        raise CommandError("\ndelaymq: ".join(error.problems), EXIT_USAGE) from error
    parts: dict[str, list[Row]] = {}
    if found.broker is not None:
        parts["broker"] = _rows(found.broker)
    if found.namesrv is not None:
        parts["namesrv"] = _rows(found.namesrv)
    _show(parts, options, found.notes)


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A configuration file (broker.conf).")],
    namesrv: Annotated[bool, typer.Option("--namesrv", help="FILE is the configuration of a NameServer.")] = False,
    as_json: AsJson = False,
) -> None:
    """Report all errors in a configuration file, with line numbers; exits with code 2 if there are any.

    Example: delaymq config check broker.conf
    """
    problems: list[str] = []
    ignored: dict[str, str] = {}
    notes: list[str] = []
    try:
        layer, notes = file_layer(file)
        if namesrv:
            ignored = dict(resolve(NamesrvConfig, layer).ignored)
        else:
            ignored = _check_broker(layer)
    except ConfigError as error:
        problems = list(error.problems)
    if as_json:
        from delaymq.cli.terminal.output import print_json

        rows = [{"key": key, "at": at, "why": _why_ignored(key)} for key, at in ignored.items()]
        print_json({"file": str(file), "problems": problems, "notes": notes, "leftAside": rows})
    else:
        for note in notes:
            print(visible(note))
        for key, at in ignored.items():
            print(visible(f"{at}: {key} is ignored: {_why_ignored(key)}"))
    if problems:
        raise CommandError("\ndelaymq: ".join(problems), EXIT_USAGE)
    if not as_json:
        print(f"{file}: no errors; ignored keys: {len(ignored)}")


def keys(
    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="The key to explain; default: list all keys.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List all settings, or explain one: meaning, range, default, and whether a change needs a restart.

    Example: delaymq config keys maxMessageSize
    """
    explained = [_explained(*each) for each in _all_keys() if key is None or each[1] == key]
    if key is not None and not explained:
        _explain_other(key, as_json)
        return
    if as_json:
        from delaymq.cli.terminal.output import print_json

        for row in explained:
            print_json(row)
    elif key is None:
        _print_table(
            ("KEY", "SERVER", "DEFAULT", "CHANGE", "DESCRIPTION"),
            [(row["key"], row["server"], row["default"], row["change"], row["about"]) for row in explained],
        )
    else:
        for row in explained:
            print(_explanation(row))


def _check_broker(layer: Mapping[str, Any]) -> dict[str, str]:
    """Check a file as `standalone` reads it, including the NameServer's keys."""
    namesrv_only = keys_of(NamesrvConfig).keys() - keys_of(BrokerConfig).keys()
    problems: list[str] = []
    ignored: dict[str, str] = {}
    try:
        own = {key: given for key, given in layer.items() if key not in namesrv_only}
        ignored = dict(resolve(BrokerConfig, own).ignored)
    except ConfigError as error:
        problems += error.problems
    try:
        resolve(NamesrvConfig, only(layer, namesrv_only))
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(*problems)
    return ignored


def _print_running(words: Sequence[str]) -> None:
    from delaymq.cli.target.contexts import target
    from delaymq.cli.target.http_api import HttpApi
    from delaymq.cli.terminal.output import explain_bad_answers

    made = argparse.ArgumentParser(prog="delaymq config print", allow_abbrev=False)
    made.add_argument("server", nargs="?", choices=["broker", "standalone"])
    made.add_argument("--http", metavar="URL")
    made.add_argument("--token-file", metavar="FILE")
    made.add_argument("--context", metavar="NAME")
    _printing(made)
    options = made.parse_args(words)
    api = HttpApi(target(http=options.http, token_file=options.token_file, context=options.context))
    answer = api.get("config")
    with explain_bad_answers(api.url, "settings"):
        rows = [{**row, "origin": str(row["origin"]), "key": str(row["key"])} for row in answer["settings"]]
        _show({"broker": rows}, options, [])


def _printing(made: argparse.ArgumentParser) -> None:
    made.add_argument("--json", action="store_true", help="print one JSON object")
    made.add_argument("--changed", action="store_true", help="only settings that differ from their defaults")


def _rows(resolved: Resolved[Config]) -> list[Row]:
    return [dict(row) for row in describe(resolved.config, resolved.origins)]


def _show(parts: Mapping[str, Sequence[Row]], options: argparse.Namespace, notes: Sequence[str]) -> None:
    if options.changed:
        parts = {
            name: [row for row in rows if row["origin"] not in _NOT_CHANGED or row["waiting"] is not None]
            for name, rows in parts.items()
        }
    if options.json:
        from delaymq.cli.terminal.output import print_json

        print_json({**parts, "notes": list(notes)})
        return
    for name, rows in parts.items():
        if len(parts) > 1:
            print({"broker": "Broker", "namesrv": "NameServer"}[name])
        _print_table(("KEY", "VALUE", "CHANGE", "ORIGIN"), [_cells(row) for row in rows])
    for note in notes:
        print(visible(f"note: {note}"))


def _cells(row: Row) -> tuple[str, str, str, str]:
    value = row["value"]
    if value is None:
        value = "(set)" if row["isSet"] else ""
    if row["waiting"] is not None:
        value += f" → {row['waiting']} after a restart"
    return (row["key"], value, row["change"], row["origin"])


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print plain columns for reading and grep; long values are not truncated but shift the following columns."""
    rows = [[on_one_line(cell) for cell in row] for row in rows]
    widths = [
        max(len(row[index]) for row in [columns, *rows] if len(row[index]) <= MAX_COLUMN)
        for index in range(len(columns))
    ]
    for row in [columns, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _all_keys() -> list[tuple[str, str, Any]]:
    return [
        (server, key, item)
        for server, kind in (("broker", BrokerConfig), ("namesrv", NamesrvConfig))
        for key, item in keys_of(kind).items()  # type: ignore[type-var]
    ]


def _explained(server: str, key: str, item: Any) -> dict[str, str]:
    return {
        "key": key,
        "server": server,
        "about": item.metadata["about"],
        "range": limits_of(item),
        "default": to_text(item.default),
        "standaloneDefault": STANDALONE_DEFAULTS.get(key, "") if server == "broker" else "",
        "change": "hot" if item.metadata["hot"] else "restart",
        "variable": variable_of(item.name),
        "known": "DelayMQ" if item.metadata["ours"] else "RocketMQ",
    }


def _explanation(row: Mapping[str, str]) -> str:
    server = "broker" if row["server"] == "broker" else "NameServer"
    changes = "immediately" if row["change"] == "hot" else "after a restart"
    lines = [f"{row['key']} ({server}): {row['about']}"]
    lines += [f"  default   {row['default'] or '(empty)'}"]
    if row["standaloneDefault"]:
        lines[-1] += f" (standalone: {row['standaloneDefault']})"
    lines += [f"  range     {row['range']}"] if row["range"] else []
    lines += [f"  changes   {changes}", f"  variable  {row['variable']}", f"  known to  {row['known']}"]
    return "\n".join(lines)


def _explain_other(key: str, as_json: bool) -> None:
    if key in WITHOUT_MEANING:
        text, kind = f"has no meaning here and is ignored: {WITHOUT_MEANING[key]}", "withoutMeaning"
    elif key in REFUSED:
        harmless = ", ".join(sorted(filter(None, REFUSED[key].harmless)))
        accepted = f" (accepted: {harmless})" if harmless else ""
        text, kind = f"is rejected{accepted}: {REFUSED[key].why}", "refused"
    else:
        known = keys_of(BrokerConfig).keys() | keys_of(NamesrvConfig).keys()
        raise CommandError(unknown_key(key, known), EXIT_USAGE)
    if as_json:
        from delaymq.cli.terminal.output import print_json

        print_json({"key": key, "kind": kind, "about": text})
    else:
        print(f"{key} {text}")


def _why_ignored(key: str) -> str:
    other = "brokers" if key in keys_of(BrokerConfig) else "NameServers"
    return WITHOUT_MEANING.get(key, f"only {other} have this key")
