"""Exit codes and messages of the command: publishing, signals, missing Java, a full disk, a failed JVM."""

from __future__ import annotations

import base64
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from delaymq_spark import cli
from delaymq_spark.command import problems
from delaymq_spark.command.publish import ApiServer, PublishError
from delaymq_spark.jobs import pipeline, running
from delaymq_spark.store.positions import Positions
from delaymq_spark_testing.aged_workload import aged_workload
from delaymq_spark_testing.api_server import FakeApiServer
from delaymq_spark_testing.workload import Workload
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

TARGET = "configmap/shop/run-1"
JAVA_NEEDED = "delaymq-spark: Spark did not start: install Java 17 or 21, and put java on the PATH or set JAVA_HOME"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    work = Workload(tmp_path / "store")
    for _ in range(50):
        work.send("Small", 0, "retained")
    work.close()
    return work.path


def published(server: FakeApiServer) -> dict[str, Any]:
    """Return the last status.json."""
    found: dict[str, Any] = json.loads(server.requests[-1].patch["data"]["status.json"])
    return found


def test_report_is_published_with_the_figures_of_the_store_and_not_written_to_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = aged_workload(tmp_path / "store", seed=5)
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    account = tmp_path / "account"
    account.mkdir()
    with FakeApiServer(account) as server:
        arguments = ["report", "--store", str(work.path), "--as-of", str(work.now_ms), "--keyed-topics", "State"]
        assert cli.run([*arguments, "--publish", TARGET], cluster=lambda: server.address) == 0
    assert set(tmp_path.iterdir()) == before | {account}
    status = published(server)
    binary = server.requests[-1].patch["binaryData"]
    assert gzip.decompress(base64.b64decode(binary["report.html.gz"])).startswith(b"<!doctype html>")
    summary = json.loads(gzip.decompress(base64.b64decode(binary["summary.json.gz"])))
    fates = {name: sum(each.reason == name and each.due_ms > 0 for each in work.records) for name in
             ("pending", "delivered", "lost")}  # fmt: skip
    assert {name: status[name] for name in fates} == fates
    assert (status["messages"], status["totalBytes"]) == (len(work.records), sum(each.size for each in work.records))
    assert status["liveBytes"] + status["deadBytes"] == status["totalBytes"]
    assert status["reclaimableBytes"] == summary["compaction"]["reclaimableBytes"] > 0
    assert (status["complete"], status["error"], status["storeId"]) == (True, None, work.store_id)
    duplicates = sum(max(0, len(each.copies) - 1) for each in work.records)
    assert (status["duplicates"], status["asOfMs"]) == (duplicates, work.now_ms)


def test_missing_store_is_published_as_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeApiServer(tmp_path) as server:
        arguments = ["report", "--store", str(tmp_path / "none"), "--publish", TARGET]
        assert cli.run(arguments, cluster=lambda: server.address) == 2
    status = published(server)
    assert "is not a store" in status["error"]
    assert status["messages"] is None
    assert status["error"] in capsys.readouterr().err


def test_invalid_arguments_and_missing_pod_fail_before_publishing(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_pod() -> ApiServer:
        raise PublishError("--publish works only in a pod")

    assert cli.run(["report", "--store", str(store), "--publish", TARGET], cluster=no_pod) == 2
    assert cli.run(["report", "--store", str(store), "--publish", "secret/a/b"], cluster=no_pod) == 2
    assert cli.run(["traffic", "--store", str(store), "--publish", TARGET], cluster=no_pod) == 2
    told = capsys.readouterr().err
    assert "only in a pod" in told
    assert "configmap/NAMESPACE/NAME" in told


def test_failure_to_publish_results_fails_the_run(
    spark: SparkSession, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeApiServer(tmp_path, [(403, {}, '{"message": "forbidden"}')]) as server:
        assert cli.run(["report", "--store", str(store), "--publish", TARGET], cluster=lambda: server.address) == 3
    assert "verb patch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (cli._Stopped(), 143, "SIGTERM"),
        (Py4JNetworkError("Answer from Java side is empty"), 3, "it was shut down, or killed"),
        (ConnectionRefusedError(111, "Connection refused"), 3, "it was shut down, or killed"),
        (PySparkException("java.io.IOException: No space left on device"), 3, "the disk is full"),
        (OSError(28, "No space left on device", "/out/summary.json"), 3, "the disk is full"),
        (PySparkException("java.lang.OutOfMemoryError: Java heap space"), 3, "ran out of memory"),
        (
            PySparkException("Traceback\n  x\ndelaymq_spark.store.address.StorePathError: /s is not a store"),
            3,
            "/s is not",
        ),
        (PermissionError(13, "Permission denied", "/out"), 3, "/out: permission denied"),
    ],
)
def test_each_failure_yields_a_sentence_an_exit_code_and_a_published_error(
    spark: SparkSession, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, told: str,
) -> None:  # fmt: skip
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(pipeline, "run_job", fail)
    with FakeApiServer(tmp_path) as server:
        assert cli.run(["report", "--store", str(store), "--publish", TARGET], cluster=lambda: server.address) == code
    shown = capsys.readouterr().err
    assert told in shown
    assert "Traceback" not in shown
    assert told in published(server)["error"]


