"""Medians, ranges and ratios of the measurements, as a table for the terminal, Markdown and JSON."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rows import Row, Sample
from subjects import Contender

from reporting import spread, tables
from reporting.spread import Spread

REAL = "real"
"""Label of RocketMQ's broker, of version 4.9 unless a row needs 5.3."""
NO_SUCH_ROW = "no such row"
"""Cell of a contender that does not have the row."""


@dataclass
class Line:
    """One row of the table: contender → pair → value; failed and missing runs are omitted."""

    row: Row
    values: dict[str, dict[int, float]] = field(default_factory=dict)

    def ratio(self, label: str, base: str) -> Spread | None:
        """Return the spread of a contender's values divided by those of the base, pair by pair."""
        return Spread.of(self.ratios(label, base))

    def ratios(self, label: str, base: str) -> list[float]:
        return spread.ratios(self.values.get(label, {}), self.values.get(base, {}))

    def pairs(self) -> int:
        """Return the number of pairs in which every contender with a value for this row has one."""
        return len(set.intersection(*map(set, self.values.values()))) if self.values else 0

    def figures(self, labels: Sequence[str], base: str, missing: Collection[str] = ()) -> list[str]:
        """Return the cells of the columns of `columns`. The contenders in `missing` do not have the row."""
        cells = [self.row.title, self.row.unit]
        for label in labels:
            if label in missing:
                cells += [NO_SUCH_ROW, ""]
                continue
            cells += spread.cells(Spread.of(self.values.get(label, {}).values()), spread.number)
        for label in compared(labels, base):
            cells += spread.cells(self.ratio(label, base), spread.ratio)
        return [*cells, str(self.pairs())]

    def difference(self, label: str, base: str) -> str:
        """Return whether the contender is better or worse than the base in every pair; empty if neither."""
        found = self.ratio(label, base)
        if found is None or not found.excludes_one:
            return ""
        return f"{label} {'better' if (found.median > 1) == (self.row.better == 'higher') else 'worse'}"


def compared(labels: Sequence[str], base: str) -> list[str]:
    """Return the labels of the contenders that have a ratio to the base."""
    return [label for label in labels if label != base] if base in labels else []


def columns(labels: Sequence[str], base: str) -> list[str]:
    """Return the columns of measured figures in a table of these contenders."""
    ratios = [cell for label in compared(labels, base) for cell in (f"{label}/{base}", "range")]
    return ["measurement", "unit", *(cell for label in labels for cell in (label, "range")), *ratios, "pairs"]


