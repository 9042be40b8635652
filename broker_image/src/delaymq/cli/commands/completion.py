"""`delaymq completion`: shell completion of commands and options."""

from __future__ import annotations

import importlib
from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import install_callback, show_callback

from delaymq.cli.errors import EXIT_USAGE, CommandError


class Shell(StrEnum):
    """Supported shells."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


OfShell = Annotated[Shell | None, typer.Option("--shell", help="Default: the current shell.")]


def install(context: typer.Context, shell: OfShell = None) -> None:
    """Install completion of `delaymq` in the shell's startup file; it takes effect in new shells."""
    install_callback(context, context.command.params[0], _chosen(shell))


def show(context: typer.Context, shell: OfShell = None) -> None:
    """Print the completion script, for manual installation."""
    show_callback(context, context.command.params[0], _chosen(shell))


def _chosen(shell: Shell | None) -> str:
    if shell is not None:
        return shell.value
    try:
        detected = str(importlib.import_module("shellingham").detect_shell()[0])
    except (ImportError, RuntimeError):  # not installed, or the shell is unknown
        detected = ""
    if detected not in {each.value for each in Shell}:
        raise CommandError("cannot detect the shell: specify it with --shell bash|zsh|fish|powershell", EXIT_USAGE)
    return detected
