"""Kills while pending messages are stored, indexed, carried forward and delivered: none is lost, early or duplicated.

Most are timed; others have a delay level that outlasts the retention time.
An hour of retention lasts seconds, so that segments are carried and deleted all the time. The log is judged with all
its segments, deleted ones included.
"""

import json
import shutil
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash import crashes
from crash.archive import LogArchive
from crash.point_kills import arm, cluster_with_short_hours, kill_at_instants, kill_at_points
from crash.timed_judge import TimedVerdict, judge_timed
from crash.timed_load import FAR_DUE_S, TimedLoad
from crash.transaction_judge import judge_transactions
from crash.transaction_load import TransactionLoad
from delaymq_testing.repetitions import SEED
from harness.brokers import HTTP_TIMEOUT_S, OurCluster

MESSAGES = 20_000
TRANSACTIONS, TRANSACTIONS_PER_SECOND = 1_200, 80
CONFIG = {
    "mappedFileSizeCommitLog": str(256 << 10),
    "snapshotIntervalBytes": str(1 << 20),
    "fileReservedTime": "1",
    "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
    "diskMaxUsedSpaceRatio": "95",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "500",
    "transactionCheckMax": "1000",
}
LIMIT_S = 60.0
REPLAY = "timed-replayed:100"
"""Reached in a start without a snapshot."""
POINTS = (
    "version-raised:1",
    "timed-appended:5000",
    "run-merging:4",
    "timeline-written:2",
    "carried:100",
    "level-carried:20",
    "segment-deleted:2",
    REPLAY,
    "timed-copy-appended:2000",
    "change-appended:20",
    "level-moved:3",
    "replacing-appended:20",
)
"""In the order in which one run can reach all of them, each counted from the start after the one before."""
pytestmark = pytest.mark.timeout(400)
SEEDS_LONG = range(SEED + 1, SEED + 12)


@pytest.fixture
def stretch() -> float:
    """Factor of the durations of the load and of its delays."""
    return 1.0


@pytest.fixture
def level_table(stretch: float) -> str:
    """Delay levels, the last of which outlasts the retention time and the kills before messages are carried."""
    return f"1s 2s 3s {30 * stretch:.0f}s"


@pytest.fixture
def cluster(tmp_path: Path, level_table: str) -> Iterator[OurCluster]:
    with cluster_with_short_hours(CONFIG | {"messageDelayLevel": level_table}, tmp_path) as cluster:
        yield cluster


@pytest.mark.parametrize("seed", [SEED, *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS_LONG)])
def test_kills_at_all_points_and_instants_lose_and_duplicate_no_timed_message(
    cluster: OurCluster, level_table: str, seed: int, tmp_path: Path
) -> None:
    verdict = _run(cluster, level_table, tmp_path, random_kills=2, seed=seed)
    assert max(verdict.pending_at) > MESSAGES // 4  # on an idle machine, nearly all of them
    assert verdict.carried > 100
    assert all(verdict.changes[name] > 10 for name in ("cancel", "move", "fire", "touch", "replaced"))
    assert verdict.carried_with_level >= 19  # the kill point is at the 20th, which may be lost


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("stretch", [4.0])
def test_kills_among_100000_pending_messages_lose_and_duplicate_none(
    cluster: OurCluster, level_table: str, stretch: float, tmp_path: Path
) -> None:
    verdict = _run(cluster, level_table, tmp_path, random_kills=8, seed=SEED, count=100_000, stretch=stretch)
    assert max(verdict.pending_at) > 50_000


def _run(
    cluster: OurCluster,
    level_table: str,
    evidence_path: Path,
    *,
    random_kills: int,
    seed: int,
    count: int = MESSAGES,
    stretch: float = 1.0,
) -> TimedVerdict:
    """Kill the broker at each of the points and at random instants, wait until nothing is pending, and judge."""
    limit_s = LIMIT_S * stretch  # a touched message waits for its whole delay again
    archive = LogArchive(cluster.store_path, evidence_path / "archive")
    arm(cluster, POINTS[0])
    cluster.start()
    archive.start()
    load = TimedLoad(cluster.listen_port, seed, count, stretch)
    transactions = TransactionLoad(cluster.listen_port, TRANSACTIONS, TRANSACTIONS_PER_SECOND)
    started = time.monotonic()
    load.start()
    transactions.start()
    crashes_ms = kill_at_points(cluster, POINTS, {REPLAY}, limit_s) + kill_at_instants(cluster, random_kills, seed)
    assert load.filled.wait(limit_s), "the first messages were not sent in time"
    assert transactions.filled.wait(limit_s), "the half messages were not sent in time"
    load.stop()
    load.join(limit_s)
    time.sleep(max(0.0, started + FAR_DUE_S * stretch - time.monotonic()))
    crashes.wait_until(lambda: _pending(cluster) == 0, "messages remain pending", limit_s)
    time.sleep(2.0)  # outcomes of the last transactions
    crashes.wait_until(lambda: _pending(cluster) == 0, "messages remain pending", limit_s)
    transactions.stop()
    transactions.join(limit_s)
    for each in (load, transactions):
        if each.error is not None:
            raise each.error
    cluster.stop()
    archive.stop()
    verdict = judge_timed(archive.path, level_table, load.sent, crashes_ms)
    of_transactions = judge_transactions(archive.path, transactions.told, None)
    text = f"{verdict.text()}; {archive.deleted()} segments deleted; {of_transactions.text()}"
    print(text)
    if verdict.breaches or not of_transactions.is_clean:
        shutil.copytree(cluster.store_path, evidence_path / "store")
        raise AssertionError(f"{text}\nstore, log and archive: {evidence_path}")
    assert archive.deleted() > 5, text
    return verdict


def _pending(cluster: OurCluster) -> int:
    with urllib.request.urlopen(f"http://{cluster.http_address}/api/v1/delay", timeout=HTTP_TIMEOUT_S) as answer:
        status = json.load(answer)
    return int(status["timed"]["pending"]) + sum(int(level["pending"]) for level in status["levels"])
