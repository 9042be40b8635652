"""Options that many commands share."""

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
        "--namesrv", metavar="HOST:PORT", help="NameServers, joined by ; (DELAYMQ_NAMESRV, default 127.0.0.1:9876)."
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
    typer.Option("--token-file", metavar="FILE", help="Holds the broker's httpToken (or set DELAYMQ_HTTP_TOKEN)."),
]
ContextName = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="Addresses from `delaymq context` (DELAYMQ_CONTEXT)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for programs: an object, or one a line for lists.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where nobody can be asked.")]


def confirm(question: str, yes: bool) -> None:
    """Asks before something cannot be undone; CommandError when nobody can be asked or the answer is no."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(f"{question} Nobody can be asked here: add --yes to do it", EXIT_USAGE)
    print(f"{visible(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    with interruptible():
        answer = sys.stdin.readline()
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was done")
