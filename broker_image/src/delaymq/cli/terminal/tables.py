"""Tables for people: what does not fit a terminal is left out by whole columns, which are named below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from delaymq.cli.terminal.sanitize import visible

LEAST_ELASTIC: Final = 8
"""Characters to which an elastic column may shrink."""
_BETWEEN: Final = 3
"""Characters between two columns."""


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, elastic: int | None = None
) -> FittingTable:
    """A table without frames whose first `left` columns are text and the others numbers; one without a name is a bar.

    On a narrow terminal the column `elastic` gives way first, by several lines in it: ids and times are to be copied.
    """
    return FittingTable(columns, list(rows), left, elastic)


class FittingTable:
    """Something to print: how much there is of it depends on where."""

    def __init__(self, columns: Sequence[str], rows: list[Sequence[str]], left: int, elastic: int | None) -> None:
        self._columns = columns
        self._rows = rows
        self._left = left
        self._elastic = elastic

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Columns that would be cut are left out: of a number a part tells something else."""
        kept, wrapped = self._fitting(options.max_width)
        yield self._table(kept, wrapped)
        missing = [name for index, name in enumerate(self._columns) if index not in kept and name]
        if missing:
            yield console.render_str(
                f"left out for want of room: {', '.join(missing)}; a wider terminal or --json shows them"
            )

    def _fitting(self, most: int) -> tuple[list[int], set[int]]:
        """The first column, and from left to right whatever has room beside those before it and the elastic one; and
        those whose texts are to be wrapped."""
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
            return sorted(kept), kept  # the first one is too wide by itself
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
    """Columns of the terminal that it takes."""
    return max(cell_len(line.expandtabs()) for line in visible(cell).split("\n"))
