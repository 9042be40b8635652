"""Compare DelayMQ with RocketMQ's broker. bench/README.md documents the measurements and how to run them."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import rows
from crash.load import LoadProgram
from harness import isolation
from harness.errors import HarnessError
from options import Options
from report import Report
from rows import Sample
from scenarios import SCENARIOS
from subjects import contenders

RESULTS_PATH = Path(__file__).resolve().parent / "results"
MAX_PYTHONS = 4
"""Each additional interpreter makes a run longer by half."""


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run.py", description=__doc__)
    parser.add_argument("--rows", default="all", help=f"row groups, separated by commas: {', '.join(rows.GROUPS)}")
    parser.add_argument("--pairs", type=int, default=3, help="number of pairs of measurements (3)")
    parser.add_argument("--sizes", default="1024", help="body sizes in bytes, separated by commas (1024)")
    parser.add_argument("--against", choices=("both", "ours", "real"), default="both", help="measure only one broker")
    parser.add_argument(
        "--python",
        metavar="PATH",
        action="append",
        help="interpreter, with delaymq installed, that runs DelayMQ's broker and client (default: this interpreter);"
        " if repeated, DelayMQ is measured with each interpreter",
    )
    parser.add_argument(
        "--quick", action="store_true", help="one pair and short runs, to check that the benchmark works"
    )
    parser.add_argument(
        "--pending",
        type=int,
        metavar="COUNT",
        help="pending messages of the pending rows (1000000; 50000 with --quick)",
    )
    parser.add_argument("--sequential", action="store_true", help="alternate broker by broker instead of row by row")
    parsed = parser.parse_args(words)
    groups = rows.GROUPS if parsed.rows == "all" else tuple(parsed.rows.split(","))
    unknown = sorted(set(groups) - set(rows.GROUPS))
    if unknown:
        parser.error(f"--rows: unknown groups: {', '.join(unknown)}: use {', '.join(rows.GROUPS)}")
    if parsed.pairs < 1:
        parser.error(f"--pairs is {parsed.pairs}: use at least 1")
    if parsed.pending is None:
        parsed.pending = 50_000 if parsed.quick else 1_000_000
    if parsed.pending < 1_000:
        parser.error(f"--pending is {parsed.pending}: use at least 1000")
    parsed.python = parsed.python or [sys.executable]
    if len(parsed.python) > MAX_PYTHONS:
        parser.error(f"--python was given {len(parsed.python)} times: use it at most {MAX_PYTHONS} times")
    try:
        parsed.options = Options(
            groups=frozenset(groups),
            sizes=tuple(int(size) for size in parsed.sizes.split(",")),
            quick=parsed.quick,
            pending=parsed.pending,
        )
    except ValueError:
        parser.error(f"--sizes is {parsed.sizes}: use numbers separated by commas")
    return parsed


class Runner:
    """Alternates between brokers: a step of one, the same step of the other, until both have finished."""

    def __init__(self, report: Report, *, alternate: bool) -> None:
        self._report = report
        self._alternate = alternate
        self._began = time.monotonic()

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
                with contextlib.suppress(HarnessError):
                    iterator.close()  # type: ignore[attr-defined]

    def _step(self, name: str, pair: int, label: str, iterator: Iterator[list[Sample]]) -> bool:
        """Run a step; return whether the scenario has finished for this broker."""
        try:
            samples = next(iterator)
        except StopIteration:
            return True
        except HarnessError as e:
            self._report.failures.append(f"pair {pair}, {name}, {label}: {e}")
            self.say(f"pair {pair}  {label:6}  {name} FAILED: {e}")
            return True
        self._report.add(label, pair, samples)
        for sample in samples:
            self.say(f"pair {pair}  {label:6}  {sample.row.title}: {sample.value:,.2f} {sample.row.unit}")
        return False

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:5.0f} s] {text}", flush=True)


def main(words: list[str]) -> int:
    """Return 0 if all rows were measured, 1 if some failed (the others are reported), 2 if the benchmark cannot run."""
    arguments = _arguments(words)
    if not isolation.is_isolated():
        print(
            "RocketMQ's broker binds all interfaces: use `make bench`, or run under `python -m harness.isolated -- …`"
        )
        return 2
    pairs = 1 if arguments.quick else arguments.pairs
    options: Options = arguments.options
    try:
        taking_part = contenders(arguments.python, arguments.against)
    except HarnessError as e:
        print(f"--python: {e}")
        return 2
    report = Report(taking_part)
    runner = Runner(report, alternate=not arguments.sequential)
    with tempfile.TemporaryDirectory(prefix="delaymq-bench-") as folder, LoadProgram(Path(folder)) as load:
        for pair in range(1, pairs + 1):
            for name, (scenario, groups) in SCENARIOS.items():
                if options.wants(*groups):
                    runner.say(f"pair {pair} of {pairs}: {name}")
                    runner.run(name, pair, {each.label: scenario(options, each, load) for each in taking_part})
    print(f"\n{report.terminal()}\n")
    for failure in report.failures:
        print(f"failed: {failure}")
    print(f"written: {report.write(RESULTS_PATH, words)} and .json")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
