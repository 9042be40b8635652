"""Options shared by many commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.terminal.prompt import interruptible
from delaymq.cli.terminal.sanitize import visible

NameServers = Annotated[
    str | None,
    typer.Option(
        "--namesrv", metavar="HOST:PORT", help="NameServers, separated by ; (DELAYMQ_NAMESRV, default 127.0.0.1:9876)."
    ),
]
HttpAddress = Annotated[
    str | None,
    typer.Option(
        "--http", metavar="URL", help="The broker's HTTP address (DELAYMQ_HTTP, default http://127.0.0.1:8080)."
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option("--token-file", metavar="FILE", help="File with the broker's httpToken (or set DELAYMQ_HTTP_TOKEN)."),
]
ContextName = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="Context that supplies the addresses (DELAYMQ_CONTEXT)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: one object, or one object per line for lists.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation; required without a terminal.")]


def confirm(question: str, yes: bool) -> None:
    """Ask before an irreversible action; raise CommandError without a terminal or if the answer is no."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(f"{question} Confirmation requires a terminal: add --yes to proceed.", EXIT_USAGE)
    print(f"{visible(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    with interruptible():
        answer = sys.stdin.readline()
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandError("cancelled: nothing was changed")
