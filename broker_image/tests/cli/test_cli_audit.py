"""`delaymq audit`, against processes: kill -9, restart, several broker groups, and files without a server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from delaymq.cli.commands.audit import MAX_LISTED
from delaymq.protocol.command import request_command
from delaymq.transport import TransportError
from delaymq_testing.audit_lines import attempt as attempt_on
from delaymq_testing.audit_lines import lines_of, opened
from delaymq_testing.cli_running import SMALL, Standalone, called
from delaymq_testing.repetitions import SEED
from delaymq_testing.running_server import BrokerPeer
from harness.ports import free_broker_port

BOUND_S = 60
TOKEN = "t0ken"
TOPIC = {
    "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip


async def created(port: int, prefix: str, on_response: Callable[[int], bool]) -> list[str]:
    """The topics whose creation was confirmed, until `on_response` returns False or the broker is gone."""
    peer = await BrokerPeer.connect(port)
    confirmed: list[str] = []
    with contextlib.suppress(TransportError):
        for number in range(10_000):
            name = f"{prefix}-{number}"
            if (await peer.connection.request(request_command(17, {**TOPIC, "topic": name}), 20_000)).code == 0:
                confirmed.append(name)
            if not on_response(len(confirmed)):
                break
    return confirmed


def test_confirmed_changes_are_in_the_log_after_a_kill_and_a_restart_continues_it(tmp_path: Path) -> None:
    chance = random.Random(f"audit kill {SEED}")
    server = Standalone(tmp_path)
    confirmed: list[str] = []
    for start in range(3):
        with server.running() as process:
            last = chance.randrange(20, 200)

            def go_on(count: int, last: int = last, kill: Callable[[], None] = process.kill) -> bool:
                if count == last:
                    kill()
                return count < last + 50

            confirmed += asyncio.run(created(server.listen_port, f"T{start}", go_on))
            process.wait(BOUND_S)
    done = called("audit", "--files", str(server.store_path), "--action", "topic.put", "--json", "--limit", "5000")
    assert done.code == 0, done.err
    recorded = [json.loads(line)["target"]["topic"] for line in done.lines]
    assert set(confirmed) <= set(recorded)
    assert len(recorded) == len(set(recorded))
    # At most the change in progress at each kill was recorded without a response.
    assert len(recorded) <= len(confirmed) + 3
    assert len([*(server.store_path / "delaymq" / "audit").iterdir()]) == 1
    namesrv = called("audit", "--files", str(server.store_path / "delaymq" / "namesrv-audit"), "--json")
    assert {json.loads(line)["action"] for line in namesrv.lines} == {"broker.register"}


def test_command_shows_and_filters_changes_of_a_running_broker(tmp_path: Path) -> None:
    server = Standalone(tmp_path)
    with server.running():
        for words in (
            ("topic", "create", "Orders"),
            ("topic", "delete", "Orders", "--yes"),
            ("topic", "create", "Other"),
        ):
            assert called(*words, environment=server.environment).code == 0

        def audit(*words: str) -> list[str]:
            done = called("audit", *words, environment=server.environment)
            assert done.code == 0, done.err
            return done.lines

        shown = audit("--action", "topic")
        assert [line.split()[4] for line in shown if "topic=" in line][:3] == ["topic.put", "topic.delete", "topic.put"]
        actions = [json.loads(line)["action"] for line in audit("--target", "orders", "--json")]
        assert actions == ["topic.put", "topic.delete"]
        assert len(audit("--limit", "1", "--json", "--http", server.environment["DELAYMQ_HTTP"])) == 1
        assert audit("--until", "1h ago") == ["no such lines in the audit log"]
        assert audit("--result", "refused", "--json") == []


class Groups(Standalone):
    """Two groups with a token."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, f"{SMALL}httpToken={TOKEN}\n")
        self.listen_port = free_broker_port(2)

    @property
    def arguments(self) -> list[str]:
        return [*super().arguments, "--groups", "2"]

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "DELAYMQ_HTTP_TOKEN": TOKEN}

    def post(self, path: str, token: str) -> int:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}", "DelayMQ-Peer": "9.9.9.9:9"}
        url = f"http://127.0.0.1:{self.http_port}{path}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, b"{}", headers), timeout=20) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code


def test_each_group_has_its_own_log_with_the_addresses_of_clients(tmp_path: Path) -> None:
    groups = Groups(tmp_path)
    with groups.running() as supervisor:
        assert called("topic", "create", "Spread", environment=groups.environment).code == 0
        assert groups.post("/brokers/broker-a-1/api/v1/delay/pause", TOKEN) == 202
        assert groups.post("/brokers/broker-a-1/api/v1/delay/pause", "guessed") == 401
        done = called("audit", "--action", "topic.put", "--json", environment=groups.environment)
        servers = {json.loads(line)["server"] for line in done.lines}
        assert servers == {"broker-a", "broker-a-1"}
        assert called("audit", "--json", environment=groups.environment).code == 0
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(BOUND_S) == 0
    second = lines_of(groups.store_path / "groups" / "1" / "delaymq" / "audit")
    pause = [line for line in second if line["action"] == "delay.pause"]
    assert [(line["result"], line["verified"]) for line in pause] == [("done", True)]
    assert pause[0]["peer"].startswith("127.0.0.1:")
    refused = lines_of(groups.store_path / "delaymq" / "audit" / "supervisor")
    assert [(line["action"], line["status"], line["target"], line["server"]) for line in refused] == [
        ("delay.pause", 401, {"broker": "broker-a-1"}, "supervisor")
    ]
    listed = called("audit", "--files", str(groups.store_path), "--json")
    assert {json.loads(line)["server"] for line in listed.lines} == {"broker-a", "namesrv", "supervisor"}


# Files


@pytest.mark.parametrize("part", ["", "delaymq/audit"])
def test_files_of_a_store_or_a_folder_are_read_without_a_server(tmp_path: Path, part: str) -> None:
    log = opened(tmp_path / part)
    log.record(attempt_on(topic="\x1b[2Jevil", account="a b"), "refused", 16, "no\nway")
    log.close()
    done = called("audit", "--files", str(tmp_path))
    assert done.code == 0
    assert "\x1b" not in done.out
    assert "refused 16: no" in done.out
    assert "a b (unverified)" in done.out
    assert called("audit", "--files", str(tmp_path), "--account", "nobody").lines == ["no such lines in the audit log"]


def test_unusable_folders_and_options_are_reported(tmp_path: Path) -> None:
    done = called("audit", "--files", str(tmp_path / "nothing"))
    assert (done.code, "has no audit log" in done.err) == (2, True)
    (tmp_path / "file").write_text("")
    done = called("audit", "--files", str(tmp_path / "file"))
    assert done.code == 1
    assert "cannot read" in done.err
    for words in (("--limit", "0"), ("--limit", str(MAX_LISTED + 1)), ("--result", "maybe"), ("--from", "whenever")):
        assert called("audit", "--files", str(tmp_path), *words).code == 2


def test_unreadable_lines_are_counted(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.record(attempt_on(topic="T"), "done", 0)
    log.close()
    with (tmp_path / "audit-00000001.jsonl").open("a") as file:
        file.write("damage\n")
    done = called("audit", "--files", str(tmp_path), "--json")
    assert len(done.lines) == 1
    assert "1 line of the audit log cannot be read" in done.err
