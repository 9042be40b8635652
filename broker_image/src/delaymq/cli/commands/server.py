"""Placeholders for the servers in typer's list of commands; servers/serve.py starts them."""

from __future__ import annotations

import typer

from delaymq.cli.servers.serve import serve


def standalone(context: typer.Context) -> None:
    """Run a NameServer and a broker in one process."""
    raise typer.Exit(serve("standalone", context.args))


def broker(context: typer.Context) -> None:
    """Run a broker."""
    raise typer.Exit(serve("broker", context.args))


def namesrv(context: typer.Context) -> None:
    """Run a NameServer."""
    raise typer.Exit(serve("namesrv", context.args))
