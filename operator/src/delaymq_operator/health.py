"""Health and metrics endpoints: /livez, /readyz and /metrics."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

LAG_INTERVAL_S: Final = 0.5
LAG_WINDOW_S: Final = 60.0
SHUTDOWN_TIMEOUT_S: Final = 1.0

Problems = Callable[[], list[str]]
"""Sentences that describe problems; empty: there are none."""


class LoopLag:
    """Measures the lag of the event loop. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, float]] = deque()
        self._due_s = float("inf")

    async def run(self) -> None:
        """Measure indefinitely."""
        while True:
            self._due_s = self._clock() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            now_s = self._clock()
            self._seen.append((now_s, max(0.0, now_s - self._due_s)))
            while self._seen and self._seen[0][0] < now_s - LAG_WINDOW_S:
                self._seen.popleft()

    @property
    def stalled_s(self) -> float:
        """The current lag in seconds; 0 as soon as the loop continues."""
        return max(0.0, self._clock() - self._due_s)

    @property
    def largest_s(self) -> float:
        """The maximum lag of the last minute, in seconds."""
        return max((lag_s for _, lag_s in self._seen), default=0.0)


class HealthServer:
    """HTTP server for probes and Prometheus; `port` is the port on which it listens."""

    def __init__(self, runner: web.AppRunner, port: int) -> None:
        self._runner = runner
        self.port = port

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()


async def serve_health(
    host: str, port: int, *, alive: Problems, ready: Problems, metrics: Callable[[], bytes], content_type: str
) -> HealthServer:
    """Start listening. OSError if the port is in use."""

    async def answer_metrics(request: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": content_type})

    app = web.Application(client_max_size=1024)
    app.router.add_get("/livez", _probe(alive))
    app.router.add_get("/readyz", _probe(ready))
    app.router.add_get("/metrics", answer_metrics)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError:
        await runner.cleanup()
        raise
    return HealthServer(runner, int(runner.addresses[0][1]))


def _probe(problems: Problems) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        found = problems()
        return web.json_response({"ok": not found, "problems": found}, status=503 if found else 200)

    return answer
