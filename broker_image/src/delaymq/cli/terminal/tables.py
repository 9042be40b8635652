"""Text tables that hide whole columns when the terminal is too narrow, and list the hidden columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from delaymq.cli.terminal.sanitize import visible

LEAST_ELASTIC: Final = 8
"""Minimum width of an elastic column, in characters."""
_BETWEEN: Final = 3
"""Space between two columns, in characters."""


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, elastic: int | None = None
) -> FittingTable:
    """Return a table without borders: `left` columns of text, then numbers; a column without a name is a bar.

    On a narrow terminal, the cells of the column `elastic` are wrapped first; ids and times stay whole for copying.
    """
    return FittingTable(columns, list(rows), left, elastic)


class FittingTable:
    """Renderable table whose columns depend on the available width."""

    def __init__(self, columns: Sequence[str], rows: list[Sequence[str]], left: int, elastic: int | None) -> None:
        self._columns = columns
        self._rows = rows
        self._left = left
        self._elastic = elastic

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the columns that fit; others are hidden, because a truncated number would be misleading."""
        kept, wrapped = self._fitting(options.max_width)
        yield self._table(kept, wrapped)
        missing = [name for index, name in enumerate(self._columns) if index not in kept and name]
        if missing:
            yield console.render_str(
                f"hidden columns: {', '.join(missing)}; use a wider terminal or --json to see them"
            )

    def _fitting(self, most: int) -> tuple[list[int], set[int]]:
        """Return the indexes of the columns that fit, and of those to wrap.

        The first and the elastic column are always kept; the others are added from left to right while they fit.
        """
        widths = [
            max(_width(cell) for cell in (name, *(row[index] for row in self._rows)))
            for index, name in enumerate(self._columns)
        ]
        elastic = set() if self._elastic is None else {self._elastic}
        for index in elastic:
            widths[index] = min(widths[index], LEAST_ELASTIC)
        kept = {0} | elastic
        room = most + _BETWEEN - sum(widths[index] + _BETWEEN for index in kept)
        if room < 0:
            return sorted(kept), kept  # the first column alone is too wide
        for index, width in enumerate(widths):
            if index not in kept and width + _BETWEEN <= room:
                kept.add(index)
                room -= width + _BETWEEN
        return sorted(kept), elastic

    def _table(self, kept: list[int], wrapped: set[int]) -> Table:
        made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for index in kept:
            name = self._columns[index]
            made.add_column(
                name,
                justify="left" if index < self._left or not name else "right",
                no_wrap=index not in wrapped,
                overflow="fold" if index in wrapped else "ellipsis",
                min_width=LEAST_ELASTIC if index == self._elastic else None,
            )
        for row in self._rows:
            made.add_row(*(row[index] for index in kept))
        return made


def _width(cell: str) -> int:
    """Return the width of a cell in terminal columns."""
    return max(cell_len(line.expandtabs()) for line in visible(cell).split("\n"))
