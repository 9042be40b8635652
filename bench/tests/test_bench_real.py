"""Versions of RocketMQ in the comparison: labels, rows that a version lacks, and deliveries from the store."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import rows
import scenarios
from crash.load import LoadProgram
from delays import BURST, OTHER, burst_figures
from harness.errors import HarnessError
from options import Options
from reporting.report import Report
from rows import Sample
from runner import Runner
from subjects import Contender, Times, real_contender

OURS = Contender("ours", "ours")
REAL = Contender("real 5.3.3", "real", missing={"second": "it has no second row"})
FIRST, SECOND = rows.rate_row("sync1", "first", 1), rows.rate_row("sync8", "second", 1)
OPTIONS = Options(groups=frozenset({"sync1", "sync8"}), sizes=(1,), quick=True, pending=1000)


def test_label_states_the_version_if_it_is_that_of_all_rows() -> None:
    assert real_contender("4.9", "").label == "real"
    assert real_contender("4.9", "").version == "RocketMQ 4.9.7; in rows of timed messages, RocketMQ 5.3.3"
    assert real_contender("5.3", "").label == "real 5.3.3"
    assert real_contender("5.3", "").version == "RocketMQ 5.3.3"


def test_missing_rows_are_those_of_scenarios() -> None:
    assert set(real_contender("5.3", "").missing) <= set(scenarios.SCENARIOS)
    assert set(real_contender("4.9", "").missing) <= set(scenarios.SCENARIOS)


class _NoProgram:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def test_scenario_that_a_broker_lacks_is_reported_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, str]] = []

    def scenario(row: rows.Row) -> scenarios.Scenario:
        def run(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
            ran.append((row.group, contender.label))
            yield [Sample(row, 5.0)]

        return run

    monkeypatch.setattr("runner.LoadProgram", _NoProgram)
    report = Report([OURS, REAL], title="t", base="real 5.3.3")
    known = {
        "first": (scenario(FIRST), frozenset({"sync1"})),
        "second": (scenario(SECOND), frozenset({"sync8", "x"})),
    }
    Runner(report, alternate=True, scenarios=known).run_all(OPTIONS, [OURS, REAL], 2)
    assert sorted(ran) == sorted([("sync1", "ours"), ("sync1", "real 5.3.3"), ("sync8", "ours")] * 2)
    content = report.content([])
    assert content["no_such_rows"] == [{"group": "sync8", "contender": "real 5.3.3", "reason": "it has no second row"}]
    assert content["failures"] == []
    assert "| second, 1 B | messages/s | 5.00 | 5.00–5.00 | no such row |" in report.markdown()


def test_defect_in_a_scenario_fails_its_row_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
        yield []
        raise KeyError("a defect")

    def works(options: Options, contender: Contender, load: LoadProgram) -> Iterator[list[Sample]]:
        yield [Sample(SECOND, 5.0)]

    monkeypatch.setattr("runner.LoadProgram", _NoProgram)
    report = Report([OURS], title="t", base="real 5.3.3")
    known = {"first": (fails, frozenset({"sync1"})), "second": (works, frozenset({"sync8"}))}
    Runner(report, alternate=True, scenarios=known).run_all(OPTIONS, [OURS], 1)
    (failure,) = report.failures
    assert failure.startswith("pair 1, first, ours: Traceback")
    assert "a defect" in failure
    assert "| second, 1 B | messages/s | 5.00 |" in report.markdown()


def test_burst_is_measured_from_the_due_time_to_the_last_copy() -> None:
    times = {BURST: [(1000.0, 1250.0), (1000.0, 3000.0)], OTHER: [(1000.0, 1010.0), (2000.0, 2500.0), (3001.0, 9000.0)]}
    assert burst_figures(times, 1000, 2) == (2.0, 1.75, 500.0, 500.0, 500.0)


@pytest.mark.parametrize("stored", [[(1000.0, 999.5), (1000.0, 1001.0)], [(1000.0, 1001.0)]])
def test_early_or_missing_copy_of_a_burst_is_an_error(stored: Times) -> None:
    with pytest.raises(HarnessError, match="expected 2, all at or after the due time"):
        burst_figures({BURST: stored, OTHER: [(1000.0, 1001.0)]}, 1000, 2)
