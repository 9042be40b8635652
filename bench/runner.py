"""Alternation of the scenarios between the contenders, and the options that all programs of the benchmark share."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import rows
from crash.load import LoadProgram
from harness.errors import HarnessError
from options import Options
from reporting.report import Report
from rows import Sample
from scenarios import SCENARIOS, Scenario
from subjects import Contender

Scenarios = Mapping[str, tuple[Scenario, frozenset[str]]]
"""Scenarios by name, each with its row groups."""
RESULTS_PATH = Path(__file__).resolve().parent / "results"


def add_options(parser: argparse.ArgumentParser, *, pairs: int, groups: Sequence[str] = rows.GROUPS) -> None:
    """Add the options of rows, sizes and pairs, with these row groups, and this number of pairs as the default."""
    parser.add_argument("--rows", default="all", help=f"row groups, separated by commas: {', '.join(groups)}")
    parser.add_argument("--pairs", type=int, help=f"number of pairs of measurements ({pairs}; 1 with --quick)")
    add_sizes(parser)
    parser.add_argument("--sequential", action="store_true", help="alternate broker by broker instead of row by row")
    parser.set_defaults(default_pairs=pairs, groups=groups)


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Add the options of sizes and durations."""
    parser.add_argument("--sizes", default="1024", help="body sizes in bytes, separated by commas (1024)")
    parser.add_argument("--quick", action="store_true", help="short runs, to check that the benchmark works")
    parser.set_defaults(pending=None, groups=rows.GROUPS, uvloop=False)


def add_pending(parser: argparse.ArgumentParser) -> None:
    """Add the option of the rows with pending messages."""
    parser.add_argument(
        "--pending",
        type=int,
        metavar="COUNT",
        help="pending messages of the pending rows (1000000; 50000 with --quick)",
    )


def options_of(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> Options:
    """Return the options of the scenarios; exit with an error about an invalid option."""
    groups = parsed.groups if parsed.rows == "all" else tuple(parsed.rows.split(","))
    unknown = sorted(group or "''" for group in set(groups) - set(parsed.groups))
    if unknown:
        parser.error(f"--rows: unknown groups: {', '.join(unknown)}: use {', '.join(parsed.groups)}")
    pending = (50_000 if parsed.quick else 1_000_000) if parsed.pending is None else parsed.pending
    if pending < 1_000:
        parser.error(f"--pending is {pending}: use at least 1000")
    words = parsed.sizes.split(",")
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        parser.error(f"--sizes is {parsed.sizes}: use numbers of bytes above 0, separated by commas")
    sizes = tuple(map(int, words))
    return Options(groups=frozenset(groups), sizes=sizes, quick=parsed.quick, pending=pending, uvloop=parsed.uvloop)


def pairs_of(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> int:
    """Return the number of pairs; exit with an error if it is invalid."""
    if parsed.pairs is None:
        return 1 if parsed.quick else int(parsed.default_pairs)
    if parsed.pairs < 1:
        parser.error(f"--pairs is {parsed.pairs}: use at least 1")
    return int(parsed.pairs)


def rotated(taking_part: Sequence[Contender], pair: int) -> list[Contender]:
    """Return the order of the contenders in a pair, counted from 1. Each pair starts with another one.

    Otherwise, a contender would always be measured after the same other one, under different conditions.
    """
    first = (pair - 1) % len(taking_part)
    return [*taking_part[first:], *taking_part[:first]]


class Runner:
    """Alternates between brokers: a step of one, the same step of the other, until both have finished."""

    def __init__(self, report: Report, *, alternate: bool, scenarios: Scenarios = SCENARIOS) -> None:
        self._report = report
        self._alternate = alternate
        self._scenarios = scenarios
        self._began = time.monotonic()

    def run_all(self, options: Options, taking_part: Sequence[Contender], pairs: int) -> None:
        """Run the selected scenarios once for each pair."""
        with tempfile.TemporaryDirectory(prefix="delaymq-bench-") as folder, LoadProgram(Path(folder)) as load:
            for pair in range(1, pairs + 1):
                ordered = rotated(taking_part, pair)
                for name, (scenario, groups) in self._scenarios.items():
                    if options.wants(*groups):
                        self.say(f"pair {pair} of {pairs}: {name}")
                        existing = self._with_rows(name, groups & options.groups, ordered)
                        self.run(name, pair, {each.label: scenario(options, each, load) for each in existing})

    def _with_rows(self, name: str, groups: frozenset[str], taking_part: Sequence[Contender]) -> list[Contender]:
        """Return the contenders that have the rows of a scenario; the report states the reason for the others."""
        for each in taking_part:
            if name in each.missing:
                self._report.add_missing(each.label, groups, each.missing[name])
                self.say(f"{each.label:6}  {name}: no such row: {each.missing[name]}")
        return [each for each in taking_part if name not in each.missing]

    def run(self, name: str, pair: int, steps: dict[str, Iterator[list[Sample]]]) -> None:
        """Run a scenario on all brokers; failures are recorded, and the others continue."""
        waiting = list(steps)
        try:
            while waiting:
                for label in list(waiting):
                    finished = False
                    while not finished:
                        finished = self._step(name, pair, label, steps[label])
                        if finished:
                            waiting.remove(label)
                        if self._alternate:
                            break
        finally:
            for iterator in steps.values():
                with contextlib.suppress(Exception):
                    iterator.close()  # type: ignore[attr-defined]

    def _step(self, name: str, pair: int, label: str, iterator: Iterator[list[Sample]]) -> bool:
        """Run a step; return whether the scenario has finished for this broker."""
        try:
            samples = next(iterator)
        except StopIteration:
            return True
        except Exception as e:  # a defect in one scenario must not discard the figures of an hour
            reason = str(e) if isinstance(e, HarnessError) else "".join(traceback.format_exception(e)).strip()
            self._report.failures.append(f"pair {pair}, {name}, {label}: {reason}")
            self.say(f"pair {pair}  {label:6}  {name} FAILED: {reason}")
            return True
        self._report.add(label, pair, samples)
        for sample in samples:
            self.say(f"pair {pair}  {label:6}  {sample.row.title}: {sample.value:,.2f} {sample.row.unit}")
        return False

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:5.0f} s] {text}", flush=True)
