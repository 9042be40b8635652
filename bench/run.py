"""Compare DelayMQ with RocketMQ's broker. bench/README.md documents the measurements and how to run them."""

from __future__ import annotations

import argparse
import sys

from harness import isolation
from harness.errors import HarnessError
from reporting import commits
from reporting.report import Report
from runner import RESULTS_PATH, Runner, add_options, add_pending, options_of, pairs_of
from subjects import contenders, real_contender

MAX_PYTHONS = 4
"""Each additional interpreter makes a run longer by half."""


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run.py", description=__doc__)
    add_options(parser, pairs=3)
    add_pending(parser)
    parser.add_argument(
        "--real",
        choices=("4.9", "5.3"),
        default="4.9",
        help="RocketMQ's version: 4.9.7, with 5.3.3 in the rows of timed messages (default), or 5.3.3 in all rows",
    )
    parser.add_argument("--against", choices=("both", "ours", "real"), default="both", help="measure only one broker")
    parser.add_argument(
        "--python",
        metavar="PATH",
        action="append",
        help="interpreter, with delaymq installed, that runs DelayMQ's broker and client (default: this interpreter);"
        " if repeated, DelayMQ is measured with each interpreter",
    )
    parser.add_argument(
        "--also-plain", action="store_true", help="measure DelayMQ without compiled kernels, too, on each interpreter"
    )
    parser.add_argument("--uvloop", action="store_true", help="run DelayMQ's client on uvloop (rows of the client)")
    parsed = parser.parse_args(words)
    parsed.options = options_of(parser, parsed)
    parsed.pairs = pairs_of(parser, parsed)
    parsed.python = parsed.python or [sys.executable]
    if len(parsed.python) > MAX_PYTHONS:
        parser.error(f"--python was given {len(parsed.python)} times: use it at most {MAX_PYTHONS} times")
    return parsed


def main(words: list[str]) -> int:
    """Return 0 if all rows were measured, 1 if some failed (the others are reported), 2 if the benchmark cannot run."""
    arguments = _arguments(words)
    if not isolation.is_isolated():
        print(
            "RocketMQ's broker binds all interfaces: use `make bench`, or run under `python -m harness.isolated -- …`"
        )
        return 2
    try:
        taking_part = contenders(arguments.python, arguments.against, arguments.real, also_plain=arguments.also_plain)
    except HarnessError as e:
        print(f"--python: {e}")
        return 2
    real = real_contender(arguments.real, arguments.python[0])
    report = Report(taking_part, title=f"DelayMQ compared with {real.version}", base=real.label)
    before = commits.of_packages(taking_part)
    runner = Runner(report, alternate=not arguments.sequential)
    runner.run_all(arguments.options, taking_part, arguments.pairs)
    facts = {"commits": commits.during(before, commits.of_packages(taking_part))}
    prefix = "" if arguments.real == "4.9" else f"real-{arguments.real}-"
    return report.conclude(RESULTS_PATH, words, prefix=prefix, facts=facts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
