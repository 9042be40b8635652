"""Settings and log levels of a running broker, over HTTP and over the wire."""

import asyncio
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from delaymq.config.log_levels import MAX_LOGGERS
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, request_command
from delaymq.server.logs import output as logs
from delaymq.server.standalone import Standalone
from delaymq_testing.running_server import BOUND_S, HOST, BrokerPeer, run, standalone


def ask(server: Standalone, path: str, body: object = None, method: str = "GET", token: str = "") -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    url = f"http://{HOST}:{server.broker.http_port}/api/v1/{path}"
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=BOUND_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


async def asked(server: Standalone, *args: Any, **more: Any) -> tuple[int, Any]:
    return await asyncio.to_thread(ask, server, *args, **more)


async def change(server: Standalone, text: str) -> Command:
    peer = await BrokerPeer.connect(server.broker.port)
    try:
        return await peer.connection.request(request_command(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode()))
    finally:
        peer.connection.close()


async def rows(server: Standalone, **more: Any) -> dict[str, Any]:
    status, answer = await asked(server, "config", **more)
    assert status == 200
    return {row["key"]: row for row in answer["settings"]}


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    root = logging.getLogger()
    before = root.level
    yield
    logs.set_levels("info")
    root.setLevel(before)


def test_settings_have_their_origin_and_run_time_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, http_token="t0k3n") as server:
            answer = await change(server, "fileReservedTime=24")
            assert (answer.code, str(answer.remark).split(";")[0]) == (0, "changed now: fileReservedTime")
            found = await rows(server, token="t0k3n")
            assert found["fileReservedTime"]["value"] == "24"
            assert "by code 25 of 127.0.0.1:" in found["fileReservedTime"]["origin"]
            assert found["deleteWhen"]["origin"] == "default"
            assert found["namesrvAddr"]["origin"] == "set by the server itself"
            assert (found["httpToken"]["value"], found["httpToken"]["isSet"]) == (None, True)
            assert "t0k3n" not in json.dumps(found)

    run(scenario)


def test_log_level_changes_over_http_until_the_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            assert await asked(server, "log-level") == (200, {"level": "info", "loggers": {}})
            wanted = {"level": "warning", "loggers": {"delaymq.store": "debug"}}
            assert await asked(server, "log-level", wanted, "PUT") == (200, wanted)
            assert not logging.getLogger("delaymq.server").isEnabledFor(logging.INFO)
            assert logging.getLogger("delaymq.store.index.index_file").isEnabledFor(logging.DEBUG)
            assert await asked(server, "log-level") == (200, wanted)
            row = (await rows(server))["logLevel"]
            assert row["value"] == "warning;delaymq.store=debug"
            assert row["origin"].endswith("by HTTP, until the next restart")

    run(scenario)


def test_log_level_changes_by_code_25(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            assert (await change(server, "logLevel=error;delaymq.broker=debug")).code == 0
            assert not logging.getLogger("delaymq.server").isEnabledFor(logging.WARNING)
            assert logging.getLogger("delaymq.broker.topics").isEnabledFor(logging.DEBUG)
            assert (await asked(server, "log-level"))[1] == {"level": "error", "loggers": {"delaymq.broker": "debug"}}

    run(scenario)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"level": "loud"}, "'loud' is not a level"),
        ({"level": "info", "loggers": {"os": "debug"}}, "does not name a logger"),
        ({"level": "info", "loggers": {"delaymq=x;y": "debug"}}, "neither a level nor the name of a logger"),
        ({"level": "info;a=debug"}, "neither a level nor the name of a logger"),
        ({"level": "info", "loggers": {f"delaymq.a{number}": "debug" for number in range(MAX_LOGGERS + 1)}}, "32"),
        ({"levels": "info"}, "level, loggers"),
        ([], "level, loggers"),
    ],
)
def test_invalid_level_is_rejected_without_effect(tmp_path: Path, body: object, words: str) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            status, answer = await asked(server, "log-level", body, "PUT")
            assert (status, words in answer["error"]["message"]) == (400, True), answer
            assert server.broker.broker.config.log_level == "info"

    run(scenario)
