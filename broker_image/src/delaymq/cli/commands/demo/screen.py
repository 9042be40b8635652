"""Output of the demo: lines, and on a terminal a progress bar for each delay below them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text


class Screen:
    """Prints lines that start with the seconds since the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("  {task.description:>4}", style="bold"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", style="dim"),
            console=console,
            disable=not console.is_terminal,
        )

    @contextmanager
    def live(self) -> Iterator[None]:
        """Refresh the progress bars while the context is open."""
        with self._progress:
            yield

    def title(self, text: str) -> None:
        self._console.print(Text(text, style="bold"))

    def line(self, text: str, style: str = "") -> None:
        """Print a line with the elapsed time."""
        clock = Text(f"{time.monotonic() - self._began:6.2f} s  ", style="dim")
        self._console.print(clock + Text(text, style=style))

    def expect(self, label: str, count: int) -> None:
        """Add a progress bar for `count` expected messages of one delay."""
        self._bars[label] = self._progress.add_task(label, total=count, note="waiting")

    def count(self, label: str, note: str) -> None:
        """Advance a progress bar by one message."""
        self._progress.update(self._bars[label], advance=1, note=note)
