"""Kills while consumers send messages back and commit: each is redelivered, or becomes a dead letter, exactly once."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash import crashes
from crash.retry_judge import RetryVerdict, judge_retries
from crash.retry_load import GROUP, QUEUES, SEND_BACKS_PER_SECOND, RetryLoad, Stored, Told
from delaymq_testing.repetitions import SEED
from harness.brokers import Cluster, OurCluster
from harness.commitlog import records
from harness.suite import enter_isolated

MESSAGES = 3_200
LEVEL_TABLE = "1s 2s"
OFFSET_INTERVAL_MS = 500
ALLOWED_LOSS_S = OFFSET_INTERVAL_MS / 1000 + 3.0
"""The commit interval, with an allowance for slow writes."""
EARLIEST_KILL_S, LATEST_KILL_S = ALLOWED_LOSS_S + 0.5, MESSAGES / SEND_BACKS_PER_SECOND - 0.5
LIMIT_S = 120.0
CONFIG = {
    "messageDelayLevel": LEVEL_TABLE,
    "mappedFileSizeCommitLog": str(1 << 20),
    "flushConsumerOffsetInterval": str(OFFSET_INTERVAL_MS),
    "flushDelayOffsetInterval": "1000",
}
SEEDS_LONG = range(SEED + 1, SEED + 12)
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    enter_isolated()
    cluster = OurCluster(config=CONFIG)
    yield cluster
    cluster.close()


@pytest.mark.parametrize("seed", [SEED, *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS_LONG)])
def test_kill_among_send_backs_and_commits_keeps_what_was_acknowledged(
    cluster: Cluster, seed: int, tmp_path: Path
) -> None:
    crash = crashes.at_an_instant(cluster, seed, EARLIEST_KILL_S, LATEST_KILL_S)
    _assert_clean(_run(cluster, crash), cluster, tmp_path)


# Late enough that thousands are sent back, delivered and committed; a third of them become dead letters.
@pytest.mark.one_in(2)
@pytest.mark.parametrize("point", ["send-back-appended:1900", "copy-appended:900", "config-rename:14"])
def test_kill_at_a_named_point_keeps_what_was_acknowledged(cluster: Cluster, point: str, tmp_path: Path) -> None:
    crash = crashes.at_a_point(cluster, point, LIMIT_S)
    _assert_clean(_run(cluster, crash), cluster, tmp_path)


def _run(cluster: Cluster, crash: crashes.Crash) -> RetryVerdict:
    cluster.start()
    load = RetryLoad(cluster.listen_port, MESSAGES)
    load.start()
    assert load.filled.wait(LIMIT_S), "the messages were not stored in time"
    crash()
    load.join(LIMIT_S)
    assert not load.is_alive(), "not everything was sent back in time"
    if load.error is not None:
        raise load.error
    told = load.told
    assert told.found, "the offsets were not read after the crash"
    assert all(offset for _, seen in told.found for offset, _ in seen.values()), (
        "the crash came before the first stored commit"
    )
    assert len(told.acknowledged) > MESSAGES // 2
    crashes.wait_until(lambda: _all_came(cluster.store_path, told), "not every send-back was delivered", LIMIT_S)
    cluster.stop()
    verdict = judge_retries(cluster.store_path, LEVEL_TABLE, told, ALLOWED_LOSS_S)
    print(verdict.text())
    return verdict


def _all_came(store_path: Path, told: Told) -> bool:
    """Return whether nothing is pending any more; the log of a running broker ends at its current write position."""
    waiting = come = dead = 0
    for record in records(store_path):
        waiting += record.is_scheduled
        come += record.topic == f"%RETRY%{GROUP}"
        dead += record.topic == f"%DLQ%{GROUP}"
    time.sleep(0.2)
    return waiting <= come and come + dead >= len(told.acknowledged)


def _assert_clean(verdict: RetryVerdict, cluster: Cluster, evidence_path: Path) -> None:
    if not verdict.is_clean:
        shutil.copytree(cluster.store_path, evidence_path / "store")
        shutil.copy(cluster.broker.log_path, evidence_path)
    assert verdict.is_clean, f"{verdict.text()}\nstore and log: {evidence_path}"


def test_judge_detects_lost_duplicated_and_wrongly_committed_retries(cluster: Cluster) -> None:
    cluster.start()
    load = RetryLoad(cluster.listen_port, QUEUES * 3)
    load.start()
    load.join(LIMIT_S)
    assert load.error is None
    told = load.told
    crashes.wait_until(lambda: _all_came(cluster.store_path, told), "not every send-back was delivered", LIMIT_S)
    cluster.stop()
    assert judge_retries(cluster.store_path, LEVEL_TABLE, told, 0).is_clean
    told.messages.append(Stored("K999999", 0, is_hopeless=False))
    told.acknowledged.add("K999999")
    told.messages[0] = Stored("K000000", 0, is_hopeless=False)  # it became a dead letter
    told.commits += [(10.0, 0, 5), (20.0, 0, 7)]
    told.highest_tried = {0: 7}
    told.found.append((30.0, {0: (4, 3)}))
    verdict = judge_retries(cluster.store_path, LEVEL_TABLE, told, 5)
    assert (verdict.lost, verdict.wrong_way) == (("K999999",), ("K000000",))
    assert len(verdict.offsets) == 2
