"""Damaged, foreign, newer and disappearing stores: skipped parts are reported, and the rest is analysed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delaymq_spark.cli import run
from delaymq_spark.jobs import pipeline
from delaymq_spark.planning.parts import Plan, plan
from delaymq_spark_testing.workload import Workload
from pyspark.sql import SparkSession

MESSAGES = 300


@pytest.fixture
def work(tmp_path: Path) -> Workload:
    """Some segments of one topic."""
    work = Workload(tmp_path / "store")
    for _ in range(MESSAGES):
        work.send("Whole", 0, "retained")
    work.close()
    return work


def segment_of(work: Workload, number: int) -> Path:
    return sorted((work.path / "commitlog").iterdir())[number]


def analyse(work: Workload, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any], str]:
    """Return exit code, summary and standard error."""
    arguments = ["traffic", "--store", str(work.path), "--as-of", str(work.now_ms), "--json", *more]
    code = run(arguments)
    told = capsys.readouterr()
    return code, json.loads(told.out), told.err


def truncate(work: Workload) -> tuple[Path, int]:
    """Remove the second half of a complete file."""
    file = segment_of(work, 1)
    os.truncate(file, 8_000)
    inside = [each for each in work.records if each.segment == int(file.name)]
    return file, sum(each.physical_offset + each.size > each.segment + 8_000 for each in inside)


def tear(work: Workload) -> tuple[Path, int]:
    """Overwrite three records in the middle of a file."""
    victims = [each for each in work.records if each.segment == int(segment_of(work, 1).name)][5:8]
    with open(segment_of(work, 1), "r+b") as log:
        log.seek(victims[0].physical_offset - victims[0].segment)
        log.write(b"\xff" * sum(each.size for each in victims))
    return segment_of(work, 1), len(victims)


def put_directory_in_its_place(work: Workload) -> tuple[Path, int]:
    """Replace a file by a directory, which no user can read as a file."""
    file = segment_of(work, 1)
    file.unlink()
    file.mkdir()
    return file, sum(each.segment == int(file.name) for each in work.records)


def delete(work: Workload) -> tuple[Path, int]:
    """Delete a file in the middle."""
    file = segment_of(work, 1)
    file.unlink()
    return file, sum(each.segment == int(file.name) for each in work.records)


def put_foreign_file_beside(work: Workload) -> tuple[Path, int]:
    """Add a user's own file to the folder of the log."""
    file = work.path / "commitlog/notes.txt"
    file.write_text("not a segment")
    return file, 0


def claim_newer_format(work: Workload) -> tuple[Path, int]:
    """Write the format version of a later release."""
    file = work.path / "delaymq/state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "formatVersion": 5, "minimumReader": 5}))
    return file, 0


def leave_a_restore_half_done(work: Workload) -> tuple[Path, int]:
    """Leave the store in the state of a killed `delaymq store restore`."""
    file = work.path / "delaymq/state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "unfinished": "an unfinished restore"}))
    return file, 0


def garble_offsets(work: Workload) -> tuple[Path, int]:
    """Damage a table that has no backup."""
    file = work.path / "config/consumerOffset.json"
    file.with_name("consumerOffset.json.bak").unlink(missing_ok=True)
    file.write_text("{offsetTable")
    return file, 0


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        tear,
        put_directory_in_its_place,
        delete,
        put_foreign_file_beside,
        claim_newer_format,
        leave_a_restore_half_done,
        garble_offsets,
    ],
)
def test_damage_is_reported_with_its_file_and_the_rest_is_analysed(
    spark: SparkSession, work: Workload, capsys: pytest.CaptureFixture[str], damage: Callable[..., tuple[Path, int]]
) -> None:
    file, lost = damage(work)
    code, summary, told = analyse(work, capsys)
    assert code == 1
    assert f"skipped {file}, byte " in told
    assert "Traceback" not in told
    assert summary["totals"]["messages"] == MESSAGES - lost
    assert not summary["complete"]
    assert summary["skippedCount"] == len(summary["skipped"]) >= 1
    assert summary["skippedBytes"] == sum(each["lostBytes"] for each in summary["skipped"])
    assert {each["file"] for each in summary["skipped"]} == {str(file)}
    if damage is put_directory_in_its_place:
        assert summary["skippedCount"] == 1
    assert analyse(work, capsys, "--skipped-ok")[0] == 0


def test_newer_store_format_readable_by_this_version_is_read(
    spark: SparkSession, work: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
    file = work.path / "delaymq/state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "formatVersion": 5, "minimumReader": 1}))
    code, summary, _ = analyse(work, capsys)
    assert (code, summary["complete"], summary["totals"]["messages"]) == (0, True, MESSAGES)


def test_unfinished_write_at_the_log_end_is_not_damage(
    spark: SparkSession, work: Workload, capsys: pytest.CaptureFixture[str]
) -> None:
    last = work.records[-1]
    with open(work.path / "commitlog" / f"{last.segment:020d}", "r+b") as log:
        log.seek(last.physical_offset - last.segment + last.size)
        log.write(b"\x00\x00\x01\x00half of a record")
    code, summary, _ = analyse(work, capsys)
    assert (code, summary["complete"], summary["totals"]["messages"]) == (0, True, MESSAGES)
    assert [each["atEnd"] for each in summary["skipped"]] == [True]


def test_segments_deleted_by_the_broker_after_reading_positions_are_not_damage(
    spark: SparkSession, work: Workload, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def change_and_plan(*arguments: Any) -> Plan:
        for number in (0, 1):
            (work.path / "commitlog" / f"{number * 16_384:020d}").unlink()
        return plan(*arguments)

    monkeypatch.setattr(pipeline, "plan", change_and_plan)
    code, summary, _ = analyse(work, capsys)
    assert (code, summary["complete"]) == (0, True)
    assert summary["totals"]["messages"] == sum(each.segment not in (0, 16_384) for each in work.records)


def test_store_that_disappears_while_spark_starts_is_reported_in_one_sentence(
    spark: SparkSession, work: Workload, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def change_and_plan(*arguments: Any) -> Plan:
        (work.path / "commitlog").rename(work.path / "elsewhere")
        return plan(*arguments)

    monkeypatch.setattr(pipeline, "plan", change_and_plan)
    assert run(["traffic", "--store", str(work.path)]) in (2, 3)
    told = capsys.readouterr().err.splitlines()
    assert f"{work.path} is not a store" in told[-1]
