"""`delaymq completion`: the shell completes commands and options."""

from __future__ import annotations

import importlib
from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import install_callback, show_callback

from delaymq.cli.errors import EXIT_USAGE, CommandError


class Shell(StrEnum):
    """Shells that can be taught."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


OfShell = Annotated[Shell | None, typer.Option("--shell", help="Default: the shell that this runs in.")]


def install(context: typer.Context, shell: OfShell = None) -> None:
    """Teach the shell to complete `delaymq`, from its next start on; changes its start file."""
    install_callback(context, context.command.params[0], _chosen(shell))


def show(context: typer.Context, shell: OfShell = None) -> None:
    """Print what teaches the shell, to be put where it belongs by hand."""
    show_callback(context, context.command.params[0], _chosen(shell))


def _chosen(shell: Shell | None) -> str:
    if shell is not None:
        return shell.value
    try:
        detected = str(importlib.import_module("shellingham").detect_shell()[0])
    except (ImportError, RuntimeError):  # not there, or it cannot tell
        detected = ""
    if detected not in {each.value for each in Shell}:
        raise CommandError("which shell this is cannot be told: name it with --shell bash|zsh|fish", EXIT_USAGE)
    return detected
