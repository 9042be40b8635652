"""History of the benchmark's results: a page with the figures of the most recently recorded commits.

    python -m reporting.history [--results FILE]... [--allow-dirty]

Adds the newest results of bench/run.py to docs/performance-history.md. An entry of the same commit with
the same columns is replaced. Several files are the parts of one run, with different rows.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from rows import Row
from runner import RESULTS_PATH

from reporting import commits, spread, tables
from reporting.report import REAL, Line, columns
from reporting.spread import Spread

ENTRIES = 12
"""Older entries are removed: the page stays reviewable, and Git keeps them."""
RESULTS_NAMES = "[0-9]*.json"
"""Results of bench/run.py; those of other programs have a prefix."""
INTRODUCTION = f"""\
# History of benchmark results

Results of `make bench`, recorded by `make bench-history`, newest first. The page contains the last
{ENTRIES} recorded commits; Git contains older versions of it. Values and ratios are medians, and ranges
extend from the smallest to the largest value of all pairs. Compare the ratios rather than the
values, and only entries of the same machine and interpreter.
[bench/README.md](../bench/README.md) describes the rows.
"""
UNCOMMITTED = "uncommitted changes"
_TITLE = re.compile(r"## (\d{4}-\d\d-\d\d), commit ([0-9a-f]{12})(?: with " + UNCOMMITTED + ")?")
_HASH = re.compile(r"[0-9a-f]{40}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
FACTS = ["fact", "value"]


class HistoryError(HarnessError):
    """Results cannot be recorded, or the page cannot be parsed."""


@dataclass(frozen=True)
class Figures:
    """A row of an entry: spreads by column, which is a contender's label or a ratio such as ``ours/real``."""

    title: str
    unit: str
    spreads: dict[str, Spread | None]
    pairs: int


@dataclass(frozen=True)
class Entry:
    """Results of a commit."""

    commit: str
    is_dirty: bool
    measured_at: str
    """UTC, as ``2026-11-28T12:00:00Z``."""
    facts: dict[str, str]
    """Machine, interpreters and options, by name."""
    rows: list[Figures] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, bool, tuple[str, ...]]:
        return self.commit, self.is_dirty, tuple(self.rows[0].spreads)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the entry on the page."""
        yield f"## {self.measured_at[:10]}, commit {self.commit[:12]}" + f" with {UNCOMMITTED}" * self.is_dirty
        yield ""
        facts = {"commit": self.commit, "measured at": self.measured_at, **self.facts}
        yield from tables.markdown(FACTS, [[name, value] for name, value in facts.items()])
        yield ""
        names = list(self.rows[0].spreads)
        head = ["measurement", "unit", *(cell for name in names for cell in (name, "range")), "pairs"]
        yield from tables.markdown(head, [_cells(row) for row in self.rows])


def _cells(row: Figures) -> list[str]:
    cells = [row.title, row.unit]
    for name, found in row.spreads.items():
        cells += spread.cells(found, spread.ratio if "/" in name else spread.number)
    return [*cells, str(row.pairs)]


def page(entries: Sequence[Entry]) -> str:
    """Return the text of the page."""
    return "\n".join([INTRODUCTION, *(line for entry in entries for line in (*entry.lines(), ""))])


def parse(text: str) -> list[Entry]:
    """Return the entries of a page; HistoryError with the number of a line that has another form."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("## ")]
    return [_entry(lines, start, end) for start, end in pairwise([*starts, len(lines)])]


def _entry(lines: list[str], start: int, end: int) -> Entry:
    """Parse the lines of one entry: the title, the table of facts, and the table of rows."""
    title = _TITLE.fullmatch(lines[start])
    if title is None:
        raise _unexpected(start, "a title of the form `## DATE, commit HASH` is expected here")
    filled = [number for number in range(start + 1, end) if lines[number]]
    facts: dict[str, str] = {}
    head: list[str] = []
    rows = []
    for number in filled:
        try:
            if lines[number].startswith("|---"):
                continue
            cells = tables.parsed(lines[number])
            if head:
                rows.append(_figures(head, cells))
            elif cells[0] == "measurement":
                head = cells
            elif cells != FACTS:
                name, facts[name] = cells
        except ValueError as e:
            raise _unexpected(number, str(e)) from e
    commit, measured_at = facts.pop("commit", ""), facts.pop("measured at", "")
    has_title = commit[:12] == title[2] and measured_at[:10] == title[1]
    if not (_HASH.fullmatch(commit) and _TIME.fullmatch(measured_at) and has_title and rows):
        raise _unexpected(start, "the commit, the date or the rows of this entry are missing or differ from its title")
    return Entry(commit, UNCOMMITTED in title[0], measured_at, facts, rows)


def _figures(head: list[str], cells: list[str]) -> Figures:
    if len(cells) != len(head):
        raise ValueError(f"a row with {len(head)} cells is expected here")
    names, texts = head[2:-1], cells[2:-1]
    spreads = {
        name: spread.spread_of(median, range_text)
        for name, median, range_text in zip(names[::2], texts[::2], texts[1::2], strict=True)
    }
    return Figures(cells[0], cells[1], spreads, int(cells[-1]))


def _unexpected(number: int, problem: str) -> HistoryError:
    path = commits.HISTORY_PATH.relative_to(commits.ROOT)
    return HistoryError(f"line {number + 1} of {path}: {problem}: restore the page with `git checkout {path}`")


def merged(entries: Sequence[Entry], new: Entry) -> list[Entry]:
    """Return the entries, newest first, without an earlier one with the same key, and at most ENTRIES."""
    others = [entry for entry in entries if entry.key != new.key]
    return sorted([new, *others], key=lambda entry: entry.measured_at, reverse=True)[:ENTRIES]


