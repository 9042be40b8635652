"""Compare two commits of DelayMQ: the rows of bench/run.py, measured alternately, and the ratios B/A.

    bench/compare.py [options] A B

Each commit is installed, with its own pinned packages, into a temporary environment below build/. Scenarios and load
program are those of this checkout. bench/README.md describes the rows.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from harness import isolation, java
from harness.errors import HarnessError
from reporting import commits
from reporting.report import Report
from runner import RESULTS_PATH, Runner, add_options, add_pending, options_of, pairs_of
from subjects import Contender, interpreter_of

LABELS = ("A", "B")
PAIRS = 5
"""With 5 pairs, 1 in 16 rows shows a difference by chance."""


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/compare.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for label in LABELS:
        parser.add_argument(label, help="hash, branch or tag of a commit")
    add_options(parser, pairs=PAIRS)
    add_pending(parser)
    parser.add_argument(
        "--python",
        metavar="PATH",
        default=sys.executable,
        help="interpreter that creates the environments (default: this interpreter)",
    )
    parsed = parser.parse_args(words)
    parsed.commits = [getattr(parsed, label) for label in LABELS]
    parsed.options = options_of(parser, parsed)
    parsed.pairs = pairs_of(parser, parsed)
    return parsed


def _prepare(hashes: list[str], folder: Path, python: str) -> list[Contender]:
    """Return the contenders, each with its own environment; equal commits share one. HarnessError as `install`."""
    pythons: dict[str, str] = {}
    taking_part = []
    for label, commit in zip(LABELS, hashes, strict=True):
        if commit not in pythons:
            print(f"installing {commits.subject_line(commit)}", flush=True)
            pythons[commit] = commits.install(commit, folder / commit[:12], python)
        build, source = interpreter_of((pythons[commit],))
        if not Path(source).is_relative_to(folder):
            raise HarnessError(f"the environment of {label} imports {source}: unset PYTHONPATH for delaymq")
        taking_part.append(Contender(label, "ours", pythons[commit], build, source))
    return taking_part


def main(words: list[str]) -> int:
    """Return 0 if all rows were measured, 1 if some failed (the others are reported), 2 if no run is possible."""
    arguments = _arguments(words)
    # The default action would skip the removal of the environments.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    build = commits.ROOT / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="compare-", dir=build) as folder:
        try:
            hashes = [commits.resolve(name) for name in arguments.commits]
            taking_part = _prepare(hashes, Path(folder), arguments.python)
            java.prepare()
            isolation.enter()
        except HarnessError as e:
            print(f"cannot compare: {e}", file=sys.stderr)
            return 2
        report = Report(
            taking_part,
            title="Commits of DelayMQ: B compared with A",
            base=LABELS[0],
            has_targets=False,
            facts={"commits": dict(zip(LABELS, hashes, strict=True))},
        )
        runner = Runner(report, alternate=not arguments.sequential)
        runner.run_all(arguments.options, taking_part, arguments.pairs)
    notes = [f"{label}: {commits.subject_line(commit)}" for label, commit in zip(LABELS, hashes, strict=True)]
    return report.conclude(RESULTS_PATH, words, notes=notes, prefix="compare-")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
