"""Generator of the reference in docs/operations/commands.md; `make docs` runs it."""

from __future__ import annotations

import re
import sys
import textwrap
from argparse import SUPPRESS
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer
from typer.main import get_command

from delaymq.cli.app import COMMANDS
from delaymq.cli.lazy import Group, load
from delaymq.cli.options import AsJson, ContextName, HttpAddress, NameServers, TokenFile, Yes
from delaymq.cli.servers.serve import ABOUT, parser

_BLOCK = re.compile(r"(<!-- (\w+): written by `make docs` -->\n\n).*?(\n<!-- end -->)", re.DOTALL)
_Row = tuple[str, str]
WIDTH: Final = 100
"""Width of prose, in columns."""


def with_commands(text: str) -> str:
    """Return the page with its generated blocks renewed; text outside the marked blocks is kept."""
    parts = {"common": _table(common_options().values()), "commands": "\n".join(_sections())}
    return _BLOCK.sub(lambda found: found[1] + parts[found[2]] + found[3], text)


def commands() -> Iterator[tuple[str, Any]]:
    """Yield all commands that typer runs: the name, such as `topic list`, and typer's command."""
    for name, entry in COMMANDS.items():
        if isinstance(entry, Group):
            yield from ((f"{name} {inner}", load(inner, leaf)) for inner, leaf in entry.commands.items())
        elif name not in ABOUT:
            yield name, load(name, entry)


def module_of(name: str) -> str:
    """Return the module of a command, such as `delaymq.cli.commands.group.reset` for `group reset`."""
    if name in ABOUT:
        return parser.__module__
    first, _, inner = name.partition(" ")
    entry = COMMANDS[first]
    leaf = entry.commands[inner] if isinstance(entry, Group) else entry
    return f"delaymq.cli.commands.{leaf.target.partition(':')[0]}"


def options_of(command: Any) -> dict[str, _Row]:
    """Return the command's arguments and options by longest name, each with its syntax and its help text."""
    context = typer.Context(command)
    found = {}
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None:
            found[max(parameter.opts, key=len)] = record
    return found


def common_options() -> dict[str, _Row]:
    """Return the options that many commands share."""

    def any_command(
        namesrv: NameServers = None,
        http: HttpAddress = None,
        token_file: TokenFile = None,
        context: ContextName = None,
        as_json: AsJson = False,
        yes: Yes = False,
    ) -> None:
        """Declare all of them."""

    made = typer.Typer(add_completion=False, rich_markup_mode=None)
    made.command()(any_command)
    return options_of(get_command(made))


def _sections() -> Iterator[str]:
    yield from (_server(name) for name in ABOUT)
    common = common_options()
    for name, command in commands():
        options = options_of(command)
        own = [row for option, row in options.items() if common.get(option) != row]
        shared = [f"`{option}`" for option, row in options.items() if common.get(option) == row]
        help_text = _help(command.help or "")
        also = _wrapped(f"{'Also' if own else 'Options:'} {', '.join(shared)}.") + "\n" if shared else ""
        text = f"{help_text}\n\n{_module_link(name)}"
        yield f"### delaymq {name}\n\n{text}\n\n" + _table(own) + ("\n" if own and also else "") + also


def _help(text: str) -> str:
    """Return a command's help as Markdown, with its examples as lines to copy."""
    told, _, examples = " ".join(text.split()).replace("Example: ", "Examples: ").partition("Examples: ")
    lines = "\n".join(examples.split("; "))
    return _wrapped(told.strip()) + (f"\n\n```sh\n{lines}\n```" if examples else "")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _server(name: str) -> str:
    # argparse has no public way to list a parser's arguments.
    actions = [action for action in parser(name)._actions if action.dest != "help" and action.help != SUPPRESS]
    rows = [
        (f"{', '.join(action.option_strings)} {action.metavar or ''}".strip(), str(action.help)) for action in actions
    ]
    return f"### delaymq {name}\n\n{_wrapped(ABOUT[name])}\n\n{_module_link(name)}\n\n" + _table(rows)


def _module_link(name: str) -> str:
    module = module_of(name).replace(".", "/")
    return f"Code: [`{module.removeprefix('delaymq/')}`](../../broker_image/src/{module}.py)"


def _table(rows: Any) -> str:
    lines = [f"| `{_cell(what)}` | {_cell(how)} |\n" for what, how in rows]
    return "".join(["| | |\n|---|---|\n", *lines]) if lines else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    _file = Path(sys.argv[1])
    _file.write_text(with_commands(_file.read_text()))
