"""Compare DelayMQ with NATS JetStream. bench/README.md documents the measurements and how to run them.

    python -m nats [options]

The server and the load program are compiled from Go modules on the first run.
"""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import replace

from cluster.errors import ClusterError
from harness.errors import HarnessError
from reporting import commits
from reporting.report import Report
from runner import RESULTS_PATH, Runner, add_options, options_of, pairs_of
from subjects import Contender, ours

from nats import programs
from nats.scenarios import GROUPS, MISSING_IN_OURS, SCENARIOS


def arguments_of(words: list[str]) -> argparse.Namespace:
    """Return the options; exit with an error about an invalid one."""
    parser = argparse.ArgumentParser(
        prog="nats", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser, pairs=3, groups=GROUPS)
    parser.add_argument("--against", choices=("both", "ours", "nats"), default="both", help="measure only one broker")
    parser.add_argument(
        "--python",
        metavar="PATH",
        default=sys.executable,
        help="interpreter, with delaymq installed, that runs DelayMQ",
    )
    parsed = parser.parse_args(words)
    parsed.options = options_of(parser, parsed)
    parsed.pairs = pairs_of(parser, parsed)
    return parsed


def nats_contender() -> Contender:
    """Return the column of NATS, with the version of the server."""
    version = f"NATS {programs.version()}"
    return Contender(version, "nats", version=f"nats-server {programs.version()}, JetStream with file storage")


def taking_part(python: str, against: str) -> list[Contender]:
    """Return DelayMQ and NATS, or only one of them. HarnessError if the interpreter cannot run DelayMQ."""
    found = [*(replace(each, missing=MISSING_IN_OURS) for each in ours([python])), nats_contender()]
    return [each for each in found if against in ("both", each.kind)]


def main(words: list[str]) -> int:
    """Return 0 if all rows were measured, 1 if some failed (the others are reported), 2 if the benchmark cannot run."""
    arguments = arguments_of(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        measured = taking_part(arguments.python, arguments.against)
        programs.obtain()
        base = nats_contender().label
    except (ClusterError, HarnessError) as e:
        print(f"cannot compare: {e}", file=sys.stderr)
        return 2
    report = Report(measured, title=f"DelayMQ compared with {base}", base=base, has_targets=False)
    before = commits.of_packages(measured)
    runner = Runner(report, alternate=not arguments.sequential, scenarios=SCENARIOS)
    runner.run_all(arguments.options, measured, arguments.pairs)
    facts = {"commits": commits.during(before, commits.of_packages(measured))}
    return report.conclude(RESULTS_PATH, words, prefix="nats-", facts=facts)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