def test_bug_keeps_its_stack_trace_and_is_published(
    spark: SparkSession, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("typo")

    monkeypatch.setattr(pipeline, "run_job", fail)
    with FakeApiServer(tmp_path) as server, pytest.raises(KeyError):
        cli.run(["report", "--store", str(store), "--publish", TARGET], cluster=lambda: server.address)
    assert "a bug in delaymq-spark" in published(server)["error"]


def test_unrelated_errors_are_not_attributed_to_spark() -> None:
    assert problems.sentence_of(ValueError("x")) is None


def test_sigterm_with_a_lost_exception_stops_the_run_before_its_next_step(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = False

    def lose_it(*_: object) -> Positions:
        nonlocal told
        told = True
        return Positions(path=str(store))

    def fail(*_: object) -> None:
        raise AssertionError("it went on")

    monkeypatch.setattr(running, "context", lambda _: nullcontext())
    monkeypatch.setattr(pipeline, "read_positions", lose_it)
    monkeypatch.setattr(pipeline, "Stages", lambda *_: SimpleNamespace(facts=fail))
    assert cli.run(["traffic", "--store", str(store)], is_stopping=lambda: told) == 143
    assert "stopped by SIGTERM before the analysis was complete" in capsys.readouterr().err


def test_error_of_spark_after_sigterm_exits_as_stopped(
    monkeypatch: pytest.MonkeyPatch, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopping = threading.Event()

    @contextmanager
    def session(_: object) -> Iterator[None]:
        yield
        stopping.set()
        raise ConnectionError("the JVM closed the connection")

    monkeypatch.setattr(running, "context", session)
    monkeypatch.setattr(pipeline, "run_job", lambda *_: None)
    assert cli.run(["traffic", "--store", str(store)], is_stopping=stopping.is_set) == 143
    assert "stopped by SIGTERM before the analysis was complete" in capsys.readouterr().err


def test_sigterm_outside_the_analysis_exits_as_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def parse(*_: object) -> NoReturn:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("the signal was ignored")

    monkeypatch.setattr(cli, "parse", parse)
    assert cli.main(["traffic"]) == 143
    assert "stopped by SIGTERM" in capsys.readouterr().err


def test_sigterm_within_a_finaliser_is_raised_outside_and_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    class Finalised:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    def wait_with_a_finaliser() -> None:
        Finalised()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.01)

    with pytest.raises(cli._Stopped), cli._sigterm_event() as told:
        wait_with_a_finaliser()
    assert told.is_set()
    assert "Traceback" not in capsys.readouterr().err


def command(store: Path, **environment: str) -> subprocess.Popen[str]:
    """Start the command as a separate process."""
    arguments = [sys.executable, "-m", "delaymq_spark.cli", "traffic", "--store", str(store), "--memory", "512m"]
    given = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK", "JAVA"))}
    return subprocess.Popen(
        arguments, env={**given, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_missing_java_is_reported_in_one_sentence(store: Path, tmp_path: Path) -> None:
    process = command(store, PATH="/usr/bin/none", JAVA_HOME=str(tmp_path))
    _, told = process.communicate(timeout=120)
    assert process.returncode == 3
    assert told.splitlines()[-1] == JAVA_NEEDED
    assert "Traceback" not in told


def test_sigterm_while_spark_works_ends_the_run_with_a_sentence(store: Path) -> None:
    process = command(store)
    assert process.stderr is not None
    for line in process.stderr:
        if "reading the log" in line:
            process.send_signal(signal.SIGTERM)
            break
    _, told = process.communicate(timeout=120)
    assert process.returncode == 143
    assert "stopped by SIGTERM before the analysis was complete" in told
    assert "Traceback" not in told
