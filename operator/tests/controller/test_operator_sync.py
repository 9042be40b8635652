"""Periodic comparison of the cache with lists."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from delaymq_operator.controller import sync
from delaymq_operator.controller.cache import WatchCache


class Lists:
    """Requests to an API server whose lists contain one more Broker each time."""

    def __init__(self) -> None:
        self.listing = asyncio.Lock()
        self.brokers = 0

    async def send(self, request: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        if request.kind != "Broker":
            return {"items": [], "metadata": {"resourceVersion": "1000"}}
        self.brokers += 1
        names = [f"b{number}" for number in range(self.brokers)]
        metadata = [{"namespace": "ns", "name": name, "uid": name, "resourceVersion": "1"} for name in names]
        return {"items": [{"metadata": one} for one in metadata], "metadata": {"resourceVersion": "1000"}}


def test_comparison_continues_after_handler_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sync, "GRACE_S", 0.0)
    monkeypatch.setattr(sync, "RECHECK_S", 0.001)

    async def compare() -> int:
        seen_third = asyncio.Event()

        def changed(kind: str, before: object, after: dict[str, Any] | None) -> None:
            name = after["metadata"]["name"] if after is not None else ""
            if name == "b0":
                raise KeyError("spec")
            if name == "b2":
                seen_third.set()

        cache = WatchCache(changed)
        requests: Any = Lists()
        comparing = sync.CacheSync(requests, cache, interval_s=0.001, lost=lambda scope, obstacle: None)
        with pytest.raises(KeyError):
            await comparing.fill(None)
        requests.brokers = 0
        cache.open(None)
        comparing._filled.add(None)
        task = asyncio.create_task(comparing.run())
        async with asyncio.timeout(10):
            await seen_third.wait()
        assert not task.done()
        task.cancel()
        return len(cache.all("Broker"))

    assert asyncio.run(compare()) >= 3
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "comparing the cache of Broker with the API server's list failed, a bug in the operator; retrying later"
    ]
