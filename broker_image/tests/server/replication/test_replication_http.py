"""A replica refuses requests over HTTP that change what it receives from its master."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from delaymq.server.api.routes import ROUTES
from delaymq_testing.asked_api import asked
from delaymq_testing.running_server import run

OF_MASTERS = [route for route in ROUTES if route.of_master]


@pytest.mark.parametrize("route", OF_MASTERS, ids=lambda route: f"{route.method} {route.path}")
def test_replica_refuses_changes_with_the_name_of_the_master(tmp_path: Path, route: Any) -> None:
    async def scenario() -> None:
        async with asked(tmp_path) as api:
            api.broker.following = cast(Any, object())
            api.broker.master_name = lambda: "member a at 10.0.0.1:10911"
            path = route.path.replace("{topic}", "T").replace("{group}", "G").replace("{account}", "A")
            ask = api.put if route.method == "PUT" else api.post
            problem = (await ask(path.removeprefix("/api/v1/"), {}, 409))["error"]
            assert problem["code"] == "replica"
            assert problem["message"].endswith("send the request to member a at 10.0.0.1:10911")
            api.broker.following = None

    run(scenario)


def test_only_requests_about_a_member_itself_are_served_by_replicas() -> None:
    served = {f"{route.method} {route.path}" for route in ROUTES if route.method != "GET" and not route.of_master}
    assert served == {
        "POST /api/v1/session",
        "DELETE /api/v1/session",
        "PUT /api/v1/log-level",
        "POST /api/v1/drain",
        "POST /api/v1/decommission",
        "POST /api/v1/store/pins",
        "DELETE /api/v1/store/pins/{holder}",
        "POST /api/v1/replication/switchover",
        "POST /api/v1/replication/promote",
        "POST /api/v1/replication/prepare-detach",
        "POST /api/v1/replication/detach",
    }
