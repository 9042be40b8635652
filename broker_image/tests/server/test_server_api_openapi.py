"""The OpenAPI description agrees with routes and responses."""

import asyncio
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import aiohttp
import pytest
from aiohttp import web
from delaymq.api_types import config as api_config
from delaymq.api_types import delay as api_delay
from delaymq.broker.delivery import control
from delaymq.config import log_levels
from delaymq.server.api.openapi import description
from delaymq.server.api.routes import ROUTES
from delaymq.server.console import is_console_path
from delaymq.server.logs import output as logs
from delaymq_testing.running_server import HOST, BrokerPeer, run, standalone

FUZZED_S = 8
"""What schemathesis may take of its fuzzing phases; the deadline of the test is far beyond."""
EXPECTED = """
[[operations]]
include-operation-id = "post-topics-topic-messages"
# A schema cannot state the longest delay and the most bytes of all properties together.
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 403, 404, 503]
# Other requests may take the broker out of service.
checks.not_a_server_error.expected-statuses = ["2xx", "4xx", 503]

[[operations]]
include-operation-id = "get-delay-pending"
# A schema cannot state that parameters exclude each other: level, and kind=timed.
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 503]

[[operations]]
include-operation-id = "get-delay-pending-messages"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 503]

[[operations]]
include-operation-id = "put-delay-settings-topics-topic"
# The schema does not state that overMs belongs to one treatment: the error explains it better than that of a union.
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 404, 409, 503]
"""
"""Statuses that schemathesis would report as defects."""


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Fuzzing may change `logLevel`, and the broker runs in the process of the tests."""
    root = logging.getLogger()
    before = root.level
    yield
    logs.set_levels("info")
    root.setLevel(before)


def test_routes_and_descriptions_match(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            assert server.broker._http is not None
            app = server.broker._http._runner.app
            routed = {
                (route.method, route.resource.canonical)
                for route in app.router.routes()
                if route.resource is not None and route.method != "HEAD"
            }
            described = {
                (method.upper(), path) for path, methods in description(ROUTES)["paths"].items() for method in methods
            }
            assert {each for each in routed if not is_console_path(each[1].replace("{name}", "x"))} == described

    run(scenario)


def test_operation_ids_are_unique_and_path_parameters_are_described() -> None:
    ids = []
    for path, methods in description(ROUTES)["paths"].items():
        for operation in methods.values():
            ids.append(operation["operationId"])
            in_path = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert in_path == {part[1:-1] for part in path.split("/") if part.startswith("{")}
    assert len(set(ids)) == len(ids) == len(ROUTES)


def test_every_operation_describes_shortages_and_retry_after() -> None:
    for methods in description(ROUTES)["paths"].values():
        for operation in methods.values():
            unavailable = operation["responses"]["503"]
            assert "`shortage`" in unavailable["description"]
            assert list(unavailable["headers"]) == ["Retry-After"]


def test_open_paths_match_the_guard() -> None:
    from delaymq.server.http.guard import OPEN_PATHS, SESSION_PATH

    assert {route.path for route in ROUTES if route.needs.is_open} == {*OPEN_PATHS, SESSION_PATH}


def test_handlers_return_their_described_type() -> None:
    streamed = set()
    for route in ROUTES:
        returned = get_type_hints(route.handle)["return"]
        if route.answer in (None, dict):
            continue
        if returned in (web.Response, web.StreamResponse):
            streamed.add(route.path)
        else:
            assert route.answer in (returned, *get_args(returned)), route.path
    # One is shared with NameServers, one sets a cookie, the others are made piece by piece.
    assert streamed == {"/readyz", "/api/v1/session", "/api/v1/store/positions", "/api/v1/store/files"}


def test_response_members_are_described_as_sent() -> None:
    schemas = description(ROUTES)["components"]["schemas"]
    for name in ("About", "Delay", "DelayLevel", "Drain", "LifeEvent", "Pending", "Remaining"):
        assert sorted(schemas[name]["required"]) == sorted(schemas[name]["properties"]), name
        assert not any("default" in each for each in schemas[name]["properties"].values()), name
    assert schemas["PendingRow"]["required"] == ["pending", "nextDueMs"]


def test_described_limits_equal_the_brokers() -> None:
    assert api_config.MAX_LOGGERS == log_levels.MAX_LOGGERS
    assert api_delay.MAX_SPREAD_MS == control.MAX_SPREAD_MS


@pytest.mark.timeout(180)
def test_schemathesis_finds_no_undescribed_response(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, message_delay_level="1s 1h 2h") as server:
            await _fill(server.broker.port)
            url = f"http://{HOST}:{server.broker.http_port}/api/v1/openapi.json"
            (tmp_path / "schemathesis.toml").write_text(EXPECTED)
            bounds = ["--max-examples", "4", "--max-time", str(FUZZED_S), "--seed", "1"]
            process = await asyncio.create_subprocess_exec(
                *(
                    str(Path(sys.executable).parent / "schemathesis"),
                    "run",
                    url,
                    "--checks",
                    "all",
                    "--no-color",
                    *bounds,
                ),
                cwd=tmp_path,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            said, _ = await process.communicate()
            assert process.returncode == 0, said.decode()

    run(scenario, bound_s=150)


async def _fill(port: int) -> None:
    """Messages of all kinds: plain, delayed, delivered, with keys and without."""
    peer = await BrokerPeer.connect(port)
    await peer.send("T", b"plain", UNIQ_KEY="A" * 32, KEYS="k1 k2", TAGS="a")
    await peer.send("T", bytes(range(256)), KEYS="k1")
    await peer.send("T", b"large" * 40_000, UNIQ_KEY="D" * 32)
    await peer.send("T", b"later", UNIQ_KEY="B" * 32, KEYS="k1", DELAY="2")
    await peer.send("T", b"soon", UNIQ_KEY="C" * 32, DELAY="1")
    await peer.pull("T", 3)


@pytest.mark.parametrize("path", ["/api/v1/openapi.json", "/api/v1/totals", "/readyz"])
def test_head_has_no_body_and_options_lists_methods(tmp_path: Path, path: str) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server, aiohttp.ClientSession() as session:
            url = f"http://{HOST}:{server.broker.http_port}{path}"
            answers: dict[str, Any] = {}
            for method in ("HEAD", "OPTIONS", "TRACE"):
                async with session.request(method, url) as answer:
                    answers[method] = answer.status, await answer.read(), answer.headers.get("Allow")
            assert answers["HEAD"] == (200, b"", None)
            assert answers["OPTIONS"] == (204, b"", "GET, HEAD, OPTIONS")
            assert answers["TRACE"][0] == 405

    run(scenario)
