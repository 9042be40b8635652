"""Soak tests of the broker (broker_soak.py) in a separate process: segments are rolled and deleted without leaks."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.suite import enter_isolated

SOAK = Path(__file__).with_name("broker_soak.py")
SHORT_LIMIT_S, LONG_LIMIT_S = 400.0, 3_000.0
SHORT_GROWTH_KIB = 16 * 1024
"""Maximum growth of RssAnon in a short run: the allocator's tolerance."""
LONG_SLOPE_MIB_PER_MILLION = 1.0
CONNECTION_LIMIT_KIB = 256
"""Maximum of a connection that sends and consumes."""


@pytest.fixture(scope="module", autouse=True)
def isolated_network() -> None:
    enter_isolated()


def soaked(limit_s: float, **options: int) -> dict[str, Any]:
    """Return the figures of a run."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = [sys.executable, str(SOAK), *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    assert ended.returncode == 0, ended.stderr[-4_000:]
    figures: dict[str, Any] = json.loads(ended.stdout)
    print(json.dumps(figures, indent=1))
    return figures


def judge(figures: dict[str, Any], *, segments: int) -> None:
    assert figures["segments_rolled"] >= segments
    assert figures["segments_deleted"] >= segments * 3 // 4
    assert figures["received"]["soak-batches"] >= figures["acknowledged"]
    assert figures["transactions"] > 0
    assert all(figures["received"].values())
    before, after = figures["before"], figures["after"]
    assert after["tasks"] <= before["tasks"]
    assert after["descriptors"] <= before["descriptors"]
    assert after["deleted"] == before["deleted"] == 0
    connections = figures["connections"]
    assert connections["kib_an_idle_one"] < CONNECTION_LIMIT_KIB
    assert connections["kib_an_active_one"] < CONNECTION_LIMIT_KIB


@pytest.mark.ours_only
@pytest.mark.timeout(SHORT_LIMIT_S + 30)
def test_deleted_segments_and_disconnected_clients_leave_nothing_behind() -> None:
    figures = soaked(SHORT_LIMIT_S, messages=40_000, segment_bytes=1 << 20, idle=100, active=10)
    judge(figures, segments=20)
    assert figures["after"]["anonymous_kib"] - figures["before"]["anonymous_kib"] < SHORT_GROWTH_KIB


@pytest.mark.ours_only
@pytest.mark.long
@pytest.mark.timeout(LONG_LIMIT_S + 30)
def test_memory_stays_constant_over_millions_of_messages_and_a_hundred_segments() -> None:
    figures = soaked(LONG_LIMIT_S, messages=4_000_000, segment_bytes=32 << 20, idle=1_000, active=200)
    judge(figures, segments=50)
    assert figures["mib_a_million"] < LONG_SLOPE_MIB_PER_MILLION
