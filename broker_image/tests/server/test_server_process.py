"""Servers as processes: start lines, exit codes, signals, and effects of a kill on peers."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from delaymq.interpreter import about_interpreter
from delaymq_testing.running_server import HOST, BrokerPeer, run, until

BOUND_S = 100
"""A limit on a hang, not a measure."""

PROGRAM = """
import sys
from pathlib import Path
from delaymq_testing import any_disk
from delaymq_testing.broker.harness import broker_config
from delaymq.config import NamesrvConfig
from delaymq.server.main import run_namesrv, run_standalone
what, path, port = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
namesrv = NamesrvConfig(listen_port=port if what == "namesrv" else 0, kv_config_path=str(path / "kvConfig.json"))
if what == "namesrv":
    sys.exit(run_namesrv(namesrv))
sys.exit(run_standalone(broker_config(path, listen_port=port, http_port=0, **any_disk.FIELDS), namesrv))
"""


class Server:
    """One process, and what it said."""

    def __init__(self, what: str, path: Path, port: int = 0) -> None:
        self.log_path = path / f"log-{time.monotonic_ns()}"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with self.log_path.open("wb") as log:
            command = [sys.executable, "-c", PROGRAM, what, str(path), str(port)]
            self.process = subprocess.Popen(command, stderr=log, stdout=log, env=environment)

    def log(self) -> str:
        return self.log_path.read_text()

    def wait_for(self, pattern: str) -> re.Match[str]:
        give_up_at = time.monotonic() + BOUND_S
        while time.monotonic() < give_up_at:
            found = re.search(pattern, self.log())
            if found:
                return found
            time.sleep(0.01)
        raise AssertionError(f"{pattern!r} is not in {self.log()}")

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(BOUND_S)


def is_one_error(server: Server, event: str) -> bool:
    return re.fullmatch(rf'time=\S+ level=error logger=delaymq event="{event}"\n', server.log()) is not None


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    started: list[Server] = []
    yield started
    for server in started:
        server.process.kill()
        server.process.wait(BOUND_S)


def start(servers: list[Server], what: str, path: Path, port: int = 0) -> Server:
    servers.append(Server(what, path, port))
    return servers[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_a_standalone_server_cleanly(tmp_path: Path, servers: list[Server], number: int) -> None:
    server = start(servers, "standalone", tmp_path)
    line = server.wait_for(
        r"broker broker-a listens on 127\.0\.0\.1:(\d+) and (\d+), HTTP on \S+:(\d+), store (\S+),.*"
    )
    assert int(line[2]) == int(line[1]) - 2
    assert line[4] == str(tmp_path / "store")
    server.wait_for(r"NameServer listens on 127\.0\.0\.1:\d+")
    assert server.end(number) == 0
    assert "logger=delaymq event=stopped\n" in server.log()
    assert "Traceback" not in server.log()
    assert not (tmp_path / "store" / "abort").exists()


def test_nameserver_runs_alone(tmp_path: Path, servers: list[Server]) -> None:
    server = start(servers, "namesrv", tmp_path)
    server.wait_for(r'event="NameServer listens on 127\.0\.0\.1:\d+" address=127\.0\.0\.1:\d+ interpreter=')
    assert server.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(("what", "lines"), [("standalone", 2), ("namesrv", 1)])
def test_listening_lines_name_the_interpreters_build(
    tmp_path: Path, servers: list[Server], what: str, lines: int
) -> None:
    server = start(servers, what, tmp_path)
    server.wait_for("broker broker-a listens" if what == "standalone" else "NameServer listens")
    assert server.end(signal.SIGTERM) == 0
    starts = [line for line in server.log().splitlines() if " listens on " in line]
    assert [line.partition(" interpreter=")[2] for line in starts] == [f'"{about_interpreter()}"'] * lines


@pytest.mark.parametrize("what", ["standalone", "namesrv"])
def test_port_in_use_is_one_clear_line_and_exit_code_1(tmp_path: Path, servers: list[Server], what: str) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        server = start(servers, what, tmp_path, port)
        assert server.process.wait(BOUND_S) == 1
    assert is_one_error(server, rf"cannot start: .* {HOST}:{port} is in use: .*")


def test_second_start_on_the_same_store_is_rejected(tmp_path: Path, servers: list[Server]) -> None:
    first = start(servers, "standalone", tmp_path)
    first.wait_for("broker broker-a listens")
    second = start(servers, "standalone", tmp_path)
    assert second.process.wait(BOUND_S) == 1
    assert is_one_error(second, "cannot start: .*")
    assert str(tmp_path / "store") in second.log()
    assert first.end(signal.SIGTERM) == 0


def test_invalid_store_is_rejected(tmp_path: Path, servers: list[Server]) -> None:
    (tmp_path / "store").write_text("a file")
    server = start(servers, "standalone", tmp_path)
    assert server.process.wait(BOUND_S) == 1
    assert is_one_error(server, "cannot start: .*")


def test_killed_server_resets_its_clients_and_loses_nothing(tmp_path: Path, servers: list[Server]) -> None:
    server = start(servers, "standalone", tmp_path)
    port = int(server.wait_for(r"broker broker-a listens on \S+:(\d+) and")[1])

    async def before() -> None:
        peer = await BrokerPeer.connect(port)
        for number in range(10):
            assert (await peer.send("T", b"m%d" % number)).code == 0
        ended: list[Exception | None] = []
        peer.connection._on_closed = lambda connection, error: ended.append(error)
        waiting = peer.pull("T", 10)
        await asyncio.sleep(0.1)
        server.process.kill()
        await until(lambda: ended)
        assert isinstance(ended[0], ConnectionResetError)
        await asyncio.gather(waiting, return_exceptions=True)

    run(before)
    server.process.wait(BOUND_S)
    again = start(servers, "standalone", tmp_path, port)
    again.wait_for("broker broker-a listens")

    async def after() -> None:
        peer = await BrokerPeer.connect(port)
        assert (await peer.pull("T", 0)).fields["nextBeginOffset"] == "10"
        peer.connection.close()

    run(after)
    assert again.end(signal.SIGTERM) == 0
