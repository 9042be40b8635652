"""An API server that stalls, responds slowly or is unreachable: responsive event loop, clear errors."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from delaymq_operator.adapters.api_requests import ApiRequests
from delaymq_operator.adapters.credentials import Credentials
from delaymq_operator.adapters.kube import PAGE_OBJECTS, ApiKube
from delaymq_operator.health import LoopLag
from delaymq_operator.reconcile.errors import KubeError
from delaymq_testing.running_server import until
from harness.ports import free_port

BOUND_S = 60
THREADS = 4
MAX_LAG_S = 0.4
"""Unpaged lists blocked the loop for 0.6 s; pages block it for 0.03 to 0.1 s, including the time of the reading
threads.
"""
SAMPLE_S = 0.005


class Lag:
    """The largest delay of a due timer of the event loop, in processor time.

    Elapsed time would include the load of other processes on the machine.
    """

    def __init__(self) -> None:
        self.largest_s = 0.0

    async def measure(self) -> None:
        while True:
            before_s = time.process_time()
            await asyncio.sleep(SAMPLE_S)
            self.largest_s = max(self.largest_s, time.process_time() - before_s)


@asynccontextmanager
async def an_api_server(
    path: Path, answer: Callable[[asyncio.StreamWriter], Awaitable[None]], *, timeout_s: float
) -> AsyncIterator[ApiKube]:
    """Start an HTTP server without TLS that calls `answer` to write each response; yield an adapter for it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await answer(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    requests = ApiRequests(_credentials(path, port).load, threads=THREADS, timeout_s=timeout_s, observe=lambda *_: None)
    try:
        yield ApiKube(requests, seen=lambda kind, found: None)
    finally:
        requests.close()
        server.close()


def _credentials(path: Path, port: int) -> Credentials:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (path / "kubeconfig").write_text(json.dumps(config))
    return Credentials(str(path / "kubeconfig"))


def _answer(body: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def test_event_loop_stays_responsive_while_all_requests_stall(tmp_path: Path) -> None:
    async def scenario() -> None:
        stalled_at_once, end = 0, asyncio.Event()

        async def stalled(writer: asyncio.StreamWriter) -> None:
            nonlocal stalled_at_once
            stalled_at_once += 1
            await end.wait()
            writer.close()

        async with asyncio.timeout(BOUND_S), an_api_server(tmp_path, stalled, timeout_s=2 * BOUND_S) as kube:
            asking = [asyncio.create_task(kube.get("Pod", "ns", f"p{n}")) for n in range(12)]
            await until(lambda: stalled_at_once == THREADS)  # a blocked loop would not continue from here
            assert not any(each.done() for each in asking)
            end.set()
            outcomes = await asyncio.gather(*asking, return_exceptions=True)
            assert [outcome.status for outcome in outcomes if isinstance(outcome, KubeError)] == [0] * 12

    asyncio.run(scenario())


def test_stalled_request_times_out_with_clear_error(tmp_path: Path) -> None:
    async def stalled(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(BOUND_S)

    async def scenario() -> None:
        async with an_api_server(tmp_path, stalled, timeout_s=0.5) as kube:
            with pytest.raises(KubeError, match="no response from the API server"):
                await kube.get("Pod", "ns", "p")

    asyncio.run(scenario())


def test_event_loop_stays_responsive_while_large_lists_are_read(tmp_path: Path) -> None:
    pod = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "1", "labels": {}},
        "spec": {
            "containers": [
                {"name": f"c{n}", "image": "x" * 80, "env": [{"name": f"A{m}", "value": "b" * 180} for m in range(10)]}
                for n in range(4)
            ]
        },
    }
    pages = 3
    body = json.dumps(
        {"kind": "PodList", "metadata": {"resourceVersion": "9", "continue": "more"}, "items": [pod] * PAGE_OBJECTS}
    ).encode()
    assert 700_000 < len(body) < 1_500_000
    answered = 0

    async def large(writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        answered += 1
        last = answered % pages == 0
        writer.write(_answer(body.replace(b'"continue"', b'"continued"') if last else body))
        await writer.drain()

    async def scenario() -> None:
        async with an_api_server(tmp_path, large, timeout_s=BOUND_S) as kube:
            lag = Lag()
            measuring = asyncio.create_task(lag.measure())
            found = await asyncio.gather(*(kube.list("Pod") for _ in range(4)))
            measuring.cancel()
            assert sum(map(len, found)) >= 4 * PAGE_OBJECTS
            assert lag.largest_s < MAX_LAG_S

    asyncio.run(scenario())


def test_trickling_response_times_out(tmp_path: Path) -> None:
    async def trickle(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1_000):
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.1)

    async def scenario() -> None:
        async with an_api_server(tmp_path, trickle, timeout_s=0.5) as kube:
            with pytest.raises(KubeError, match="did not respond"):
                await kube.get("Pod", "ns", "p")

    asyncio.run(scenario())


def test_unreachable_server_is_reported_with_address_and_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        port = free_port()
        requests = ApiRequests(_credentials(tmp_path, port).load, threads=1, timeout_s=2, observe=lambda *_: None)
        with pytest.raises(KubeError) as caught:
            await ApiKube(requests, seen=lambda kind, found: None).get("Pod", "ns", "p")
        assert caught.value.message == (
            f"no response from the API server at http://127.0.0.1:{port}: Connection refused"
        )
        requests.close()

    asyncio.run(scenario())


def test_response_without_json_is_reported_and_truncated(tmp_path: Path) -> None:
    async def page(writer: asyncio.StreamWriter) -> None:
        body = b"<html>" + b"x" * 10_000
        writer.write(_answer(body).replace(b"200 OK", b"503 Service Unavailable"))

    async def scenario() -> None:
        async with an_api_server(tmp_path, page, timeout_s=5) as kube:
            with pytest.raises(KubeError) as caught:
                await kube.get("Pod", "ns", "p")
            assert caught.value.status == 503
            assert len(caught.value.message) < 1_000

    asyncio.run(scenario())


def test_missing_kubeconfig_is_reported_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(KubeError, match="nowhere"):
        Credentials(str(tmp_path / "nowhere")).load()


def test_loop_lag_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delaymq_operator.health.LAG_INTERVAL_S", 0.01)

    async def scenario() -> None:
        lag = LoopLag()
        measuring = asyncio.create_task(lag.run())
        await asyncio.sleep(0.05)
        time.sleep(0.3)  # noqa: ASYNC251 - the blocking is what is tested
        await asyncio.sleep(0.05)
        measuring.cancel()
        assert lag.largest_s > 0.25

    asyncio.run(scenario())
