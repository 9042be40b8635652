"""Tables as text: aligned for the terminal, or as Markdown that can be parsed again."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

_CELL = re.compile(r"(?:[^|\\]|\\.)*")


def aligned(rows: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """Return a line for each row; the columns with these indexes are aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [_line(head), "|" + "---|" * len(head), *map(_line, rows)]


def parsed(line: str) -> list[str]:
    """Return the cells of a line of `markdown`; ValueError if it is not one."""
    if not (line.startswith("| ") and line.endswith(" |")) or len(line) < 4:
        raise ValueError("a table row is expected here")
    cells, position = [], 1
    while position < len(line):
        found = _CELL.match(line, position)
        assert found is not None  # the pattern matches the empty string
        cells.append(re.sub(r"\\(.)", r"\1", found[0].strip()))
        position = found.end() + 1
    return cells


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(re.sub(r"([|\\])", r"\\\1", " ".join(cell.split())) for cell in cells) + " |"
