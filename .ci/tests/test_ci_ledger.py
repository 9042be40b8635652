"""The ledger: measurement of suites, and detection of those that exceed their limits."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ledger as books
import pytest
from ledger import Ledger, Line, Record, Usage, problems, table
from stalls import Watch

LEDGER = Ledger(
    tolerance=1.5,
    stalled=2.5,
    reference_s=0.3,
    warm_limit=35,
    cold_limit=55,
    lines={"unit": Line(processor=10, wall=6), "cluster": Line(processor=20, wall=12, cold=True)},
    growth={"timeline": 3},
)
BURN = "import time\nwhile time.process_time() < {seconds}: pass"
START_S = 1.0
"""Tolerance: processor time is counted in clock ticks, and the start of Python takes about 20 ms."""


def record(
    suite: str = "unit", *, minutes: float = 9.0, began_s: float = 0.0, wall_s: float = 60.0, reference_s: float = 0.3
) -> Record:
    return Record(
        suite,
        began_s=began_s,
        wall_s=wall_s,
        processor_s=minutes * 60,
        reference_s=reference_s,
        stolen=0.25,
        exit_code=0,
    )


def test_suite_within_its_limit_is_accepted() -> None:
    assert problems(LEDGER, [record(minutes=14.9), record("cluster")]) == []


def test_suite_above_1_5_times_its_ledger_line_is_reported_with_both_figures() -> None:
    (sentence,) = problems(LEDGER, [record(minutes=15.2), record("cluster")])
    assert sentence.startswith("suite unit used 15.2 processor minutes; 15.0 are allowed")


def test_slower_machine_raises_the_limit_and_faster_one_does_not_lower_it() -> None:
    assert problems(LEDGER, [record(minutes=28, reference_s=0.6), record("cluster")]) == []
    assert problems(LEDGER, [record(minutes=14.9, reference_s=0.1), record("cluster")]) == []


def test_missing_suite_and_suite_without_ledger_line_are_reported() -> None:
    assert problems(LEDGER, [record(), record("new")]) == [
        "suite new has no line in ledger.toml: add one",
        "suite cluster did not run",
    ]


def test_table_has_a_row_per_suite_and_the_totals() -> None:
    lines = table(LEDGER, [record(), record("cluster", began_s=600, minutes=1)]).splitlines()
    assert [line.split()[0] for line in lines] == ["suite", "unit", "cluster", "total"]
    assert lines[1].split()[-2:] == ["x1.00", "25%"]
    assert lines[-1].split() == ["total", "2.00", "10.00"]


def test_overlapping_minutes_of_suites_count_once() -> None:
    shown = [record(began_s=60, wall_s=600), record("cluster", began_s=120, wall_s=120), record(began_s=900, wall_s=60)]
    assert table(LEDGER, shown).splitlines()[-1].split()[:2] == ["total", "11.00"]


def test_next_suite_in_pairs_starts_when_one_ends() -> None:
    """The suites run from 0 to 7, from 0 to 3, from 3 to 5, and from 5 to 9."""
    walls = {"first": 7, "second": 3, "third": 2, "fourth": 4}
    paired = {name: Line(9, wall, in_pairs=True) for name, wall in walls.items()}
    assert replace(LEDGER, lines={**LEDGER.lines, **paired}).wall_minutes(cold=False) == 6 + 9
    assert LEDGER.wall_minutes(cold=True) == 6 + 12


def used_by(*command: str) -> Usage:
    """Return the usage, measured in a process without other children."""
    program = "import sys, ledger; print(*ledger.used_by(sys.argv[1:]))"
    folder = Path(books.__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", program, *command], cwd=folder, capture_output=True, text=True, check=True
    )
    wall_s, processor_s, exit_code = done.stdout.split()
    return Usage(float(wall_s), float(processor_s), int(exit_code))


def test_processor_time_of_a_process_that_outlives_the_command_is_counted() -> None:
    """The process is started like a daemon, and gets a new parent when the command ends."""
    orphan = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {BURN.format(seconds=0.5)!r}])"
    used = used_by(sys.executable, "-c", orphan)
    assert used.exit_code == 0
    assert 0.5 <= used.processor_s < 0.5 + START_S


def test_orphan_that_exits_before_the_command_leaves_no_zombie() -> None:
    """A program that kills a daemon checks whether it still exists."""
    command = "orphan=$(sh -c 'sleep 0.1 >&- & echo $!'); sleep 1; ! kill -0 $orphan 2>&-"
    assert used_by("sh", "-c", command).exit_code == 0


def test_sleeping_command_uses_wall_time_only() -> None:
    used = used_by("sleep", "0.3")
    assert used.wall_s >= 0.3
    assert used.processor_s < 0.2


def test_exit_code_of_the_command_is_returned() -> None:
    assert used_by("false").exit_code == 1
    assert used_by("sh", "-c", "kill -9 $$").exit_code == 128 + 9


def test_command_that_cannot_be_run_is_reported_without_a_stack_trace(tmp_path: Path) -> None:
    command = [sys.executable, books.__file__, "--records", str(tmp_path), "run", "unit", "--", "/no/such/program"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert done.stderr == "ledger: /no/such/program cannot be run: No such file or directory\n"


def test_suite_counts_as_stalled_after_a_multiple_of_its_wall_minutes() -> None:
    assert LEDGER.stalled_s("cluster", 0.3) == 12 * 60 * 2.5
    assert LEDGER.stalled_s("cluster", 0.6) == 12 * 60 * 5
    assert LEDGER.stalled_s("unit", 0.3) == 15 * 60
    assert replace(LEDGER, stalled=1).stalled_s("unit", 0.3) == 10 * 60
    assert LEDGER.stalled_s("new", 0.3) is None


def test_stalled_process_prints_where_its_children_are_blocked_and_is_ended() -> None:
    child = "def stuck(): time.sleep(60)\nimport faulthandler, time\nfaulthandler.enable()\nprint(flush=True)\nstuck()"
    parent = (
        "import signal, subprocess, sys; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        f" subprocess.run([sys.executable, '-c', {child!r}]); print('child ended'); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", parent],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        watch = Watch(process.pid, 0.05, grace_s=0.2)
        try:
            output = process.stdout.read()
            assert process.wait(10) == -signal.SIGABRT
        finally:
            process.kill()
            watch.cancel()
    assert "in stuck" in output


def test_ledger_leaves_room_for_planned_growth() -> None:
    """Warm suites fit the limit, and so do cold ones; with the planned growth, the limits are 55 and 75 minutes."""
    real = Ledger.load()
    growth = sum(real.growth.values())
    assert real.wall_minutes(cold=False) <= real.warm_limit
    assert real.wall_minutes(cold=True) <= real.cold_limit
    assert real.warm_limit + growth == pytest.approx(55)
    assert real.cold_limit + growth == pytest.approx(75)
