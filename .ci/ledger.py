"""The ledger of the test suites: the cost of each suite, compared with its limit.

``ledger.py run SUITE -- COMMAND`` runs a command as a suite and records its wall and processor time. Processor time
counts all descendants, daemons and containers included: the command runs below a subreaper (prctl(2)) that waits for
every process that the command leaves behind. ``ledger.py report`` prints the table and, with ``--enforce``, fails when
a suite used more than ``tolerance`` times the processor time in its line of ledger.toml, or when a line has no run.

Machines differ in speed, and the speed of one machine varies over time. A fixed amount of work is timed before and
after each suite; if it takes longer than when the ledger was written, the limits grow by the same factor.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import stalls

LEDGER_PATH = Path(__file__).with_name("ledger.toml")
RECORDS_PATH = Path(__file__).resolve().parent.parent / "build" / "ledger"

PR_SET_CHILD_SUBREAPER = 36
REAP_TIMEOUT_S = 60.0
"""Processes that a command leaves behind exit within seconds; a daemon that keeps running must not block forever."""
STALLED_AT_LEAST_S = 600.0
"""Short suites vary more, since they share the machine with another one."""
REFERENCE_ROUNDS = 3
REFERENCE_KEYS = 200_000


@dataclass(frozen=True)
class Record:
    """One run of a suite; times in seconds, ``began_s`` since 1970, ``reference_s`` of the fixed work in the same run.

    ``stolen`` is the share of this machine's processor time that its host gave to others (steal time, proc(5)).
    """

    suite: str
    began_s: float
    wall_s: float
    processor_s: float
    reference_s: float
    stolen: float
    exit_code: int


@dataclass(frozen=True)
class Line:
    """A suite in ledger.toml, in minutes. A ``cold`` suite (a build) counts only when caches are empty.

    Suites ``in_pairs`` run two at a time, in the file's order, after the others.
    """

    processor: float
    wall: float
    cold: bool = False
    in_pairs: bool = False


@dataclass(frozen=True)
class Ledger:
    """Contents of ledger.toml."""

    tolerance: float
    stalled: float
    """Multiple of a suite's wall minutes after which it is ended."""
    reference_s: float
    warm_limit: float
    cold_limit: float
    lines: Mapping[str, Line]
    growth: Mapping[str, float]

    @classmethod
    def load(cls, path: Path = LEDGER_PATH) -> Ledger:
        """Read the file. Raises KeyError, TypeError or tomllib.TOMLDecodeError if it is malformed."""
        text = tomllib.loads(path.read_text())
        return cls(
            tolerance=text["tolerance"],
            stalled=text["stalled"],
            reference_s=text["reference_seconds"],
            warm_limit=text["limits"]["warm_minutes"],
            cold_limit=text["limits"]["cold_minutes"],
            lines={name: Line(**fields) for name, fields in text["suites"].items()},
            growth=text["growth"],
        )

    def wall_minutes(self, *, cold: bool) -> float:
        """Return the wall minutes of a whole run, by the lines of the suites."""
        alone, ends = 0.0, [0.0, 0.0]
        for line in self.lines.values():
            if line.in_pairs:
                ends[ends.index(min(ends))] += line.wall
            elif cold or not line.cold:
                alone += line.wall
        return alone + max(ends)

    def allowed_s(self, record: Record) -> float:
        """Return the processor seconds that the suite may use on a machine as slow as this one."""
        return self.lines[record.suite].processor * 60 * self.tolerance * self._slowness(record.reference_s)

    def stalled_s(self, suite: str, reference_s: float) -> float | None:
        """Return the wall seconds after which the suite counts as stalled; None for a suite without a line."""
        line = self.lines.get(suite)
        if line is None:
            return None
        return max(STALLED_AT_LEAST_S, line.wall * 60 * self.stalled * self._slowness(reference_s))

    def _slowness(self, reference_s: float) -> float:
        return max(1.0, reference_s / self.reference_s)


def problems(ledger: Ledger, records: Sequence[Record]) -> list[str]:
    """Return a sentence for each suite that exceeds its limit, has no line, or did not run."""
    found = []
    for record in records:
        if record.suite not in ledger.lines:
            found.append(f"suite {record.suite} has no line in {LEDGER_PATH.name}: add one")
        elif record.processor_s > (allowed_s := ledger.allowed_s(record)):
            found.append(
                f"suite {record.suite} used {record.processor_s / 60:.1f} processor minutes; {allowed_s / 60:.1f} are"
                f" allowed: make it cheaper, move repetitions to `make test-long`, or change {LEDGER_PATH.name}"
            )
    ran = {record.suite for record in records}
    found += [f"suite {name} did not run" for name in ledger.lines if name not in ran]
    return found


def table(ledger: Ledger, records: Sequence[Record]) -> str:
    """Return the records as text, one line per suite, with used and allowed processor time."""
    rows = [("suite", "wall min", "processor min", "ledger", "allowed", "machine", "stolen")]
    for record in records:
        line = ledger.lines.get(record.suite)
        rows.append(
            (
                record.suite + (" (cold only)" if line and line.cold else ""),
                f"{record.wall_s / 60:.2f}",
                f"{record.processor_s / 60:.2f}",
                f"{line.processor:.2f}" if line else "-",
                f"{ledger.allowed_s(record) / 60:.2f}" if line else "-",
                f"x{record.reference_s / ledger.reference_s:.2f}",
                f"{record.stolen:.0%}",
            )
        )
    total_processor_s = sum(each.processor_s for each in records)
    rows.append(("total", f"{_covered_s(records) / 60:.2f}", f"{total_processor_s / 60:.2f}", "", "", "", ""))
    width = max(len(row[0]) for row in rows)
    return "\n".join(row[0].ljust(width) + "".join(f"{cell:>15}" for cell in row[1:]) for row in rows)


