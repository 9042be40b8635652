"""Deletion of older runs: the newest runs and all unrelated files are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from delaymq_spark import cli
from delaymq_spark.command.arguments import UsageError, parse
from delaymq_spark.command.old_runs import remove_old_runs

pytestmark = pytest.mark.core


def run_of(folder: Path, name: str, written_s: int, *, file: str = "summary.json") -> Path:
    """Write the results of a run with a modification time."""
    run = folder / name
    (run / "traffic.parquet").mkdir(parents=True)
    (run / "traffic.parquet" / "part-00000.parquet").write_bytes(b"x")
    (run / file).write_text("{}")
    os.utime(run, (written_s, written_s))
    return run


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_newest_runs_of_a_group_are_kept(tmp_path: Path) -> None:
    for number in (3, 1, 4, 2):
        run_of(tmp_path, f"orders-analytics-0-{number}", number)
    # Even if the clock was set back, the run that has just ended is the newest.
    out = run_of(tmp_path, "orders-analytics-0-d1f", 0)
    removed = remove_old_runs(out, 3)
    assert [path.name for path in removed] == ["orders-analytics-0-2", "orders-analytics-0-1"]
    assert names(tmp_path) == {"orders-analytics-0-3", "orders-analytics-0-4", "orders-analytics-0-d1f"}
    remove_old_runs(out, 1)
    assert names(tmp_path) == {"orders-analytics-0-d1f"}


def test_unrelated_files_are_kept(tmp_path: Path) -> None:
    others = {"orders-analytics-1-1", "orders-analytics-0-analytics-0-1", "orders-analytics-0", "my-notes", "-1"}
    for name in others:
        run_of(tmp_path, name, 1)
    run_of(tmp_path, "orders-analytics-0-1", 1, file="notes.txt")
    (tmp_path / "orders-analytics-0-2").write_text("a file")
    (tmp_path / "orders-analytics-0-3").symlink_to(tmp_path / "my-notes")
    run_of(tmp_path, "orders-analytics-0-4", 4)
    out = run_of(tmp_path, "orders-analytics-0-5", 5)
    before = names(tmp_path)
    assert [path.name for path in remove_old_runs(out, 1)] == ["orders-analytics-0-4"]
    assert names(tmp_path) == before - {"orders-analytics-0-4"}
    assert (tmp_path / "my-notes" / "summary.json").exists()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--keep-runs", "0"], "--keep-runs is 0: use a number from 1 to 10000"),
        (["--keep-runs", "3"], "requires --out with a name that ends in a hyphen and a word"),
        (["--keep-runs", "3", "--out", "results"], "requires --out with a name"),
    ],
)
def test_invalid_keep_runs_is_reported_in_one_sentence(more: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse(["traffic", "--store", "/s", *more], 0)


def test_directory_that_cannot_be_removed_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    run_of(tmp_path, "orders-1", 1)
    out = run_of(tmp_path, "orders-2", 2)
    monkeypatch.setattr("delaymq_spark.command.old_runs.shutil.rmtree", refuse)
    wanted = parse(["traffic", "--store", "/s", "--out", str(out), "--keep-runs", "1"], 0)
    cli._remove_old_runs(wanted)
    assert capsys.readouterr().err == (
        f"delaymq-spark: some older runs next to {out} could not be removed: Permission denied\n"
    )