class Report:
    """Collects samples of the contenders; rows appear in the order in which they were first measured.

    The contender with the label `base` is the denominator of the ratios. The table shows the targets of the rows, or
    without `has_targets` marks rows that differ in every pair. `facts` are added to the JSON.
    """

    def __init__(
        self,
        contenders: Sequence[Contender],
        *,
        title: str,
        base: str = REAL,
        has_targets: bool = True,
        facts: Mapping[str, object] | None = None,
    ) -> None:
        self._contenders = contenders
        self._labels = [each.label for each in contenders]
        self._title = title
        self._base = base
        self._has_targets = has_targets
        self._facts = dict(facts or {})
        self._facts |= {"measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "load": os.getloadavg()[0]}
        self._lines: dict[str, Line] = {}
        self._missing: dict[tuple[str, str], str] = {}
        self.failures: list[str] = []

    def add_missing(self, label: str, groups: Collection[str], reason: str) -> None:
        """Add that a contender does not have the rows of these groups."""
        self._missing |= {(group, label): reason for group in sorted(groups)}

    def add(self, label: str, pair: int, samples: list[Sample]) -> None:
        for sample in samples:
            line = self._lines.setdefault(sample.row.name, Line(sample.row))
            line.values.setdefault(label, {})[pair] = sample.value

    def terminal(self) -> str:
        table = [self._head(), *map(self._cells, self._lines.values())]
        first = len(columns(self._labels, self._base))
        left = {0, 1, *range(first, len(table[0]))}
        return "\n".join([self._title, "", *tables.aligned(table, left), "", *self._absences(), *self._notes()])

    def markdown(self) -> str:
        lines = [f"# {self._title}", ""]
        lines += tables.markdown(self._head(), map(self._cells, self._lines.values()))
        remarks = [*self._absences(), *(f"failed: {failure}" for failure in self.failures)]
        lines += ["", *(f"- {remark}" for remark in remarks), "", *self._notes()]
        return "\n".join(lines) + "\n"

    def _absences(self) -> list[str]:
        return [f"{NO_SUCH_ROW}: {group}, {label}: {reason}" for (group, label), reason in self._missing.items()]

    def content(self, arguments: Sequence[str], facts: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Return the content of the JSON file: every sample, and the conditions of the run."""
        return {
            "title": self._title,
            "machine": machine(),
            **self._facts,
            **(facts or {}),
            "base": self._base,
            "interpreters": {each.label: each.interpreter for each in self._contenders if each.interpreter},
            "versions": {each.label: each.version for each in self._contenders if each.version},
            "arguments": list(arguments),
            "no_such_rows": [
                {"group": group, "contender": label, "reason": reason}
                for (group, label), reason in self._missing.items()
            ],
            "failures": self.failures,
            "rows": [
                {
                    **asdict(line.row),
                    "pairs": line.values,
                    "ratios": {label: line.ratios(label, self._base) for label in line.values},
                }
                for line in self._lines.values()
            ],
        }

    def conclude(
        self,
        folder: Path,
        arguments: Sequence[str],
        *,
        notes: Sequence[str] = (),
        prefix: str = "",
        facts: Mapping[str, object] | None = None,
    ) -> int:
        """Print the table, these notes and the failures, and write the files; return 1 if some rows failed, else 0."""
        print(f"\n{self.terminal()}\n")
        for line in (*notes, *(f"failed: {failure}" for failure in self.failures)):
            print(line)
        print(f"written: {self.write(folder, arguments, prefix=prefix, facts=facts)} and .json")
        return 1 if self.failures else 0

    def write(
        self, folder: Path, arguments: Sequence[str], *, prefix: str = "", facts: Mapping[str, object] | None = None
    ) -> Path:
        """Write NAME.json, with these facts, and NAME.md; return the path of the latter."""
        folder.mkdir(parents=True, exist_ok=True)
        name = prefix + time.strftime("%Y%m%d-%H%M%S")
        content = json.dumps(self.content(arguments, facts), indent=1, ensure_ascii=False)
        (folder / f"{name}.json").write_text(content + "\n")
        path = folder / f"{name}.md"
        path.write_text(self.markdown())
        return path

    @property
    def _marks(self) -> list[str]:
        return [] if self._has_targets else compared(self._labels, self._base)

    def _head(self) -> list[str]:
        last = ["better", "target"] if self._has_targets else ["better", *("difference" for _ in self._marks)]
        return [*columns(self._labels, self._base), *last]

    def _cells(self, line: Line) -> list[str]:
        last = [line.row.aim] if self._has_targets else [line.difference(label, self._base) for label in self._marks]
        missing = [label for group, label in self._missing if group == line.row.group]
        return [*line.figures(self._labels, self._base, missing), line.row.better, *last]

    def _notes(self) -> list[str]:
        """Return the lines below the table: the meaning of the figures, and the conditions of the run."""
        pairs = [line.pairs() for line in self._lines.values()]
        notes = ["Values and ratios are medians; ranges extend from the smallest to the largest value of all pairs."]
        if 1 in pairs:
            notes = ["Rows with 1 pair have no range: their variance is unknown.", *(notes if max(pairs) > 1 else [])]
        if self._marks and pairs and max(pairs) > 1:
            notes.append(
                "A difference is shown if the ratio is above 1 in every pair, or below 1 in every pair. Of the rows"
                f" without a difference, 1 in {2 ** (max(pairs) - 1)} shows one by chance with {max(pairs)} pairs."
            )
        builds = [f"{each.label} on {each.interpreter}" for each in self._contenders if each.interpreter]
        builds += [f"{each.label}: {each.version}" for each in self._contenders if each.version]
        return [*notes, "; ".join([machine(), *builds])]


def machine() -> str:
    """Return number and model of the processors, and the kernel."""
    model = _processor_model()
    return f"{os.cpu_count()} processors{f' ({model})' if model else ''}, Linux {platform.release()}"


def _processor_model() -> str:
    # Not all architectures have the field.
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
