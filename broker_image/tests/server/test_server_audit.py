"""Changes over the protocol and over HTTP are in the audit log when their responses arrive."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import FLAG_ONEWAY, Command, request_command
from delaymq.protocol.signatures import Signer
from delaymq.server.audit.requests import BROKER_CHANGES
from delaymq.server.audit.routes import CHANGES
from delaymq.server.standalone import Standalone
from delaymq_testing.audit_lines import lines_of, text_of
from delaymq_testing.running_server import HOST, BrokerPeer, run, standalone, until

TOKEN = "t0ken-for-tests"
RULES = """
accounts:
- {accessKey: operators, secretKey: operators-secret, admin: true}
- {accessKey: application, secretKey: application-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
"""
TOPIC_FIELDS = {
    "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip
REQUESTS: dict[int, tuple[dict[str, str], bytes, dict[str, str]]] = {
    17: (TOPIC_FIELDS, b"", {"topic": "T"}),
    25: ({}, b"traceOn=false", {"settings": "traceOn"}),
    50: ({"accessKey": "newcomer", "secretKey": "newcomer-secret"}, b"", {"account": "newcomer"}),
    51: ({"accessKey": "newcomer"}, b"", {"account": "newcomer"}),
    53: ({"globalWhiteAddrs": "10.9.9.9"}, b"", {}),
    200: ({}, b'{"groupName":"G"}', {"group": "G"}),
    207: ({"groupName": "G"}, b"", {"group": "G"}),
    215: ({"topic": "T"}, b"", {"topic": "T"}),
    222: ({"topic": "T", "group": "G", "timestamp": "-1", "isForce": "true"}, b"", {"topic": "T", "group": "G"}),
    306: ({}, b"", {}),
    309: ({"consumerGroup": "G", "clientId": "C", "msgId": "M"}, b"", {"group": "G", "client": "C", "id": "M"}),
    314: ({"srcGroup": "A", "destGroup": "B"}, b"", {"group": "B", "of": "A"}),
    316: ({}, b"", {}),
    323: ({"msgId": "M"}, b"", {"id": "M"}),
    329: ({}, b"", {}),
    370: ({"topic": "T", "recallHandle": "djEgVCBiIDEgSUQ"}, b"", {"topic": "T", "id": "ID"}),
}


def folder_of(server: Standalone) -> Path:
    folder = server.broker.auditing.log.folder
    assert folder is not None
    return folder


def signed(command: Command, account: str = "operators", secret: str = "") -> Command:
    Signer(secret or f"{account}-secret").sign(command, account)
    return command


def signs_as(account: str) -> Callable[[Command], None]:
    """A function that signs each request of a connection."""
    return lambda command: Signer(f"{account}-secret").sign(command, account)


def rules(path: Path) -> dict[str, Any]:
    (path / "plain_acl.yml").write_text(RULES)
    return {"acl_enable": True, "acl_config_path": str(path / "plain_acl.yml")}


def test_requests_cover_the_table() -> None:
    assert {*REQUESTS, RequestCode.UPDATE_CONSUMER_OFFSET} == {*BROKER_CHANGES}


def test_every_changing_request_code_is_recorded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, **rules(tmp_path)) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            for code, (fields, body, target) in REQUESTS.items():
                answer = await peer.connection.request(signed(request_command(code, dict(fields), body)), 20_000)
                line = lines_of(folder_of(server))[-1]
                assert (line["code"], line["action"]) == (code, BROKER_CHANGES[code].action)
                assert (line["status"], line["result"] == "done") == (answer.code, answer.code == 0), (line, answer)
                assert line.get("target", {}) == target
                assert (line["account"], line["verified"], line["server"]) == ("operators", True, "broker-a")
                assert line["peer"].startswith(f"{HOST}:")
            assert len(lines_of(folder_of(server))) == len(REQUESTS)
            assert "newcomer-secret" not in text_of(folder_of(server))

    run(scenario)


def test_refused_attempts_state_whose_they_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, **rules(tmp_path)) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            delete = {"topic": "T"}
            for command, account, verified in (
                (request_command(215, dict(delete)), "", False),
                (signed(request_command(215, dict(delete)), "application"), "application", True),
                (signed(request_command(215, dict(delete)), "operators", "guessed-secret"), "operators", False),
                (signed(request_command(215, dict(delete)), "nobody-known"), "nobody-known", False),
            ):
                assert (await peer.connection.request(command)).code == 1
                line = lines_of(folder_of(server))[-1]
                assert (line["result"], line["target"]) == ("refused", delete)
                assert (line.get("account", ""), line.get("verified", False)) == (account, verified)
                assert "AclException" in line["remark"]

    run(scenario)


def test_account_of_another_request_of_the_connection_verifies_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, **rules(tmp_path)) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            good, bad = request_command(316, {}), request_command(316, {})
            assert (await peer.connection.request(signed(good))).code == 0
            assert (await peer.connection.request(signed(bad, secret="guessed-secret"))).code == 1
            assert [line.get("verified", False) for line in lines_of(folder_of(server))] == [True, False]

    run(scenario)


def test_one_way_request_is_recorded_with_its_result(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            peer.connection.send_oneway(request_command(17, dict(TOPIC_FIELDS)))
            peer.connection.send_oneway(request_command(17, {**TOPIC_FIELDS, "topic": "SCHEDULE_TOPIC_XXXX"}))
            answer = await peer.connection.request(request_command(28))
            assert answer.code == 0
            found = [(line["target"]["topic"], line["result"]) for line in lines_of(folder_of(server))]
            assert found == [("T", "done"), ("SCHEDULE_TOPIC_XXXX", "refused")]
            assert "T" in server.broker.broker.topics.table

    run(scenario)


@pytest.mark.parametrize(
    ("account", "oneway", "recorded"), [("operators", 0, 1), ("operators", 1, 0), ("application", 0, 0)]
)
def test_offset_commits_are_recorded_if_an_administrator_waits_for_them(
    tmp_path: Path, account: str, oneway: int, recorded: int
) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, **rules(tmp_path)) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            fields = {"consumerGroup": "G", "topic": "TBW102", "queueId": "0", "commitOffset": "0"}
            command = signed(request_command(15, fields), account)
            if oneway:
                peer.connection.send_oneway(command)
                await peer.connection.request(signed(request_command(28)))
            else:
                await peer.connection.request(command)
            lines = lines_of(folder_of(server))
            assert [line["action"] for line in lines] == ["offset.set"] * recorded

    run(scenario)


def test_ordinary_traffic_is_not_recorded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            assert (await peer.send("T")).code == 0
            assert (await peer.pull("T", 0)).code == 0
            assert not folder_of(server).exists()

    run(scenario)


def test_changes_that_messages_request_are_recorded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, **rules(tmp_path)) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            peer.connection.sign = signs_as("application")
            await peer.send("T", DELAY_KEY="order-1", TIMER_DELAY_SEC="600")
            assert (await peer.send("T", DELAY_ACTION="cancel", DELAY_KEY="order-1")).code == 0
            assert (await peer.send("T", DELAY_ACTION="cancel", DELAY_KEY="order-2")).code == 604
            assert (await peer.send("T", DELAY_ACTION="pause", DELAY_GROUP="g")).code == 0
            found = [
                (line["action"], line["target"], line["result"], line["account"], line["verified"], line["via"])
                for line in lines_of(folder_of(server))
            ]
            whose = ("application", True, "message")
            assert found == [
                ("delay.cancel", {"topic": "T", "key": "order-1"}, "done", *whose),
                ("delay.cancel", {"topic": "T", "key": "order-2"}, "refused", *whose),
                ("delay.pause", {"topic": "T", "group": "g"}, "done", *whose),
            ]

    run(scenario)


def test_full_disk_of_the_audit_log_fails_no_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "file").write_text("")
        async with standalone(tmp_path, http=True, audit_log_path=str(tmp_path / "file" / "audit")) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            assert (await peer.connection.request(request_command(17, dict(TOPIC_FIELDS)))).code == 0
            status, text = await asked(server, "GET", "/metrics")
            assert "delaymq_audit_dropped_total 1.0" in text
            status, text = await asked(server, "GET", "/api/v1/audit")
            assert (status, "cannot be read" in text) == (503, True)

    run(scenario)


@pytest.mark.parametrize("changes", [{"audit_log_enable": False}, {"read_only": True}])
def test_audit_log_can_be_off(tmp_path: Path, changes: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path):
            pass
        async with standalone(tmp_path, http=True, **changes) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.connection.request(request_command(25, {}, b"traceOn=false"))
            status, text = await asked(server, "GET", "/api/v1/audit")
            assert (status, '"enabled":false' in text) == (200, True)

    run(scenario)
    assert not [*tmp_path.rglob("audit-*")]


# HTTP


async def asked(
    server: Standalone, method: str, path: str, body: Any = None, token: str | None = None, **headers: str
) -> tuple[int, str]:
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://{HOST}:{server.broker.http_port}{path}", json=body, headers=headers) as answer,
    ):
        return answer.status, await answer.text()


BODIES: dict[str, tuple[Any, str, dict[str, str]]] = {
    "/api/v1/log-level": ({"level": "info"}, "log-level.set", {"level": "info"}),
    "/api/v1/drain": ({"mode": "none"}, "broker.drain", {"mode": "none"}),
    "/api/v1/replication/switchover": ({"target": "b", "epoch": 1}, "replica.switchover", {"member": "b"}),
    "/api/v1/replication/detach": ({"member": "b"}, "replica.detach", {"member": "b"}),
    "/api/v1/delay/changes": (
        {"action": "fire", "topic": "T", "key": "K"}, "delay.fire", {"topic": "T", "key": "K"}
    ),
    "/api/v1/delay/resume": ({"overdue": "deliver"}, "delay.resume", {"overdue": "deliver"}),
    "/api/v1/store/pins": (
        {"holder": "backup-1", "offset": 0, "leaseMs": 1_000}, "store.pin", {"holder": "backup-1"}
    ),
}  # fmt: skip


def test_every_changing_route_is_recorded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, http_token=TOKEN) as server:
            for (method, path), change in CHANGES.items():
                body, action, named = BODIES.get(path, ({}, change.action, {}))
                whole = path.format(group="mine", topic="T", account="A", holder="backup-9")
                status, _ = await asked(server, method, whole, body, TOKEN)
                line = lines_of(folder_of(server))[-1]
                assert (line["route"], line["action"], line["via"]) == (f"{method} {path}", action, "http")
                assert (line["status"], line["result"] == "done") == (status, status < 400)
                in_path = {"{group}": {"group": "mine"}, "{topic}": {"topic": "T"}, "{account}": {"account": "A"}}
                in_path["{holder}"] = {"holder": "backup-9"}
                expected = named | next((names for part, names in in_path.items() if part in path), {})
                assert line.get("target", {}) == expected
                assert line["verified"] is True
            assert len(lines_of(folder_of(server))) == len(CHANGES)

    run(scenario)


def test_refused_http_requests_are_recorded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True, http_token=TOKEN) as server:
            for token in (None, "guessed-token"):
                status, _ = await asked(server, "POST", "/api/v1/delay/pause", {}, token)
                assert status == 401
                line = lines_of(folder_of(server))[-1]
                assert (line["action"], line["result"], line["status"]) == ("delay.pause", "refused", 401)
                assert "verified" not in line
            assert "guessed-token" not in text_of(folder_of(server))
            count = len(lines_of(folder_of(server)))
            for method, path in (("GET", "/api/v1/topics"), ("POST", "/api/v1/nothing"), ("DELETE", "/api/v1/drain")):
                await asked(server, method, path, None, TOKEN)
            assert len(lines_of(folder_of(server))) == count

    run(scenario)


def test_peer_in_a_header_counts_only_for_a_supervisor(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            await asked(server, "POST", "/api/v1/delay/pause", {}, **{"DelayMQ-Peer": "10.9.9.9:1"})
            assert lines_of(folder_of(server))[-1]["peer"].startswith(f"{HOST}:")

    run(scenario)


def test_page_of_lines_over_http(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, http=True) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            for number in range(5):
                await peer.connection.request(request_command(17, {**TOPIC_FIELDS, "topic": f"T{number}"}))
            await peer.connection.request(request_command(215, {"topic": "T1"}))
            found: list[str] = []
            before = ""
            for _ in range(4):
                page = await answer_of(server, f"/api/v1/audit?limit=2&action=topic.put{before}")
                found += [line["target"]["topic"] for line in page["lines"]]
                if page["next"] is None:
                    break
                before = f"&before={page['next']}"
            assert found == ["T4", "T3", "T2", "T1", "T0"]
            page = await answer_of(server, "/api/v1/audit?target=t1&limit=1000")
            assert [line["action"] for line in page["lines"]] == ["topic.delete", "topic.put"]
            assert (page["limit"], page["unreadable"], page["enabled"]) == (200, 0, True)
            for wrong in ("before=x", "result=maybe", "limit=0", "fromMs=-1", "account="):
                status, text = await asked(server, "GET", f"/api/v1/audit?{wrong}")
                assert (status, "bad_request" in text) == (400, True), wrong

    run(scenario)


async def answer_of(server: Standalone, path: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(f"http://{HOST}:{server.broker.http_port}{path}") as got:
        assert got.status == 200
        return await got.json()


# Load


def test_flood_of_refused_changes_writes_little_and_honest_changes_stay(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, **rules(tmp_path)) as server:
            hostile, honest = [await BrokerPeer.connect(server.broker.port) for _ in range(2)]
            honest.connection.sign = signs_as("operators")
            for number in range(40):
                for _ in range(500):
                    hostile.connection.send_oneway(request_command(215, {"topic": "x" * 200}))
                answer = await honest.connection.request(
                    request_command(17, {**TOPIC_FIELDS, "topic": f"T{number}"}), 20_000
                )
                assert answer.code == 0
            log = server.broker.auditing.log
            await until(lambda: log.suppressed + log.lines["refused"] == 20_000)
            lines = lines_of(folder_of(server))
            assert sum(line["result"] == "done" for line in lines) == 40
            assert log.lines["refused"] < 200
            hostile.connection.close()
            await asyncio.sleep(0)

    run(scenario)


def test_flag_of_one_way_requests_stays_set() -> None:
    from delaymq.server.audit.auditing import audited

    command = request_command(17, dict(TOPIC_FIELDS), b"body")
    command.flag |= FLAG_ONEWAY
    copy = audited(command, lambda response: None)
    for name in command.__struct_fields__:
        assert getattr(copy, name) == getattr(command, name)
