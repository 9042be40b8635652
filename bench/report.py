"""Medians and ratios of what was measured, as a table for the terminal, Markdown and JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rows import Row, Sample
from subjects import Kind


@dataclass
class Line:
    """One row of the table: the values of each pair, None where one failed or did not run."""

    row: Row
    values: dict[Kind, dict[int, float]] = field(default_factory=lambda: {"ours": {}, "real": {}})

    def ratios(self) -> list[float]:
        """Ours by the real one's, of each pair that has both."""
        ours, real = self.values["ours"], self.values["real"]
        return [ours[pair] / real[pair] for pair in sorted(ours.keys() & real.keys()) if real[pair]]

    def median(self, kind: Kind) -> float | None:
        values = list(self.values[kind].values())
        return statistics.median(values) if values else None

    def cells(self) -> list[str]:
        ratios = self.ratios()
        ratio = f"{statistics.median(ratios):.2f}" if ratios else "–"
        spread = f"{min(ratios):.2f}–{max(ratios):.2f}" if len(ratios) > 1 else ""
        ours, real = self.median("ours"), self.median("real")
        return [
            self.row.title,
            self.row.unit,
            _number(ours),
            _number(real),
            ratio,
            spread,
            self.row.better,
            self.row.aim,
        ]


HEAD = ["what", "unit", "ours", "real", "ours/real", "over the pairs", "better", "aim"]


class Report:
    """Collects samples; rows appear in the order in which they were first measured.

    ``interpreter`` is the name and build of the one that runs ours.
    """

    def __init__(self, interpreter: str) -> None:
        self._interpreter = interpreter
        self._lines: dict[str, Line] = {}
        self.failures: list[str] = []

    def add(self, kind: Kind, pair: int, samples: list[Sample]) -> None:
        for sample in samples:
            line = self._lines.setdefault(sample.row.name, Line(sample.row))
            line.values[kind][pair] = sample.value

    def terminal(self) -> str:
        table = [HEAD, *(line.cells() for line in self._lines.values())]
        widths = [max(len(cells[column]) for cells in table) for column in range(len(HEAD))]
        lines = [
            "  ".join(
                cell.ljust(width) if column in (0, 1, 6, 7) else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ).rstrip()
            for cells in table
        ]
        return "\n".join([*lines, "", self._conditions()])

    def markdown(self) -> str:
        lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
        lines += ["| " + " | ".join(line.cells()) + " |" for line in self._lines.values()]
        lines += ["", *(f"- failed: {failure}" for failure in self.failures), "", self._conditions()]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path, arguments: list[str]) -> Path:
        """Write NAME.json and NAME.md; the path of the latter."""
        folder.mkdir(parents=True, exist_ok=True)
        name = time.strftime("%Y%m%d-%H%M%S")
        content = {
            "machine": _machine(),
            "interpreter": self._interpreter,
            "arguments": arguments,
            "failures": self.failures,
            "rows": [
                {**asdict(line.row), "pairs": line.values, "ratios": line.ratios()} for line in self._lines.values()
            ],
        }
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        path = folder / f"{name}.md"
        path.write_text(self.markdown())
        return path

    def _conditions(self) -> str:
        return f"{_machine()}; ours on {self._interpreter}"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _machine() -> str:
    return f"{os.cpu_count()} processors, Linux {platform.release()}"
