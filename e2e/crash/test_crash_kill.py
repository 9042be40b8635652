"""Kills at any instant: nothing is lost, early or delivered twice; RocketMQ's broker serves as a control."""

import os
import shutil
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash import kill_points
from crash.judge import Verdict
from crash.kill_run import CONFIG, Plan, new_cluster, run, run_with
from crash.load import LoadProgram
from delaymq_testing.repetitions import SEED
from harness.brokers import Cluster, OurCluster
from harness.commitlog import MESSAGE_MAGIC, log_end

SEEDS_LONG = range(SEED + 1, SEED + 20)
# A run takes half a minute on an idle machine: sends, eight seconds of delay, a restart, counting.
pytestmark = pytest.mark.timeout(400)

POINT_LIMIT_S = 60.0
POINTS_WHILE_SERVING = {"copy-appended": 3000, "segment-roll": 2, "config-rename": 4, "queue-flush": 40}
"""Number of times that the point is reached: large enough that the broker serves and messages are pending."""


@pytest.fixture
def ours() -> Iterator[Cluster]:
    cluster = new_cluster("ours")
    yield cluster
    cluster.close()


@pytest.mark.parametrize("seed", [SEED, *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS_LONG)])
def test_kill_among_20000_delayed_messages_loses_and_repeats_none(
    ours: Cluster, load: LoadProgram, seed: int, tmp_path: Path
) -> None:
    verdict = run(ours, load, Plan(seed=seed))
    print(f"seed {seed}: {verdict.text()}")
    _assert_clean(verdict, ours, tmp_path)


@pytest.mark.long
def test_five_kills_in_one_run_lose_and_repeat_none(ours: Cluster, load: LoadProgram, tmp_path: Path) -> None:
    verdict = run(ours, load, Plan(seed=100, messages=40_000, kills=5, rate=2_000))
    print(verdict.text())
    _assert_clean(verdict, ours, tmp_path)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("point", [f"{name}:{times}" for name, times in POINTS_WHILE_SERVING.items()])
def test_kill_at_a_named_point_loses_and_repeats_none(load: LoadProgram, point: str, tmp_path: Path) -> None:
    # Config files are saved often here, so that they are renamed while messages are in flight.
    cluster = OurCluster(config={**CONFIG, "flushDelayOffsetInterval": "1000", "flushConsumerOffsetInterval": "1000"})
    _kill_at(cluster, point)

    def crash(started: float) -> None:
        _wait_for_own_death(cluster, point)
        _start_without_kill_point(cluster)

    try:
        verdict = run_with(cluster, load, Plan(seed=1), crash)
        _assert_clean(verdict, cluster, tmp_path)
    finally:
        cluster.close()


def test_kill_in_recovery_at_truncation_loses_and_repeats_none(
    ours: Cluster, load: LoadProgram, tmp_path: Path
) -> None:
    plan = Plan(seed=2)

    def crash(started: float) -> None:
        time.sleep(max(0.0, started + plan.kill_instants_s()[0] - time.monotonic()))
        ours.kill()
        _tear_log_end(ours.store_path)
        _kill_at(ours, "truncation:1")
        ours.broker.start()
        _wait_for_own_death(ours, "truncation:1")
        _start_without_kill_point(ours)

    verdict = run_with(ours, load, plan, crash)
    _assert_clean(verdict, ours, tmp_path)


def test_unknown_kill_point_is_rejected(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kill_points.py", "no-such-point:1", "standalone"])
    with pytest.raises(SystemExit) as ended:
        kill_points.main()
    assert ended.value.code == kill_points.EXIT_USAGE
    assert "copy-appended" in capsys.readouterr().err


@pytest.mark.long
def test_harness_detects_repeated_messages_of_rocketmq_after_a_kill(load: LoadProgram) -> None:
    cluster = new_cluster("real")
    try:
        verdict = run(cluster, load, Plan(seed=3))
    finally:
        cluster.close()
    print(verdict.text())
    assert verdict.acknowledged == 20_000
    assert verdict.twice, "the control found no repeated message, so the test proves nothing: " + verdict.text()
    assert not verdict.early, verdict.text()


def _assert_clean(verdict: Verdict, cluster: Cluster, evidence_path: Path) -> None:
    """On a violation, keep the store and the broker's log, which would be deleted with the cluster's folder."""
    if not verdict.is_clean:
        shutil.copytree(cluster.store_path, evidence_path / "store")
        shutil.copy(cluster.broker.log_path, evidence_path)
    assert verdict.is_clean, f"{verdict.text()}\nstore and log: {evidence_path}"


def _kill_at(cluster: Cluster, point: str) -> None:
    assert cluster.broker.command[1:3] == ["-m", "delaymq"], cluster.broker.command
    cluster.broker.command[1:3] = [str(Path(kill_points.__file__).resolve()), point]


def _start_without_kill_point(cluster: Cluster) -> None:
    cluster.broker.command[1:3] = ["-m", "delaymq"]
    cluster.start()


def _wait_for_own_death(cluster: Cluster, point: str) -> None:
    deadline = time.monotonic() + POINT_LIMIT_S
    while cluster.broker.is_running:
        assert time.monotonic() < deadline, f"{point} was not reached\n{cluster.broker.log_tail()}"
        time.sleep(0.02)
    assert f"{kill_points.MESSAGE}{point}" in cluster.broker.log_since(0), cluster.broker.log_tail()
    cluster.broker.kill()


def _tear_log_end(store_path: Path) -> None:
    """Leave a record's head without its body after the last record, as a power failure may."""
    end = log_end(store_path)
    segment = max(
        (path for path in (store_path / "commitlog").iterdir() if int(path.name) <= end), key=lambda path: path.name
    )
    position = end - int(segment.name)
    head = struct.pack(">iIIiiqq", 300, MESSAGE_MAGIC, 12345, 0, 0, 0, end)
    assert position + 300 < segment.stat().st_size, "the log ends too near a segment's end to leave a torn record"
    with segment.open("r+b") as file:
        file.seek(position)
        file.write(head)
        file.flush()
        os.fsync(file.fileno())