def entry_of(results: dict[str, Any], *, allow_dirty: bool) -> Entry:
    """Return the entry of results of bench/run.py; HistoryError if they cannot be recorded."""
    try:
        commit, is_dirty = _commit(results["commits"])
        if is_dirty and not allow_dirty:
            raise HistoryError(
                "the results were measured with uncommitted changes: commit or remove the changes and run `make bench`"
                " again, or pass --allow-dirty"
            )
        rows, base = results["rows"], results["base"]
        if base != REAL:
            raise HistoryError(
                f"the results compare DelayMQ with {base!r}, and the page with RocketMQ 4.9: use `make bench` without"
                " --real 5.3"
            )
        if not rows:
            raise HistoryError("no row was measured: run `make bench` again")
        facts = {"machine": f"{results['machine']}; load {results['load']:.2f} before the run"}
        facts |= {f"interpreter ({label})": build for label, build in results["interpreters"].items()}
        facts["options"] = f"`{' '.join(results['arguments'])}`" if results["arguments"] else "none"
        if results["failures"]:
            facts["failed measurements"] = str(len(results["failures"]))
        # A contender that failed in the first row may have values in others.
        labels = list({label: None for row in rows for label in row["pairs"]})
        ordered = [label for label in labels if label != base] + [base] * (base in labels)
        measured_at = results["measured_at"]
        if not _TIME.fullmatch(measured_at):
            raise ValueError(f"{measured_at!r} is not a time")
        return Entry(commit, is_dirty, measured_at, facts, [_row(row, ordered, base) for row in rows])
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise HistoryError(
            "the file does not contain results of the current bench/run.py: run `make bench` again"
        ) from e


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the results of a run in several parts; HistoryError if they are not of the same commit and columns.

    If two parts have the same row, that of the later one is used.
    """
    try:
        ordered = sorted(parts, key=lambda part: str(part["measured_at"]))
        for name in ("machine", "commits", "interpreters", "base"):
            if any(part[name] != ordered[0][name] for part in ordered):
                raise HistoryError(f"the files differ in `{name}`: pass only parts of one run")
        rows = {row["name"]: row for part in ordered for row in part["rows"]}
        return ordered[-1] | {
            "rows": list(rows.values()),
            "failures": [failure for part in ordered for failure in part["failures"]],
            "load": max(part["load"] for part in ordered),
            "arguments": _arguments_of(ordered),
        }
    except (AttributeError, KeyError, TypeError) as e:
        raise HistoryError("a file does not contain results of the current bench/run.py: pass other files") from e


def _arguments_of(parts: Sequence[dict[str, Any]]) -> list[str]:
    """Return the arguments of all parts, those of the second and further ones after a semicolon."""
    words = list(parts[0]["arguments"])
    for part in parts[1:]:
        words += [";", *part["arguments"]]
    return words


def _commit(states: dict[str, commits.State | None]) -> tuple[str, bool]:
    """Return the hash of the commit and whether files differed from it; HistoryError unless there is one commit."""
    known = [state for state in states.values() if state is not None]
    if not known or len(known) < len(states):
        raise HistoryError("DelayMQ was not installed from a checkout, so its commit is unknown: use `make bench`")
    if len({state["hash"] for state in known}) > 1:
        raise HistoryError("the results compare different commits: measure only one with `make bench`")
    return str(known[0]["hash"]), any(state["is_dirty"] for state in known)


def _row(found: dict[str, Any], labels: list[str], base: str) -> Figures:
    values = {label: {int(pair): value for pair, value in each.items()} for label, each in found["pairs"].items()}
    row = Row(found["name"], found["group"], found["title"], found["unit"], found["better"])
    return _figures(columns(labels, base), Line(row, values).figures(labels, base))


def newest(folder: Path) -> Path:
    """Return the newest results of bench/run.py; HistoryError if there are none."""
    found = sorted(folder.glob(RESULTS_NAMES), key=lambda path: path.name)
    if not found:
        raise HistoryError(f"{folder} contains no results: run `make bench` first")
    return found[-1]


def load(path: Path) -> dict[str, Any]:
    """Return the content of a results file; HistoryError if it cannot be read."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise HistoryError(f"{path} cannot be read as JSON: {e}: pass the path of results of bench/run.py") from e
    if not isinstance(content, dict):
        raise HistoryError(f"{path} does not contain results: pass the path of results of bench/run.py")
    return content


def record(history: Path, *results: Path, allow_dirty: bool) -> Entry:
    """Add results to the page; HistoryError if they cannot be recorded."""
    try:
        new = entry_of(joined([load(path) for path in results]), allow_dirty=allow_dirty)
    except HistoryError as e:
        raise HistoryError(f"{e} (file: {', '.join(map(str, results))})") from e
    entries = parse(history.read_text()) if history.exists() else []
    history.write_text(page(merged(entries, new)))
    return new


def main(words: list[str]) -> int:
    """Return 0 if the results are on the page, 2 if they cannot be recorded."""
    parser = argparse.ArgumentParser(
        prog="reporting.history", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        action="append",
        help="results of bench/run.py (default: the newest); repeat it for the parts of one run",
    )
    parser.add_argument("--allow-dirty", action="store_true", help="record results of uncommitted changes")
    arguments = parser.parse_args(words)
    try:
        results = arguments.results or [newest(RESULTS_PATH)]
        new = record(commits.HISTORY_PATH, *results, allow_dirty=arguments.allow_dirty)
    except HistoryError as e:
        print(f"cannot record: {e}", file=sys.stderr)
        return 2
    path = commits.HISTORY_PATH.relative_to(commits.ROOT)
    print(f"recorded in {path}: {len(new.rows)} rows of commit {new.commit[:12]}, from {', '.join(map(str, results))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
