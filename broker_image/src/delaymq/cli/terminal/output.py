"""What commands print: text for people, JSON lines for programs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.text import Text

from delaymq.cli.errors import CommandError
from delaymq.cli.terminal.sanitize import json_line, visible

PIPE_WIDTH = 1_000
"""Not a terminal: lines stay whole for grep."""


def console() -> Console:
    """Where text for people goes: as wide as the terminal, or plain and wide in a pipe."""
    made = PlainConsole()
    return made if made.is_terminal else PlainConsole(width=PIPE_WIDTH)


class PlainConsole(Console):
    """Shows texts as they are: [names] are no markup, :words: no emoji, and nothing in them acts on the terminal."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """All texts come by here, in tables too."""
        return super().render_str(visible(text), **settings)


class _VisibleLines(logging.Formatter):
    """What a broker answers can stand in a warning."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def show_warnings(level: int = logging.WARNING) -> None:
    """The client's warnings as lines on stderr, from `level` on."""
    handler = logging.StreamHandler()
    handler.setFormatter(_VisibleLines("delaymq: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def warn(text: str) -> None:
    """One line on stderr."""
    print(f"delaymq: {visible(text)}", file=sys.stderr)


def print_json(value: Any) -> None:
    """One value on one line, at once."""
    print(json_line(value), flush=True)


@contextmanager
def reading(url: str, what: str) -> Iterator[None]:
    """Turns what reading an answer without the agreed fields raises into CommandError."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise CommandError(
            f"{url} answers something else than {what}: is it a DelayMQ broker of this version?"
        ) from error


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[], None]]:
    """A bar on stderr for long work, where that is a terminal; call what it gives after each of `total` steps."""
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
    """`1 message`, `2 messages`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def duration(ms: float) -> str:
    """`350 ms`, `12.3 s`, `5m 20s`, `2h 5m`."""
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