def _covered_s(records: Sequence[Record]) -> float:
    """Return the seconds in which at least one suite ran: some run concurrently."""
    covered_s, until_s = 0.0, 0.0
    for each in sorted(records, key=lambda record: record.began_s):
        end_s = each.began_s + each.wall_s
        covered_s += max(0.0, end_s - max(each.began_s, until_s))
        until_s = max(until_s, end_s)
    return covered_s


class Usage(NamedTuple):
    """Time used by a command and all its descendants, in seconds."""

    wall_s: float
    processor_s: float
    exit_code: int
    """128 plus the signal's number if a signal ended it, as in a shell."""


def used_by(command: Sequence[str], stalled_s: float | None = None) -> Usage:
    """Run the command to its end, at most about ``stalled_s`` seconds. Raises OSError if it cannot be run. The caller
    must have no other children.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began, used_before_s = time.monotonic(), _descendants_s()
    # Ctrl-C reaches the command through the terminal's process group; this process survives to record the usage.
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        signal.signal(signal.SIGTERM, lambda *_: os.kill(process.pid, signal.SIGTERM))
        watch = stalls.Watch(process.pid, stalled_s) if stalled_s else None
        code = os.waitstatus_to_exitcode(_wait(process.pid))
        if watch:
            watch.cancel()
        process.returncode = code  # Popen must not wait for it again
        wall_s = time.monotonic() - began
        _wait_for_orphans()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, previous)
    return Usage(wall_s, _descendants_s() - used_before_s, code if code >= 0 else 128 - code)


def _wait(command_pid: int) -> int:
    """Return the command's wait status; reap orphans meanwhile, since a zombie would look alive to its killer."""
    while True:
        pid, status = os.wait()
        if pid == command_pid:
            return status


def _wait_for_orphans() -> None:
    """Wait for processes left behind: the kernel counts the time of a process only after a wait."""
    deadline = time.monotonic() + REAP_TIMEOUT_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.05)


def reference_seconds() -> float:
    """Return the processor seconds of a fixed amount of Python work on more memory than fits in a processor's cache.

    The result is the minimum of a few rounds, since other processes lengthen some of them.
    """
    return min(_reference_round() for _ in range(REFERENCE_ROUNDS))


def _reference_round() -> float:
    shuffled = list(range(REFERENCE_KEYS))
    random.Random(1).shuffle(shuffled)
    began = time.process_time()
    table = {key: key.to_bytes(8, "big") for key in shuffled}
    total = 0
    for key in range(REFERENCE_KEYS):
        total += int.from_bytes(table[key], "big") + len(str(key))
    assert total
    return time.process_time() - began


def _descendants_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _ticks() -> tuple[int, int]:
    """Return the ticks of all processors since boot: those that the host gave to other guests, and the total."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    # The eighth number is steal time; the two after it are already included in the first two.
    return numbers[7], sum(numbers[:8])


def _load_records(folder: Path) -> list[Record]:
    paths = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    return [Record(**json.loads(path.read_text())) for path in paths]


def _run(arguments: argparse.Namespace) -> int:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        print("usage: ledger.py run SUITE -- COMMAND ...", file=sys.stderr)
        return 2
    before_s, began_s, ticks_before = reference_seconds(), time.time(), _ticks()
    try:
        usage = used_by(command, Ledger.load().stalled_s(arguments.suite, before_s))
    except OSError as error:
        print(f"ledger: {command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        return 127
    stolen, ticks = (after - before for after, before in zip(_ticks(), ticks_before, strict=True))
    record = Record(
        arguments.suite,
        began_s=began_s,
        reference_s=(before_s + reference_seconds()) / 2,
        stolen=stolen / max(ticks, 1),
        **usage._asdict(),
    )
    arguments.records.mkdir(parents=True, exist_ok=True)
    (arguments.records / f"{record.suite}.json").write_text(json.dumps(asdict(record)))
    print(f"{record.suite}: {record.wall_s / 60:.1f} min, {record.processor_s / 60:.1f} processor min", flush=True)
    return record.exit_code


def _report(arguments: argparse.Namespace) -> int:
    ledger, records = Ledger.load(), _load_records(arguments.records)
    print(table(ledger, records))
    if not arguments.enforce:
        return 0
    found = problems(ledger, records)
    for sentence in found:
        print(f"FAILED: {sentence}")
    return 1 if found else 0


def _reset(arguments: argparse.Namespace) -> int:
    for path in arguments.records.glob("*.json"):
        path.unlink()
    return 0


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure and report the cost of the test suites.")
    parser.add_argument("--records", type=Path, default=RECORDS_PATH, help=f"folder of the records ({RECORDS_PATH})")
    commands: Any = parser.add_subparsers(dest="verb", required=True)
    running = commands.add_parser("run", help="run a command as a suite and record its wall and processor time")
    running.add_argument("suite")
    running.add_argument("command", nargs=argparse.REMAINDER)
    running.set_defaults(do=_run)
    reporting = commands.add_parser("report", help="print the table of the recorded suites")
    reporting.add_argument("--enforce", action="store_true", help="fail if a suite exceeds its limit or is missing")
    reporting.set_defaults(do=_report)
    commands.add_parser("reset", help="delete the records of earlier runs").set_defaults(do=_reset)
    arguments = parser.parse_args(words)
    code: int = arguments.do(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
