"""Analysis of a running broker: the same results as from the folder, with the broker's levels and retention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from delaymq_spark import cli
from delaymq_spark.cli import run
from delaymq_spark.command.arguments import parse
from delaymq_spark_testing.running_broker import running_broker, write_store
from pyspark.sql import SparkSession

COUNT = 900
FIRST_STORED_MS = 1_700_000_000_000
"""Store time of the first message, see write_store."""
TWO_HOURS_MS = 7_200_000
LEVELS = "3s 9s"


def compaction(store: str, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    as_of = str(FIRST_STORED_MS + TWO_HOURS_MS)
    assert run(["compaction", "--store", store, "--as-of", as_of, "--json", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_running_broker_yields_the_results_of_its_folder_with_its_own_retention(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DELAYMQ_HTTP_TOKEN", raising=False)
    write_store(tmp_path / "store", COUNT)
    with running_broker(tmp_path / "store", DELAYMQ_FILE_RESERVED_TIME="1") as broker:
        over_http = compaction(broker.url, capsys)
        in_folder = compaction(str(broker.store), capsys, "--retention-hours", "1")
    assert (over_http["store"], over_http["brokerName"]) == (broker.url, "broker-a")
    assert in_folder["brokerName"] is None
    assert over_http["totals"]["messages"] == COUNT
    assert [each["reason"] for each in over_http["compaction"]["dead"]] == ["expired"]
    for section in ("compaction", "totals", "storeId", "complete"):
        assert _without_files(over_http[section]) == _without_files(in_folder[section])


def test_levels_and_retention_default_to_those_of_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DELAYMQ_HTTP_TOKEN", raising=False)
    write_store(tmp_path / "store", 3)
    with running_broker(tmp_path / "store", DELAYMQ_MESSAGE_DELAY_LEVEL=LEVELS) as broker:
        arguments = ["delay", "--store", broker.url]
        started = cli._Started(0)
        options = cli._options(parse(arguments, 0), started)
        assert (options.delay_levels, options.retention_hours) == (LEVELS, 72)
        assert (started.broker_name, options.broker_name) == ("broker-a", "broker-a")
        given = cli._options(parse([*arguments, "--levels", "1s", "--retention-hours", "5"], 0), started)
        assert (given.delay_levels, given.retention_hours) == ("1s", 5)


def test_unreachable_broker_is_reported_in_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delaymq_spark.store.remote.FIRST_PATIENCE_S", 0.2)
    assert run(["delay", "--store", "http://127.0.0.1:1"]) == 2
    told = capsys.readouterr().err
    assert "127.0.0.1:1" in told
    assert told.count("\n") == 1


def _without_files(section: Any) -> Any:
    """Remove `fileBytes`: for the last segment, a broker states the readable size, and the folder the file size."""
    if isinstance(section, dict):
        return {name: _without_files(value) for name, value in section.items() if name != "fileBytes"}
    return [_without_files(each) for each in section] if isinstance(section, list) else section
