"""Kinds of crashes and restarts of a broker under load."""

import random
import time
from collections.abc import Callable
from pathlib import Path

from crash import kill_points
from harness.brokers import Cluster

Crash = Callable[[], None]


def at_an_instant(cluster: Cluster, seed: int, earliest_s: float, latest_s: float) -> Crash:
    """Return a crash at a random time between two times after the start, with a restart within a second."""
    chance = random.Random(seed)
    instant_s, outage_s = chance.uniform(earliest_s, latest_s), chance.uniform(0, 1)

    def crash() -> None:
        time.sleep(instant_s)
        cluster.kill()
        time.sleep(outage_s)
        cluster.start()

    return crash


def at_a_point(cluster: Cluster, point: str, limit_s: float) -> Crash:
    """Return a crash at a kill point (`name:count`), reached within the limit. Call it before the broker starts."""
    program = cluster.broker.command[1:3]
    cluster.broker.command[1:3] = [str(Path(kill_points.__file__).resolve()), point]

    def crash() -> None:
        wait_until(lambda: not cluster.broker.is_running, f"{point} was not reached", limit_s)
        assert f"{kill_points.MESSAGE}{point}" in cluster.broker.log_since(0), cluster.broker.log_tail()
        cluster.broker.kill()
        cluster.broker.command[1:3] = program
        cluster.start()

    return crash


def wait_until(condition: Callable[[], bool], problem: str, limit_s: float) -> None:
    """Wait until the condition holds; AssertionError with the problem after the timeout."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, problem
        time.sleep(0.02)
