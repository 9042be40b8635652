"""Groups of commands that load a command's module only when it is run or its help is requested.

`delaymq --help` lists forty commands; loading all of them takes half a second, loading one a tenth of a second.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

HELP: Final = {"help_option_names": ["-h", "--help"]}
_PREFIX: Final = "Value error, "
"""Prefix of pydantic, with which newer versions of typer check values, before the text of an error."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A command; `target` is `module:function` below `delaymq.cli.commands`."""

    target: str
    text: str = ""
    """Its line in the list of commands; empty: the first sentence of its function, whose module is then loaded."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of typer's `command`: `context_settings`, `add_help_option`."""


@dataclass(frozen=True, slots=True)
class Group:
    """Related commands by name."""

    text: str
    commands: Mapping[str, Leaf]


Entry = Leaf | Group


def group_command(name: str, text: str, entries: Mapping[str, Entry], callback: Callable[..., None] | None) -> Any:
    """Return a group as typer runs it; `callback` declares the group's own options."""
    lazy = type("LazyGroup", (_LazyGroup,), {"entries": entries})
    # Commands within the group inherit the names.
    made = _typer(name=name, help=text, cls=lazy, no_args_is_help=True, context_settings=HELP)
    made.callback()(callback or _no_options)
    return get_command(made)


def _no_options() -> None:
    """Declare no options."""


def _typer(**settings: Any) -> typer.Typer:
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, **settings)


def load(name: str, entry: Entry) -> TyperCommand | TyperGroup:
    """Import the command's module and return the command as typer runs it."""
    if isinstance(entry, Group):
        return cast(TyperGroup, group_command(name, entry.text, entry.commands, None))
    module_name, _, function_name = entry.target.partition(":")
    function = getattr(importlib.import_module(f"delaymq.cli.commands.{module_name}"), function_name)
    made = _typer()
    made.command(name, cls=_Command, **entry.settings)(function)
    return cast(TyperCommand, get_command(made))


class _Command(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix(_PREFIX)
            raise


class _LazyGroup(TyperGroup):
    entries: Mapping[str, Entry] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Placeholders, whose names are used to suggest corrections, and whose texts are listed by the help.
        self.commands = {name: TyperCommand(name, help=entry.text) for name, entry in self.entries.items()}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = self.entries.get(cmd_name)
        return None if entry is None else load(cmd_name, entry)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = formatter.width - 6 - max(map(len, self.entries))
        rows = []
        for name, entry in self.entries.items():
            known = self.commands[name] if entry.text else self.get_command(ctx, name)
            rows.append((name, known.get_short_help_str(width)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
