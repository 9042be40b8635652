"""Kills while groups are changed, paused and carried, and while messages repeat: every statement of the log is true.

An hour of retention lasts seconds, so that segments are carried and deleted all the time. The log is judged with all
its segments, deleted ones included.
"""

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash import crashes
from crash.archive import LogArchive
from crash.managed_judge import ManagedVerdict, judge_managed
from crash.managed_load import SCHEDULES, ManagedLoad
from crash.point_kills import arm, cluster_with_short_hours, kill_at_instants, kill_at_points
from delaymq_testing.repetitions import SEED
from harness.brokers import HTTP_TIMEOUT_S, OurCluster

MESSAGES = 20_000
CONFIG = {
    "mappedFileSizeCommitLog": str(256 << 10),
    "snapshotIntervalBytes": str(1 << 20),
    "fileReservedTime": "1",
    "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
    "diskMaxUsedSpaceRatio": "95",
}
LIMIT_S = 60.0
REPLAY = "group-replayed:5"
"""Reached in a start without a snapshot."""
POINTS = (
    "group-changed:20",
    "group-swept:5",
    "group-swept-running:5",
    "paused:4",
    "held:30",
    "run-appended:100",
    "repeating-carried:10",
    "pause-carried:3",
    REPLAY,
    "timeline-written:1",
)
"""In the order in which one run can reach all of them, each counted from the start after the one before."""
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OurCluster]:
    with cluster_with_short_hours(CONFIG, tmp_path) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("seed", "random_kills", "stretch"), [(SEED, 2, 1.0), pytest.param(SEED + 1, 20, 3.0, marks=pytest.mark.long)]
)
def test_kills_among_changed_groups_pauses_and_runs_lose_and_repeat_none(
    cluster: OurCluster, seed: int, random_kills: int, stretch: float, tmp_path: Path
) -> None:
    verdict = _run(cluster, tmp_path, random_kills=random_kills, seed=seed, stretch=stretch)
    kinds = ("groupCancelled", "groupMoved", "groupFired", "paused", "resumed", "cancelled", "moved", "fired")
    assert all(verdict.marks[kind] > 10 for kind in kinds)
    assert verdict.changed["groupMoved"] > MESSAGES // 4
    assert max(verdict.pending_at) > MESSAGES // 4  # on an idle machine, nearly all of them
    assert max(verdict.paused_at) > 0
    assert verdict.runs > 5 * SCHEDULES
    assert verdict.runs_late > 5
    assert verdict.skips > 0
    assert verdict.repeating_carried > 100
    assert verdict.pauses_carried > 0


def _run(cluster: OurCluster, evidence_path: Path, *, random_kills: int, seed: int, stretch: float) -> ManagedVerdict:
    """Kill the broker at each of the points and at random instants, wait until nothing is pending, and judge."""
    archive = LogArchive(cluster.store_path, evidence_path / "archive")
    arm(cluster, POINTS[0])
    cluster.start()
    archive.start()
    load = ManagedLoad(cluster.listen_port, seed, MESSAGES, stretch)
    load.start()
    crashes_ms = kill_at_points(cluster, POINTS, {REPLAY}, LIMIT_S) + kill_at_instants(cluster, random_kills, seed)
    assert load.filled.wait(LIMIT_S), "the first messages were not sent in time"
    load.finish()
    load.join(LIMIT_S)
    if load.error is not None:
        raise load.error
    crashes.wait_until(lambda: _pending(cluster) == 0, "messages remain pending", LIMIT_S)
    cluster.stop()
    archive.stop()
    verdict = judge_managed(archive.path, load.sent, crashes_ms)
    text = f"{verdict.text()}; {archive.deleted()} segments deleted"
    print(text)
    if verdict.breaches:
        shutil.copytree(cluster.store_path, evidence_path / "store")
        raise AssertionError(f"{text}\nstore, log and archive: {evidence_path}")
    assert archive.deleted() > 5, text
    return verdict


def _pending(cluster: OurCluster) -> int:
    with urllib.request.urlopen(f"http://{cluster.http_address}/api/v1/delay", timeout=HTTP_TIMEOUT_S) as answer:
        return int(json.load(answer)["timed"]["pending"])
