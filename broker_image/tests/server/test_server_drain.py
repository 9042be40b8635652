"""Drains over HTTP: their effect on NameServers and clients, leases, and the status in /api/v1."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from delaymq import __version__
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq_testing.running_server import HOST, BrokerPeer, run, standalone, until


async def ask(
    port: int | None, path: str, *, method: str = "GET", body: object = None, data: bytes | None = None
) -> tuple[int, Any]:
    """Status and JSON body; `body` is sent as JSON, `data` unchanged."""
    data = data if body is None else json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as session,
        session.request(
            method, f"http://{HOST}:{port}{path}", data=data, headers={"Content-Type": "application/json"}
        ) as answer,
    ):
        return answer.status, await answer.json()


async def drain(port: int | None, mode: str, lease_ms: int | None = 60_000) -> tuple[int, Any]:
    return await ask(port, "/api/v1/drain", method="POST", body={"mode": mode, "leaseMs": lease_ms})


def permission(server: Any, topic: str) -> int:
    """As the NameServer knows it."""
    return int(server.namesrv.namesrv.routes.topics[topic]["broker-a"].perm)


def test_withdrawn_broker_is_immediately_read_only_at_nameservers_and_accepts_sends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            port = server.broker.http_port
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T")
            await until(lambda: permission(server, "T") == 6)
            status, said = await drain(port, "withdraw")
            assert (status, said["mode"]) == (200, "withdraw")
            assert said["leaseEndsMs"] == said["sinceMs"] + 60_000
            await until(lambda: permission(server, "T") == 4)
            assert permission(server, "TBW102") == 5
            assert (await peer.send("T")).code == 0
            assert (await ask(port, "/readyz"))[0] == 200
            status, said = await ask(port, "/api/v1/drain")
            assert (status, said["sends"]) == (200, 2)
            assert said["lastSendMs"] >= said["sinceMs"]
            await drain(port, "refuse")
            assert (await peer.send("T")).code == 14
            assert (await peer.pull("T", 0)).code == 0
            assert (await ask(port, "/readyz"))[0] == 200
            status, said = await drain(port, "none", None)
            assert (said["mode"], said["leaseEndsMs"]) == ("none", None)
            assert (await peer.send("T")).code == 0
            await until(lambda: permission(server, "T") == 6)

    run(scenario)


def test_expired_drain_registers_writes_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T")
            # Held off for as long as it takes to look; only then the lease is one that ends.
            assert (await drain(server.broker.http_port, "refuse", 60_000))[0] == 200
            first_timer = server.broker.draining._timer
            await until(lambda: permission(server, "T") == 4)
            assert (await peer.send("T")).code == 14
            assert (await drain(server.broker.http_port, "refuse", 1_000))[0] == 200
            assert first_timer is not None
            assert first_timer.cancelled()
            await until(lambda: server.broker.broker.drain.mode == "none")
            assert (await peer.send("T")).code == 0
            await until(lambda: permission(server, "T") == 6)

    run(scenario)
    assert caplog.text.count("the lease expired") == 1


def test_drained_broker_restarts_with_writes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            await (await BrokerPeer.connect(server.broker.port)).send("T")
            await drain(server.broker.http_port, "refuse")
            first = (await ask(server.broker.http_port, "/api/v1/broker"))[1]
            assert (first["drain"]["mode"], first["decommissioned"]) == ("refuse", False)
        async with standalone(tmp_path, http=True) as server:
            second = (await ask(server.broker.http_port, "/api/v1/broker"))[1]
            assert second["drain"]["mode"] == "none"
            await until(lambda: permission(server, "T") == 6)
            assert first["storeId"] == second["storeId"]
            assert first["bootId"] != second["bootId"]
            state = json.loads((tmp_path / "store" / "delaymq" / "state.json").read_text())
            assert state["storeId"] == second["storeId"]

    run(scenario)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (b"{}", "`mode`"),
        (b'{"mode":"away","leaseMs":5000}', "Invalid enum value"),
        (b'{"mode":"withdraw"}', "withdraw requires leaseMs"),
        (b'{"mode":"refuse","leaseMs":null}', "refuse requires leaseMs"),
        (b'{"mode":"refuse","leaseMs":999}', ">= 1000"),
        (b'{"mode":"refuse","leaseMs":600001}', "<= 600000"),
        (b'{"mode":"refuse","leaseMs":"5000"}', "Expected `int"),
        (b'{"mode":"refuse","leaseMs":5000,"lease":1}', "unknown field `lease`"),
        (b"\xff", "send {"),
    ],
)
def test_invalid_drain_is_rejected_with_an_example(tmp_path: Path, data: bytes, complaint: str) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            status, said = await ask(server.broker.http_port, "/api/v1/drain", method="POST", data=data)
            assert (status, said["error"]["code"]) == (400, "bad_request")
            assert complaint in said["error"]["message"]
            assert '"leaseMs": 30000' in said["error"]["message"]
            assert server.broker.broker.drain.mode == "none"

    run(scenario)


def test_endless_body_is_rejected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            data = b" " * 70_000
            status, said = await ask(server.broker.http_port, "/api/v1/drain", method="POST", data=data)
            assert (status, "error" in said) == (413, True)

    run(scenario)


def test_one_response_has_identity_and_state_of_a_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, message_delay_level="1s 1h") as server:
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T", DELAY="2")
            status, said = await ask(server.broker.http_port, "/api/v1/broker")
            assert status == 200
            assert (said["version"], said["brokerName"], said["clusterName"]) == (
                __version__,
                "broker-a",
                "DefaultCluster",
            )
            assert (said["ready"], said["notReady"], said["address"]) == (True, [], f"{HOST}:{server.broker.port}")
            assert said["asOfMs"] >= said["startedAtMs"] == server.broker.broker.stats.boot_ms
            assert (said["drain"]["mode"], said["drain"]["sends"]) == ("none", 1)
            assert said["settings"]["messageDelayLevel"] == "1s 1h"
            assert said["delay"]["levels"][1]["pending"] == 1

    run(scenario)


def test_response_contains_no_secret(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, http_token="the-secret") as server:
            headers = {"Authorization": "Bearer the-secret"}
            url = f"http://{HOST}:{server.broker.http_port}/api/v1/broker"
            async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
                text = await answer.text()
                assert answer.status == 200
            assert "the-secret" not in text
            assert '"httpToken"' not in text
            for path in ("broker", "drain", "remaining"):
                assert (await ask(server.broker.http_port, f"/api/v1/{path}"))[0] == 401
            assert (await drain(server.broker.http_port, "refuse"))[0] == 401
            assert server.broker.broker.drain.mode == "none"

    run(scenario)


def test_remaining_messages_are_pending_and_unconsumed_ones(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            for _ in range(3):
                await peer.send("T")
            await peer.send("T", DELAY="18")
            await peer.send("T", TIMER_DELAY_SEC="3600")
            server.broker.broker.groups.find("readers")
            fields = {"consumerGroup": "readers", "topic": "T", "queueId": "0", "commitOffset": "1"}
            await peer.connection.request(request_command(RequestCode.UPDATE_CONSUMER_OFFSET, fields))
            status, said = await ask(server.broker.http_port, "/api/v1/remaining")
            assert status == 200
            assert said.pop("asOfMs") > 0
            assert said == {
                "pendingDelays": 2,
                "unconsumed": [{"group": "readers", "topic": "T", "messages": 2}],
                "unconsumedMessages": 2,
                "activeGroups": ["readers"],
            }

    run(scenario)


def test_scan_of_many_groups_yields_to_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            broker = server.broker.broker
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T")
            for number in range(10_000):
                broker.groups.find(f"g{number}")
                broker.offsets.commit("T", f"g{number}", 0, 0)
            asked = asyncio.ensure_future(ask(server.broker.http_port, "/api/v1/remaining"))
            slices = 0
            while not asked.done():
                assert (await peer.send("T")).code == 0
                slices += 1
            status, said = await asked
            assert (status, len(said["unconsumed"]), len(said["activeGroups"])) == (200, 100, 100)
            assert said["unconsumedMessages"] >= 10_000
            assert slices > 2

    run(scenario)
