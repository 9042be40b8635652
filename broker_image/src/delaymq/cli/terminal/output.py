"""Output of commands: text and JSON lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from delaymq.cli.errors import EXIT_UNREACHABLE, CommandError
from delaymq.cli.terminal.sanitize import json_line, visible

PIPE_WIDTH = 1_000
"""Width when the output is not a terminal, so that lines are not wrapped."""


def console() -> Console:
    """Return the console for text output: as wide as the terminal, or plain and wide in a pipe."""
    made = PlainConsole()
    return made if made.is_terminal else PlainConsole(width=PIPE_WIDTH)


class PlainConsole(Console):
    """Console that prints text literally, without markup and emoji codes, and escapes control characters."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Sanitise `text`; all text passes through here, including table cells."""
        return super().render_str(visible(text), **settings)


class _VisibleLines(logging.Formatter):
    """Formatter that sanitises messages, because warnings can contain text from brokers."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def show_warnings(level: int = logging.WARNING) -> None:
    """Print the client's log records of at least `level` to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(_VisibleLines("delaymq: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def warn(text: str) -> None:
    """Print one line to stderr."""
    print(f"delaymq: {visible(text)}", file=sys.stderr)


def end_if_missing(missing: list[str], what: str = "incomplete") -> None:
    """Report brokers that did not answer, after the statement `what`; then exit with EXIT_UNREACHABLE."""
    if missing:
        warn(f"{what}: {'; '.join(missing)}")
        raise typer.Exit(EXIT_UNREACHABLE)


def print_json(value: Any) -> None:
    """Print a value as one JSON line and flush."""
    print(json_line(value), flush=True)


@contextmanager
def explain_bad_answers(url: str, what: str) -> Iterator[None]:
    """Convert errors from reading a response with missing fields to CommandError."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise CommandError(f"{url} did not return {what}: is it a DelayMQ broker of this version?") from error


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Show a progress bar on stderr, if that is a terminal; call the yielded function after each of `total` steps."""
    shown = Console(stderr=True)
    if not shown.is_terminal:
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=shown, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def counted(number: int, one: str, many: str = "") -> str:
    """Return a count with its noun: `1 message`, `2 messages`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def duration(ms: float) -> str:
    """Format a duration: `350 ms`, `12.3 s`, `5m 20s`, `2h 5m`."""
    if abs(ms) < 1_000:
        return f"{ms:.0f} ms"
    seconds = ms / 1_000
    if abs(seconds) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {minutes}m" if hours else f"{minutes}m {rest}s"
