"""Detection of suites and modules that did not run, and of skipped tests."""

from pathlib import Path

import pytest
from suites import NEEDS_CARGO, SUITES, modules, problems

CASE = '<testcase classname="{name}" name="test_one">{inside}</testcase>'


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    for suite in SUITES:
        write(tmp_path, suite, CASE.format(name=f"tests.test_{suite}", inside=""))
    return tmp_path


def write(folder: Path, suite: str, cases: str) -> None:
    (folder / f"{suite}.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")


def test_complete_reports_have_no_problems(reports: Path) -> None:
    assert problems(reports, [f"tests.test_{suite}" for suite in SUITES]) == []


def test_missing_report_is_a_problem(reports: Path) -> None:
    (reports / "kind.xml").unlink()
    assert problems(reports, []) == [f"suite kind did not run: {reports / 'kind.xml'} is missing"]


def test_skipped_test_is_a_problem(reports: Path) -> None:
    write(reports, "unit", CASE.format(name="tests.test_unit", inside='<skipped message="no JDK"/>'))
    assert problems(reports, []) == ["tests.test_unit.test_one was skipped: no JDK"]


@pytest.mark.parametrize(("cargo", "is_fetched", "count"), [(None, True, 0), ("/cargo", True, 1), ("/cargo", False, 0)])
def test_tests_of_kernels_may_be_skipped_only_where_no_build_is_possible(
    reports: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cargo: str | None, is_fetched: bool, count: int
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: cargo)
    monkeypatch.setattr("suites.NOT_FETCHED", tmp_path / "not-fetched")
    if not is_fetched:
        (tmp_path / "not-fetched").touch()
    write(reports, "unit", CASE.format(name="tests.test_unit", inside=f'<skipped message="{NEEDS_CARGO}"/>'))
    assert len(problems(reports, [])) == count


def test_empty_suite_is_a_problem(reports: Path) -> None:
    write(reports, "unit", "")
    assert problems(reports, []) == ["suite unit ran no test"]


def test_module_without_any_test_run_is_a_problem(reports: Path) -> None:
    assert problems(reports, ["tests.test_un"]) == ["no test of tests.test_un ran"]


def test_modules_of_the_checkout_have_the_names_used_in_reports() -> None:
    found = modules()
    assert {".ci.tests.test_ci_suites", "e2e.crash.test_crash_kill", "tests.test_spark_scan"} <= found
