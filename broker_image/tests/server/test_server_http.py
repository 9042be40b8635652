"""HTTP: probes, metrics, delays, decommissioning, tokens."""

import asyncio
import logging
import re
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from delaymq_testing.running_server import HOST, BrokerPeer, run, standalone, until


async def get(port: int | None, path: str, *, method: str = "GET", token: str | None = None) -> tuple[int, Any, str]:
    """Status, JSON body (None if it is something else), text."""
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    if method == "POST":
        headers["Content-Type"] = "application/json"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://{HOST}:{port}{path}", headers=headers) as answer,
    ):
        is_json = answer.content_type == "application/json"
        return answer.status, await answer.json() if is_json else None, await answer.text()


def test_probes_report_liveness_and_readiness(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            port = server.broker.http_port
            assert (await get(port, "/livez"))[:2] == (200, {"alive": True})
            assert (await get(port, "/readyz"))[:2] == (200, {"ready": True, "notReady": []})
            server.broker.registration.links[0].registered = False
            server.broker.registration.links[0].problem = "it sleeps"
            status, body, _ = await get(port, "/readyz")
            assert status == 503
            assert body["ready"] is False
            assert body["notReady"] == [f"NameServer {HOST}:{server.namesrv.port}: it sleeps"]
            assert body["error"]["code"] == "not_ready"

    run(scenario)


def test_failed_disk_makes_the_broker_neither_ready_nor_alive(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            server.broker.broker.store._log.flush_failed(OSError(5, "Input/output error"))
            status, body, _ = await get(server.broker.http_port, "/readyz")
            assert status == 503
            assert "restart the broker" in body["error"]["message"]
            status, body, _ = await get(server.broker.http_port, "/livez")
            assert (status, body["alive"], body["error"]["code"]) == (503, False, "store_failed")

    run(scenario)


def test_metrics_have_their_names_and_count(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, message_delay_level="1s 1h") as server:
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T")
            await peer.send("T", DELAY="1")
            await peer.send("T", DELAY="2")
            await peer.send("T", DELAY="9")
            await peer.pull("T", 1)
            status, _, text = await get(server.broker.http_port, "/metrics")
            assert status == 200
            values = dict(re.findall(r"^(delaymq_\S+) (\S+)$", text, re.M))
            assert values['delaymq_messages_stored_total{topic="T"}'] == "4.0"
            assert values['delaymq_messages_delivered_total{topic="T"}'] == "1.0"
            assert values['delaymq_delay_pending{level="2"}'] == "2.0"
            assert values["delaymq_delay_clamped_total"] == "1.0"
            assert values['delaymq_delay_lateness_seconds_count{level="1"}'] == "1.0"
            assert float(values["delaymq_delay_next_due_timestamp_seconds"]) > 1_700_000_000
            assert float(values['delaymq_store_pinned_bytes{holder="schedule"}']) > 0
            assert float(values["delaymq_event_loop_lag_seconds"]) < 10
            assert float(values["delaymq_event_loop_tasks"]) >= 1
            for name in ("delay_dead_total", "flush_seconds_count", 'log_offset_bytes{which="end"}', "ready"):
                assert f"delaymq_{name}" in values
            assert "# TYPE delaymq_delay_corrected_total counter" in text

    run(scenario)


def test_schedule_is_returned(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T", DELAY="3")
            status, body, _ = await get(server.broker.http_port, "/api/v1/delay")
            assert status == 200
            assert set(body) == {"asOfMs", "levels", "timed", "corrected", "held", "pauses", "pausesTruncated"}
            third = body["levels"][2]
            assert (third["level"], third["pending"], third["maxOffset"], third["offset"]) == (3, 1, 1, 0)
            assert 0 < third["nextDueMs"] - body["asOfMs"] <= 10_000

    run(scenario)


def test_decommissioned_broker_accepts_no_messages(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            port = server.broker.http_port
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T", b"before")
            await peer.send("T", DELAY="18")
            for _ in range(2):
                answer = await get(port, "/api/v1/decommission", method="POST")
                assert answer[:2] == (202, {"decommissioned": True, "pendingDelays": 1})
            assert (await peer.send("T")).code != 0
            assert (await peer.pull("T", 0)).code == 0
            assert (await get(port, "/readyz"))[0] == 200

    run(scenario)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/api/v1/decommission", 405, "method_not_allowed"),
        ("POST", "/metrics", 405, "method_not_allowed"),
    ],
)
def test_errors_have_one_format(tmp_path: Path, method: str, path: str, status: int, code: str) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            answered, body, _ = await get(server.broker.http_port, path, method=method)
            assert (answered, body["error"]["code"]) == (status, code)
            assert body["error"]["message"]

    run(scenario)


def test_unexpected_error_is_a_500_with_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:

            def fail() -> None:
                raise RuntimeError("a defect")

            monkeypatch.setattr(server.broker.broker.delivery, "status", fail)
            status, body, _ = await get(server.broker.http_port, "/api/v1/delay")
            assert status == 500
            assert body == {"error": {"code": "internal_error", "message": "RuntimeError: a defect"}}

    run(scenario)


def test_token_is_required_except_for_health_and_metrics(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, http_host="0.0.0.0", http_token="secret") as server:
            port = server.broker.http_port
            for path in ("/livez", "/readyz", "/metrics"):
                assert (await get(port, path))[0] == 200
            for token in (None, "", "wrong", "secret2"):
                status, body, _ = await get(port, "/api/v1/delay", token=token)
                assert (status, body["error"]["code"]) == (401, "unauthorized")
            assert (await get(port, "/api/v1/decommission", method="POST"))[0] == 401
            assert server.broker.decommissioned is False
            assert (await get(port, "/api/v1/delay", token="secret"))[0] == 200

    run(scenario)


def test_only_loopback_is_open_without_a_token(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, http_host="0.0.0.0") as server:
            status, body, _ = await get(server.broker.http_port, "/api/v1/delay")
            assert (status, body["error"]["code"]) == (403, "token_not_configured")

    run(scenario)


def test_nameserver_has_its_own_probes(tmp_path: Path) -> None:
    async def scenario() -> None:
        with socket.socket() as free:
            free.bind((HOST, 0))
            port = free.getsockname()[1]
        async with standalone(tmp_path, http=True, namesrv_http_port=port) as server:
            assert server.namesrv.http_port == port
            assert (await get(port, "/readyz"))[0] == 200
            assert (await get(port, "/livez"))[0] == 200
            async with aiohttp.ClientSession() as session, session.get(f"http://{HOST}:{port}/metrics") as answer:
                text = await answer.text()
            assert "delaymq_namesrv_brokers 1.0" in text
            assert 'delaymq_namesrv_refused_total{reason="owner"} 0.0' in text

    run(scenario)


def test_client_disconnecting_before_its_response_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            assert server.broker._http is not None
            seen = asyncio.Event()

            async def left(request: web.Request) -> web.StreamResponse:
                assert request.transport is not None
                request.transport.abort()
                seen.set()
                answer = web.StreamResponse()
                await answer.prepare(request)
                return answer

            for route in server.broker._http._runner.app.router.routes():
                if route.method == "GET" and route.resource is not None and route.resource.canonical == "/livez":
                    route._handler = left
            _, writer = await asyncio.open_connection(HOST, server.broker.http_port)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await seen.wait()
            await until(lambda: server.broker.http_connections == 0)
            writer.close()

    run(scenario)
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []
