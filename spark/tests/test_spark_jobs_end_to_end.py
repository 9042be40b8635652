"""The command from arguments to files: known workloads, `store inspect`, damage and invalid usage."""

from __future__ import annotations

import json
import re
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from delaymq.store.tools.inspect import inspect
from delaymq_spark.cli import run
from delaymq_spark.jobs.compaction import DEAD_REASONS
from delaymq_spark_testing.workload import Workload, mixed_workload
from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parents[2] / "broker_image/tests/golden"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return mixed_workload(tmp_path_factory.mktemp("mixed") / "store", seed=5)


@pytest.fixture(scope="module")
def reported(spark: SparkSession, work: Workload, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    out = tmp_path_factory.mktemp("out") / "new"
    before = files_of(work.path)
    code = run(
        ["report", "--store", str(work.path), "--out", str(out), "--as-of", str(work.now_ms), "--keyed-topics", "State"]
    )
    assert files_of(work.path) == before, "a store is read-only"
    return code, out


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def summary_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


def test_summary_is_exact_to_the_byte(work: Workload, reported: tuple[int, Path]) -> None:
    code, out = reported
    assert code == 0
    summary = summary_of(out)
    assert (summary["formatVersion"], summary["complete"], summary["storeId"]) == (1, True, work.store_id)
    assert summary["totals"]["messages"] == len(work.records)
    assert summary["totals"]["bytes"] == sum(record.size for record in work.records)
    compaction = summary["compaction"]
    truth = {reason: size for (reason,), size in work.bytes_by("reason").items()}
    assert {each["reason"]: each["bytes"] for each in compaction["dead"] + compaction["live"]} == truth
    assert compaction["deadBytes"] == sum(size for reason, size in truth.items() if reason in DEAD_REASONS)
    assert compaction["liveBytes"] + compaction["deadBytes"] == summary["totals"]["bytes"]
    planned = {each["segment"] for each in compaction["plan"] if each["order"] is not None}
    assert compaction["reclaimableBytes"] == sum(
        record.size for record in work.records if record.segment in planned and record.reason in DEAD_REASONS
    )
    assert planned


def test_delays_of_the_summary_match_the_workload(work: Workload, reported: tuple[int, Path]) -> None:
    delay = summary_of(reported[1])["delay"]
    entries = [record for record in work.records if record.due_ms]
    fates = Counter(record.reason for record in entries)
    found = {name: delay[name] for name in ("delivered", "pending", "withdrawn", "lost")}
    assert found == {name: fates[name] for name in found}
    assert delay["worstLatenessMs"] == max(e.copies[0].store_ms - e.due_ms for e in entries if e.copies)
    assert delay["overdue"] == sum(e.reason == "pending" and e.due_ms <= work.now_ms for e in entries)


def test_parquet_files_add_up_to_the_store(spark: SparkSession, work: Workload, reported: tuple[int, Path]) -> None:
    out = reported[1]
    for name in ("compaction", "traffic"):
        sums = spark.read.parquet(str(out / f"{name}.parquet")).selectExpr("sum(messages)", "sum(bytes)").collect()[0]
        assert tuple(sums) == (len(work.records), sum(record.size for record in work.records))
    delayed = spark.read.parquet(str(out / "delay.parquet"))
    assert delayed.count() == sum(record.due_ms > 0 for record in work.records)


def test_report_has_no_external_resources(reported: tuple[int, Path]) -> None:
    page = (reported[1] / "report.html").read_text()
    assert page.count("<svg") >= 8
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', page) == []
    assert "url(http" not in page
    assert "@import" not in page


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_totals_of_a_store_of_the_real_broker_equal_those_of_inspect(
    spark: SparkSession, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    with tarfile.open(GOLDEN / f"store-{name}.tar.gz") as archive:
        archive.extractall(store, filter="data")
    assert run(["compaction", "--store", str(store), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    counted = inspect(store)
    assert summary["totals"]["messages"] == counted.records
    assert summary["totals"]["bytes"] == sum(segment.record_bytes for segment in counted.segments)
    assert summary["totals"]["topics"] == len(counted.topics)
    assert summary["storeId"] is None
    assert run(["delay", "--store", str(store), "--json"]) == 0
    delay = json.loads(capsys.readouterr().out)["delay"]
    assert (delay["lost"], delay["duplicates"], delay["early"]) == (0, 0, 0)
    golden = next(each for each in delay["byTopic"] if each["topic"] == "GoldenDelay")
    assert (golden["delivered"], golden["pending"]) == (6, 6)


def test_damaged_part_is_reported_and_the_rest_is_analysed(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Workload(tmp_path / "store")
    for _ in range(300):
        work.send("Torn", 0, "retained", keys="<b>$\\frac")
    work.close()
    victim = work.records[20]
    file = tmp_path / "store/commitlog" / f"{victim.segment:020d}"
    with open(file, "r+b") as log:
        log.seek(victim.physical_offset - victim.segment)
        log.write(b"\xff" * victim.size)
    out = tmp_path / "out"
    assert run(["report", "--store", str(work.path), "--out", str(out), "--as-of", str(work.now_ms)]) == 1
    told = capsys.readouterr().err
    assert f"{file}, byte {victim.physical_offset}" in told
    summary = summary_of(out)
    assert summary["totals"]["messages"] == 299
    assert summary["skipped"][0]["lostBytes"] == victim.size
    page = (out / "report.html").read_text()
    assert "<b>$" not in page
    assert "&lt;b&gt;$" in page


def test_empty_store_has_a_report_and_a_second_run_replaces_it(spark: SparkSession, tmp_path: Path) -> None:
    Workload(tmp_path / "store").close()
    out = tmp_path / "out"
    for _ in range(2):
        assert run(["report", "--store", str(tmp_path / "store"), "--out", str(out)]) == 0
    assert summary_of(out)["totals"]["messages"] == 0
    assert (out / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "JOB"),
        (["report"], "--store"),
        (["compact", "--store", "{}"], "compact"),
        (["report", "--store", "{}/nowhere"], "not a store"),
        (["report", "--store", "{}", "--out", "{}/out"], "which is read-only"),
        (["delay", "--store", "{}", "--as-of", "tomorrow"], "--as-of"),
        (["delay", "--store", "{}", "--levels", "1x"], "--levels"),
        (["delay", "--store", "{}", "--min-dead-ratio", "2"], "--min-dead-ratio"),
    ],
)
def test_invalid_usage_is_reported_in_one_sentence_before_spark_starts(
    tmp_path: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "commitlog").mkdir()
    assert run([word.format(tmp_path) for word in arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
