"""Medians and ratios of the measurements, as a table for the terminal, Markdown and JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rows import TIMED_GROUPS, Row, Sample
from subjects import Contender

REAL = "real"


@dataclass
class Line:
    """One row of the table: contender → pair → value; failed and missing runs are omitted."""

    row: Row
    values: dict[str, dict[int, float]] = field(default_factory=dict)

    def ratios(self, label: str) -> list[float]:
        """Return a contender's values divided by RocketMQ's, for each pair with both."""
        ours, real = self.values.get(label, {}), self.values.get(REAL, {})
        return [ours[pair] / real[pair] for pair in sorted(ours.keys() & real.keys()) if real[pair]]

    def cells(self, labels: Sequence[str]) -> list[str]:
        """Return the cells of the columns of `head`."""
        cells = [self.row.title, self.row.unit, *(self._median(label) for label in labels)]
        for label in labels:
            if label != REAL:
                ratios = self.ratios(label)
                cells.append(f"{statistics.median(ratios):.2f}" if ratios else "–")
                cells.append(f"{min(ratios):.2f}–{max(ratios):.2f}" if len(ratios) > 1 else "")
        return [*cells, self.row.better, self.row.aim]

    def _median(self, label: str) -> str:
        values = self.values.get(label, {}).values()
        return _number(statistics.median(values) if values else None)


def head(labels: Sequence[str]) -> list[str]:
    """Return the columns of a table of these contenders."""
    ratios = [cell for label in labels if label != REAL for cell in (f"{label}/{REAL}", "range")]
    return ["measurement", "unit", *labels, *ratios, "better", "target"]


class Report:
    """Collects samples of the contenders; rows appear in the order in which they were first measured."""

    def __init__(self, contenders: Sequence[Contender]) -> None:
        self._contenders = contenders
        self._labels = [each.label for each in contenders]
        self._lines: dict[str, Line] = {}
        self.failures: list[str] = []

    def add(self, label: str, pair: int, samples: list[Sample]) -> None:
        for sample in samples:
            line = self._lines.setdefault(sample.row.name, Line(sample.row))
            line.values.setdefault(label, {})[pair] = sample.value

    def terminal(self) -> str:
        table = [head(self._labels), *(line.cells(self._labels) for line in self._lines.values())]
        columns = len(table[0])
        widths = [max(len(cells[column]) for cells in table) for column in range(columns)]
        lines = [
            "  ".join(
                cell.ljust(width) if column in (0, 1, columns - 2, columns - 1) else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ).rstrip()
            for cells in table
        ]
        return "\n".join([*lines, "", self._conditions()])

    def markdown(self) -> str:
        columns = head(self._labels)
        lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(line.cells(self._labels)) + " |" for line in self._lines.values()]
        lines += ["", *(f"- failed: {failure}" for failure in self.failures), "", self._conditions()]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path, arguments: list[str]) -> Path:
        """Write NAME.json and NAME.md; return the path of the latter."""
        folder.mkdir(parents=True, exist_ok=True)
        name = time.strftime("%Y%m%d-%H%M%S")
        content = {
            "machine": _machine(),
            "interpreters": {each.label: each.interpreter for each in self._contenders if each.interpreter},
            "arguments": arguments,
            "failures": self.failures,
            "rows": [
                {
                    **asdict(line.row),
                    "pairs": line.values,
                    "ratios": {label: line.ratios(label) for label in line.values},
                }
                for line in self._lines.values()
            ],
        }
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        path = folder / f"{name}.md"
        path.write_text(self.markdown())
        return path

    def _conditions(self) -> str:
        builds = [f"{each.label} on {each.interpreter}" for each in self._contenders if each.interpreter]
        if REAL in self._labels and any(line.row.group in TIMED_GROUPS for line in self._lines.values()):
            builds.append(f"{REAL} in rows of timed messages: RocketMQ 5.3.3")
        return "; ".join([_machine(), *builds])


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _machine() -> str:
    return f"{os.cpu_count()} processors, Linux {platform.release()}"
