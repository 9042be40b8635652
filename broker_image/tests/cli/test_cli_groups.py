"""`delaymq standalone --groups 2`: two brokers as processes under a supervisor, of which one is killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delaymq.cli.servers.groups import PORT_DISTANCE, left_groups
from delaymq.client import Client, Message, Producer, PullConsumer
from delaymq.server.groups.merging import merged_metrics
from delaymq_testing.cli_running import SMALL, Done, Standalone, called, command
from harness.ports import free_broker_port

BOUND_S = 60
NAMES = ("broker-a", "broker-a-1")
TOKEN = "t0ken"


class Groups(Standalone):
    """Two groups with a token."""

    def __init__(self, folder: Path, settings: str = f"{SMALL}httpToken={TOKEN}\n") -> None:
        super().__init__(folder, settings)
        self.count = 2
        self.listen_port = free_broker_port(self.count)

    @property
    def arguments(self) -> list[str]:
        return [*super().arguments, "--groups", str(self.count)]

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "DELAYMQ_HTTP_TOKEN": TOKEN}

    def request(self, path: str, token: str = TOKEN, method: str = "GET", body: bytes | None = None) -> tuple[int, str]:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        url = f"http://127.0.0.1:{self.http_port}{path}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers, method=method), timeout=20) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def json(self, path: str) -> Any:
        status, text = self.request(path)
        assert status == 200, text
        return json.loads(text)

    def command(self, *words: str) -> Done:
        return called(*words, environment=self.environment)

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + BOUND_S
        while not condition():
            assert time.monotonic() < deadline, self.log_path.read_text()
            time.sleep(0.05)

    def process_ids(self, supervisor: int) -> dict[str, int]:
        """Process id of each group, from its command line."""
        found = {}
        for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            found[NAMES[int(words[words.index("--group") + 1])]] = int(pid)
        return found


def test_two_groups_are_one_cluster_and_survive_the_loss_of_a_process(tmp_path: Path) -> None:
    groups = Groups(tmp_path)
    with groups.running() as supervisor:
        assert groups.command("topic", "create", "Spread").code == 0
        asyncio.run(messages_are_spread_and_delivered_by_both(groups))
        one_http_address_serves_both(groups)
        commands_find_both(groups)
        killed_group_returns_with_its_messages(groups, supervisor)
        log_lines_name_the_broker(groups)
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(BOUND_S) == 0
    groups.count = 1
    refused = command(*groups.arguments)
    assert refused.returncode == 2
    assert re.search(r"the store has data of group 1 in \S+/groups/1, .* start with --groups 2", refused.stderr)


async def messages_are_spread_and_delivered_by_both(groups: Groups) -> None:
    async with Client(groups.environment["DELAYMQ_NAMESRV"]) as client, Producer(client) as producer:
        results = [await producer.send(Message(topic="Spread", body=b"%d" % n), delay="50ms") for n in range(16)]
        assert {result.queue.broker_name for result in results} == set(NAMES)
        consumer = PullConsumer(client, "readers")
        bodies: set[bytes] = set()
        async with consumer, asyncio.timeout(BOUND_S):
            queues = await consumer.queues("Spread")
            offsets = dict.fromkeys(queues, 0)
            while len(bodies) < 16:
                for queue in queues:
                    pulled = await consumer.pull(queue, offsets[queue])
                    bodies.update(message.body for message in pulled.messages)
                    offsets[queue] = pulled.next_offset
    assert bodies == {b"%d" % n for n in range(16)}


def one_http_address_serves_both(groups: Groups) -> None:
    totals = groups.json("/api/v1/totals")
    each = [groups.json(f"/brokers/{name}/api/v1/totals") for name in NAMES]
    assert totals["delivered"] == 16 == sum(one["delivered"] for one in each)
    assert all(one["delivered"] for one in each)
    status, metrics = groups.request("/metrics", token="")
    assert status == 200
    for name in NAMES:
        assert f'delaymq_build_info{{broker="{name}",' in metrics
        assert f'delaymq_broker_up{{broker="{name}"}} 1' in metrics
    assert metrics.count("# TYPE delaymq_build_info gauge") == 1
    # The token protects what it protects at a broker, also in other spellings of a path.
    for path in (
        "/api/v1/brokers", "/brokers/broker-a/api/v1/totals", "/brokers/broker-a/%61pi/v1/totals",
        "/brokers/broker-a/console/%2e%2e/api/v1/totals", "/brokers/broker-a/console/..%2fapi/v1/totals",
    ):  # fmt: skip
        assert groups.request(path, token="")[0] in (401, 404), path
        assert groups.request(path, token="wrong")[0] in (401, 404), path
    assert groups.request("/brokers/broker-a-1/", token="")[0] == 200
    assert groups.request("/brokers/none/api/v1/totals")[0] == 404
    status, text = groups.request("/api/v1/topics/Spread/messages", method="POST", body=b'{"body":"x"}')
    assert (status, json.loads(text)["error"]["code"]) == (400, "several_brokers")
    status, text = groups.request(
        "/brokers/broker-a-1/api/v1/topics/Spread/messages", method="POST", body=b'{"body":"x"}'
    )
    assert status == 200, text


def commands_find_both(groups: Groups) -> None:
    done = groups.command("topic", "create", "Later")
    assert done.code == 0, done
    done = groups.command("delay", "set", "--topic", "Later", "--max-pending-messages", "100")
    assert done.code == 0, done
    for name in NAMES:
        settings = groups.json(f"/brokers/{name}/api/v1/delay/settings/topics/Later")
        assert settings["settings"]["maxPendingMessages"] == 100
    done = groups.command("delay", "status")
    assert (done.code, "as in --http http://127.0.0.1:" in done.err, "/brokers/NAME" in done.err) == (2, True, True), (
        done
    )
    http = f"http://127.0.0.1:{groups.http_port}/brokers/broker-a-1"
    assert groups.command("delay", "status", "--http", http).code == 0


def killed_group_returns_with_its_messages(groups: Groups, supervisor: subprocess.Popen[bytes]) -> None:
    base = "/brokers/broker-a-1/api/v1"
    pids = groups.process_ids(supervisor.pid)
    body = b'{"body":"later","delayMs":60000}'
    assert groups.request(f"{base}/topics/Later/messages", method="POST", body=body)[0] == 200
    os.kill(pids["broker-a-1"], signal.SIGKILL)
    groups.wait_for(lambda: groups.request("/readyz")[0] == 503)
    assert groups.request(f"{base}/totals")[0] == 503
    assert groups.request("/brokers/broker-a/api/v1/topics/Later/messages", method="POST", body=body)[0] == 200
    groups.wait_for(lambda: groups.request("/readyz")[0] == 200)
    again = groups.process_ids(supervisor.pid)
    assert again["broker-a"] == pids["broker-a"]
    assert again["broker-a-1"] != pids["broker-a-1"]
    assert groups.json(f"{base}/totals")["pending"] == 1
    assert groups.json("/api/v1/totals")["pending"] == 2
    rows = groups.json("/api/v1/brokers")["brokers"]
    assert [(row["brokerName"], row["restarts"]) for row in rows] == [("broker-a", 0), ("broker-a-1", 1)]


def log_lines_name_the_broker(groups: Groups) -> None:
    log = groups.log_path.read_text()
    for name in NAMES:
        assert re.search(rf'level=info broker={name} logger=delaymq event="broker {name} listens', log)
    assert re.search(r'level=error logger=\S+ event="broker broker-a-1 was ended by SIGKILL: starting it again', log)


def test_groups_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    groups = Groups(tmp_path)
    with groups.running() as supervisor:
        pids = groups.process_ids(supervisor.pid)
        assert len(pids) == 2
        supervisor.kill()
        supervisor.wait()
        groups.wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.values()))


def test_failed_start_of_a_group_ends_all(tmp_path: Path) -> None:
    groups = Groups(tmp_path)
    folder = groups.store_path / "groups"
    folder.mkdir(parents=True)
    (folder / "1").write_text("in the way")  # not data of a group
    done = command(*groups.arguments)
    assert done.returncode == 2, done.stderr
    assert "groups/1 is not a directory" in done.stderr
    assert "broker broker-a-1 could not be started: stopping all groups" in done.stderr
    assert done.stderr.rstrip().endswith("event=stopped")


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (
            "haPlainSlaves=true\nhaPlainSlaveAddresses=10.0.0.5",
            "haPlainSlaves: --groups 2 starts groups without replicas: remove haPlainSlaves",
        ),
        (f"listenPort={65_535 - PORT_DISTANCE + 1}", "group 1 would have port 65536: use at most 65525"),
        ("listenPort=9868", "group 1 would have port 9876, which is the NameServer's port"),
        ("listenPort=8072", "group 1 would have port 8080, which is httpPort"),
    ],
)
def test_configuration_that_cannot_be_one_of_several_groups_is_refused(
    tmp_path: Path, settings: str, error: str
) -> None:
    config = tmp_path / "broker.conf"
    config.write_text(settings)
    done = called("standalone", "-c", str(config), "--store-path", str(tmp_path / "store"), "--groups", "2")
    assert (done.code, error in done.err) == (2, True), done.err
    assert not (tmp_path / "store").exists()


def test_unused_group_is_found_by_its_data_only(tmp_path: Path) -> None:
    folder = tmp_path / "groups"
    assert left_groups(tmp_path, 1) == ""
    for name in ("1", "03", "x", "12345678901"):
        (folder / name).mkdir(parents=True)
    (folder / "9").write_text("a file")
    assert left_groups(tmp_path, 1) == ""
    for name in ("1", "03", "x", "12345678901"):
        (folder / name / "commitlog").mkdir()
    assert f"data of group 1 in {folder}/1, " in left_groups(tmp_path, 1)
    assert left_groups(tmp_path, 2) == ""


def test_metrics_of_brokers_get_the_broker_as_label() -> None:
    first = b'# HELP a A.\n# TYPE a gauge\na 1.0\n# HELP b B.\n# TYPE b counter\nb_total{t="x y{"} 2.0\n'
    second = b'# HELP a Another text.\n# TYPE a gauge\na 3.0\n# HELP c C.\n# TYPE c gauge\nc{l="v"} NaN\n'
    text = merged_metrics({"one": first, 'tw"o': second}, {"one": 0, 'tw"o': 2, "down": 1}).decode()
    assert text.startswith(
        '# HELP a A.\n# TYPE a gauge\na{broker="one"} 1.0\na{broker="tw\\"o"} 3.0\n'
        '# HELP b B.\n# TYPE b counter\nb_total{broker="one",t="x y{"} 2.0\n'
        '# HELP c C.\n# TYPE c gauge\nc{broker="tw\\"o",l="v"} NaN\n'
    )
    assert 'delaymq_broker_up{broker="down"} 0\n' in text
    assert 'delaymq_broker_restarts_total{broker="tw\\"o"} 2\n' in text
