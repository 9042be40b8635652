"""Compaction plans for damaged stores, and safe output of arbitrary names and times."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from delaymq_spark.cli import run
from delaymq_spark.report.text import lines
from delaymq_spark.source.columns import _time
from delaymq_spark.store.segments import list_segments
from delaymq_spark_testing.summaries import full_summary
from delaymq_spark_testing.workload import Workload
from pyspark.sql import SparkSession
from pyspark.sql.types import TimestampType

MONTH_MS = 30 * 86_400_000
TWO_DAYS_MS = 2 * 86_400_000


def test_partly_read_segment_is_neither_dropped_nor_rewritten(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Workload(tmp_path / "store")
    for _ in range(300):
        work.send("Old", 0, "expired")
    work.close()
    files = sorted((work.path / "commitlog").iterdir())
    os.truncate(files[1], 8_000)
    arguments = ["compaction", "--store", str(work.path), "--as-of", str(work.now_ms + MONTH_MS), "--json"]
    assert run(arguments) == 1
    found = json.loads(capsys.readouterr().out)["compaction"]
    actions = {each["segment"]: each["action"] for each in found["plan"]}
    first, cut, *others = sorted(actions)
    assert cut == int(files[1].name)
    assert (actions[first], actions[cut]) == ("drop", "keep")
    assert actions[others[-1]] == "active"
    reclaimed = {each["segment"]: each["reclaimedBytes"] for each in found["plan"]}
    assert reclaimed[cut] == 0
    assert found["reclaimableBytes"] == sum(reclaimed.values()) > 0


def test_file_name_in_no_encoding_can_be_written_to_a_summary(tmp_path: Path) -> None:
    folder = tmp_path / "commitlog"
    folder.mkdir()
    (Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe"))).write_bytes(b"x")
    (stray,) = list_segments(str(tmp_path)).skipped
    assert json.dumps(stray.file, ensure_ascii=False).encode().decode().endswith('/\ufffd\ufffd"')


def test_control_characters_in_names_do_not_reach_the_terminal() -> None:
    summary = full_summary()
    summary["store"] = "http://b\x1b[2J"
    summary["traffic"]["topTopics"][0]["topic"] = "T\x1b]0;owned\x07\nexit code 0"
    told = lines(summary, None)
    assert all(line.isprintable() for line in told)
    assert any("T\ufffd]0;owned\ufffd\ufffdexit code 0" in line for line in told)


@pytest.fixture(params=["Asia/Tokyo", "America/New_York", "UTC"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("zone")
def test_extreme_producer_timestamps_can_be_shown_in_any_time_zone() -> None:
    import numpy as np

    first, last = -62_135_596_800_000, 253_402_300_799_999
    shown = 0
    for ms in (first, last, first + TWO_DAYS_MS, last - TWO_DAYS_MS, 0):
        micros = _time(np.array([ms]))[0].cast("int64").as_py()
        if micros is not None:
            assert round(TimestampType().fromInternal(micros).timestamp() * 1000) == ms
            shown += 1
    assert shown == 3


def test_records_that_settle_skipped_records_are_live(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Workload(tmp_path / "store")
    entry = work.delay(3, "Orders", 0)
    work.drop(entry)
    half = work.half("Orders", 0)
    work.end(half, commit=False)
    work.close()
    with open(work.path / "commitlog" / f"{0:020d}", "r+b") as log:
        for each in (entry, half):
            log.seek(each.physical_offset)
            log.write(b"\xff" * each.size)
    assert run(["compaction", "--store", str(work.path), "--as-of", str(work.now_ms), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["compaction"]
    assert {each["reason"]: each["messages"] for each in found["live"]} == {"mark_needed": 1, "operation_needed": 1}
    assert found["dead"] == []
