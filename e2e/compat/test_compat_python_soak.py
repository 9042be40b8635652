"""Soak tests of the Python client (python_soak.py) in a separate process: no lost message, no leak."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOAK = Path(__file__).with_name("python_soak.py")
SHORT_S, LONG_S = 16.0, 900.0
SHORT_RESTART_S, LONG_RESTART_S = 4.0, 20.0
SETTLE_LIMIT_S = 250.0
MEMORY_LIMIT_KIB = 16 * 1024
"""Maximum growth after the first quarter: the allocator's tolerance."""
SLOPE_LIMIT_MIB_PER_MINUTE = 0.5
"""Maximum of a long run, 30 MiB per hour."""


def soaked(seconds: float, restart_s: float, *more: str) -> dict[str, Any]:
    """Return the figures of a run."""
    command = [sys.executable, str(SOAK), "--seconds", str(seconds), "--restart-s", str(restart_s), *more]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds + SETTLE_LIMIT_S, check=False)
    assert ended.returncode == 0, ended.stderr[-4_000:]
    figures: dict[str, Any] = json.loads(ended.stdout)
    print(json.dumps(figures, indent=1))
    return figures


def judge(figures: dict[str, Any], restarts: int) -> None:
    assert figures["acknowledged"] > 0
    assert min(figures["stops"], figures["kills"]) >= restarts
    assert all(number > 10 for number in figures["consumed"].values())
    assert not any(figures["lost"].values())
    assert figures["jumps"] == []
    for what in ("tasks", "descriptors"):
        assert figures["after"][what] <= figures["before"][what]
        assert figures["left"][what] <= figures["unused"][what]
    assert figures["after"]["memory_kib"] - figures["before"]["memory_kib"] < MEMORY_LIMIT_KIB


@pytest.mark.ours_only
@pytest.mark.timeout(SHORT_S + SETTLE_LIMIT_S)
def test_restarts_and_rebalances_lose_no_message_and_leak_no_resource() -> None:
    judge(soaked(SHORT_S, SHORT_RESTART_S), restarts=1)


@pytest.mark.ours_only
@pytest.mark.long
@pytest.mark.timeout(LONG_S + SETTLE_LIMIT_S)
def test_quarter_of_an_hour_of_load_loses_no_message_and_memory_stays_constant() -> None:
    figures = soaked(LONG_S, LONG_RESTART_S, "--leave-any-time")
    judge(figures, restarts=10)
    assert figures["memory_slope_mib_a_minute"] < SLOPE_LIMIT_MIB_PER_MINUTE
