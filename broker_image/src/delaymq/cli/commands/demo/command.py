"""`delaymq demo`: its options, its folder, and one run of the scenario."""

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
    typer.Option(metavar="DIR", help="Keep the store, as DIR/store; DIR must be new."),
]


def demo(keep: _Keep = None) -> None:
    """Start a broker, send delayed messages, kill it in between, see them arrive once and on time.

    Everything happens on free ports of 127.0.0.1 and in a temporary folder, and takes 13 seconds.
    """
    if keep is not None:
        try:
            keep.mkdir(parents=True)
        except OSError as error:
            text = f"--keep {keep}: {error.strerror}: name a folder that does not exist yet"
            raise CommandError(text, exit_code_of_path(error)) from error
    out = console()
    show_warnings(logging.CRITICAL)  # that connections break is the point
    screen = Screen(out)
    screen.title("DelayMQ: messages that must arrive later, through a kill -9")
    with contextlib.ExitStack() as stack:
        broker = BrokerProcess(keep or Path(stack.enter_context(_temporary_folder())))
        try:
            with screen.live():
                report = asyncio.run(play(broker, screen))
        except ClientError as error:
            raise CommandError(f"the demo could not go on: {error}\n{broker.log_tail()}") from error
    good = report.is_good
    verdict = "everything arrived once and on time" if good else "NOT as promised"
    out.print(f"{verdict}: {report.summary()}", style="bold green" if good else "bold red", markup=False)
    if keep is not None:
        out.print(f"its store is in {broker.store_path}", markup=False)
    raise typer.Exit(0 if good else 1)


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="delaymq-demo-", ignore_cleanup_errors=True)
