"""`delaymq demo`: options, folder, and one run of the scenario."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from delaymq.cli.commands.demo.broker_process import BrokerProcess
from delaymq.cli.commands.demo.scenario import play
from delaymq.cli.commands.demo.screen import Screen
from delaymq.cli.errors import CommandError, exit_code_of_path
from delaymq.cli.terminal.output import console, show_warnings
from delaymq.client import ClientError

_Keep = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep the store in DIR/store; DIR must not exist."),
]


def demo(keep: _Keep = None) -> None:
    """Start a broker, send delayed messages, kill and restart it, and see them arrive once and on time.

    The demo uses free ports on 127.0.0.1 and a temporary folder, and takes 13 seconds.
    """
    if keep is not None:
        try:
            keep.mkdir(parents=True)
        except OSError as error:
            text = f"--keep {keep}: {error.strerror}: specify a folder that does not exist yet"
            raise CommandError(text, exit_code_of_path(error)) from error
    out = console()
    show_warnings(logging.CRITICAL)  # broken connections are part of the demo
    screen = Screen(out)
    screen.title("DelayMQ: delayed messages survive a kill -9")
    with contextlib.ExitStack() as stack:
        broker = BrokerProcess(keep or Path(stack.enter_context(_temporary_folder())))
        try:
            with screen.live():
                report = asyncio.run(play(broker, screen))
        except ClientError as error:
            raise CommandError(f"the demo failed: {error}\n{broker.log_tail()}") from error
    good = report.is_good
    verdict = "all messages arrived once and on time" if good else "FAILED"
    out.print(f"{verdict}: {report.summary()}", style="bold green" if good else "bold red", markup=False)
    if keep is not None:
        out.print(f"the store is in {broker.store_path}", markup=False)
    raise typer.Exit(0 if good else 1)


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="delaymq-demo-", ignore_cleanup_errors=True)
