"""Kills of a broker at a series of points and instants, some of them followed by a start without a snapshot."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from crash import crashes, kill_points
from harness.brokers import OurCluster
from harness.suite import enter_isolated

_HOUR_MS: Final = 3_000
"""Length of an hour of retention, so that segments are carried and deleted all the time."""


@contextmanager
def cluster_with_short_hours(config: dict[str, str], evidence_path: Path) -> Iterator[OurCluster]:
    """Yield a cluster that is not started, with a broker that `arm` accepts; its log remains in `evidence_path`."""
    enter_isolated()
    cluster = OurCluster(config=config, environment={kill_points.HOUR_MS: str(_HOUR_MS)})
    cluster.broker.command[1:3] = [str(Path(kill_points.__file__).resolve()), "none"]
    yield cluster
    shutil.copy(cluster.broker.log_path, evidence_path)
    cluster.close()


def arm(cluster: OurCluster, point: str) -> None:
    """Let the next start of the broker, whose command is `kill_points.py POINT …`, die at a point."""
    cluster.broker.command[2] = point


def kill_at_points(
    cluster: OurCluster, points: Sequence[str], without_snapshot: Collection[str], limit_s: float
) -> list[int]:
    """Wait until the running broker, which is armed with the first point, has died at each; return the times in ms.

    Starts that are armed with a point `without_snapshot` replay the whole log.
    """
    died_ms = []
    for number, point in enumerate(points):
        if number:
            arm(cluster, point)
            if point in without_snapshot:
                _remove_snapshot(cluster)
            cluster.broker.start()
        crashes.wait_until(lambda: not cluster.broker.is_running, f"{point} was not reached", limit_s)
        assert f"{kill_points.MESSAGE}{point}" in cluster.broker.log_since(0), cluster.broker.log_tail()
        cluster.broker.kill()
        died_ms.append(int(time.time() * 1000))
    arm(cluster, "none")
    cluster.start()
    return died_ms


def kill_at_instants(cluster: OurCluster, kills: int, seed: int) -> list[int]:
    """Kill and restart the broker, every second time without a snapshot; return the times in ms."""
    chance = random.Random(seed)
    killed_ms = []
    for number in range(kills):
        time.sleep(chance.uniform(0.2, 4.0))
        cluster.kill()
        killed_ms.append(int(time.time() * 1000))
        time.sleep(chance.uniform(0, 1))
        if number % 2:
            _remove_snapshot(cluster)
        cluster.start()
    return killed_ms


def _remove_snapshot(cluster: OurCluster) -> None:
    """Let the next start replay the whole log."""
    (cluster.store_path / "delaymq" / "snapshot.json").unlink()
