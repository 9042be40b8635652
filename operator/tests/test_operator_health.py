"""Liveness: the process is reported as unhealthy only while its event loop is blocked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from delaymq_operator import health
from delaymq_operator.health import LoopLag
from delaymq_operator.runtime import OperatorRuntime, Reconcilers
from delaymq_operator.settings import OperatorSettings

STALL_S = 7.0


@pytest.fixture
def runtime(tmp_path: Path) -> OperatorRuntime:
    """Return an operator that is not started; its cluster receives no requests."""
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "none", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "none", "user": {"token": "none"}}],
        "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
        "current-context": "none",
    }))  # fmt: skip
    return OperatorRuntime(OperatorSettings(kubeconfig=str(file)), Reconcilers({}))


def test_past_stall_is_measured_but_not_reported_as_unhealthy(
    runtime: OperatorRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "LAG_INTERVAL_S", 0.001)
    now_s = [1_000.0]
    lag = runtime._lag = LoopLag(lambda: now_s[0])

    async def measure() -> None:
        assert runtime.not_alive() == []  # not measured yet
        measuring = asyncio.create_task(lag.run())
        await asyncio.sleep(0)
        assert runtime.not_alive() == []

        now_s[0] += STALL_S  # simulates a blocked loop
        assert runtime.not_alive() == ["the event loop has been blocked for 7.0 s"]
        await asyncio.sleep(0.01)  # timers run in order of their due time: the measurement runs first
        assert runtime.not_alive() == []
        assert runtime.loop_lag_s == pytest.approx(STALL_S, abs=0.01)
        measuring.cancel()

    asyncio.run(measure())
