"""Exhausted operating system limits: descriptors and threads."""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
import uvloop
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from delaymq.server import resources
from delaymq.server.errors import ServerError
from delaymq.server.http.http_server import MAX_CONNECTIONS, most_connections
from delaymq.server.http.responses import errors_as_json
from delaymq.transport import ConnectError, ConnectionClosedError
from delaymq_testing.running_server import HOST, BrokerPeer, run
from harness.ports import free_broker_port

BOUND_S = 100
DESCRIPTORS = 320
FLOOD = 400
BURST = 100

PROGRAM = f"""
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}))
from delaymq_testing import any_disk
from delaymq_testing.broker.harness import broker_config
from delaymq.config import NamesrvConfig
from delaymq.server.main import run_standalone
path, port = Path(sys.argv[1]), int(sys.argv[2])
config = broker_config(
    path, listen_port=port, flush_disk_type="SYNC_FLUSH", message_delay_level="2s",
    auto_create_topic_enable=True, fast_port_enable=False, **any_disk.FIELDS,
)
sys.exit(run_standalone(config, NamesrvConfig(listen_port=0, kv_config_path=""), http=False))
"""


async def connected(port: int) -> BrokerPeer:
    while True:
        try:
            return await BrokerPeer.connect(port)
        except ConnectError:
            await asyncio.sleep(0.05)


async def sent_on_a_new_connection(port: int) -> int:
    """The answer's code, as soon as there is room for a connection."""
    while True:
        with contextlib.suppress(ConnectionClosedError):
            return (await (await connected(port)).send("T")).code


async def idle_connections(port: int, count: int) -> list[asyncio.StreamWriter]:
    """As many as the broker lets in; all were tried."""
    writers = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            writers.append((await asyncio.open_connection(HOST, port))[1])
    return writers


def test_idle_connections_up_to_the_descriptor_limit_block_neither_sends_nor_deliveries(tmp_path: Path) -> None:
    port = free_broker_port()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    log_path = tmp_path / "log"
    with log_path.open("wb") as log:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "store"), str(port)]
        process = subprocess.Popen(command, stderr=log, stdout=log, env=environment)

    async def scenario() -> None:
        good = await connected(port)
        writers = await idle_connections(port, FLOOD)
        delayed = await good.send("T", b"later", DELAY="1")
        assert delayed.code == 0, delayed.remark
        sent = await good.send("T", b"now")
        assert sent.code == 0, sent.remark
        pulled = await good.pull("T", 1)
        assert pulled.code == 0
        assert b"later" in pulled.body
        for writer in writers:
            writer.close()
        assert await sent_on_a_new_connection(port) == 0

    try:
        run(scenario, bound_s=BOUND_S)
    finally:
        process.kill()
        process.wait(BOUND_S)
    log_text = log_path.read_text()
    assert "maxConnections is 10000, but the limit on open files (320)" in log_text
    assert "the limit on open files allows no more connections" in log_text


@pytest.mark.parametrize(
    ("hard", "used", "end"),
    [
        (65_536, 20, 65_536 - resources.RESERVED_DESCRIPTORS),
        (1_024, 24, 24 + 250),
        # Open segments of the log take low numbers: what they leave is shared out.
        (1_024, 824, 824 + 50),
    ],
)
def test_descriptor_limit_is_raised_and_partly_reserved(
    hard: int, used: int, end: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = [(1_024, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: limits.append(pair))
    limit = resources.raise_descriptor_limit()
    assert (limit, limits[-1]) == (hard, (hard, hard))
    monkeypatch.setattr(os, "open", lambda *_: used)
    monkeypatch.setattr(os, "close", lambda descriptor: None)
    with caplog.at_level(logging.WARNING):
        assert resources.descriptor_end(limit, 10_000) == end
    monkeypatch.undo()
    assert ("maxConnections is 10000" in caplog.text) == (end < 10_000)


def test_server_without_a_free_descriptor_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", no_descriptor)
    with pytest.raises(ServerError, match=r"no descriptor is left .* which is 80 \(ulimit -Hn"):
        resources.descriptor_end(80, 10_000)


WITHOUT_THREADS = """
import sys, threading
from pathlib import Path
left, start = int(sys.argv[2]), threading.Thread.start

def limited(thread):
    global left
    left -= 1
    if left < 0:
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = limited
from delaymq_testing.broker.harness import broker_config
from delaymq.config import NamesrvConfig
from delaymq.server.main import run_standalone
config = broker_config(Path(sys.argv[1]), listen_port=0, http_port=0, fast_port_enable=False)
sys.exit(run_standalone(config, NamesrvConfig(listen_port=0, kv_config_path="")))
"""


@pytest.mark.parametrize("threads", [0, 5])
def test_start_without_threads_ends_with_a_clear_error(threads: int, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WITHOUT_THREADS, str(tmp_path), str(threads)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=BOUND_S)
    assert "cannot start: cannot start a thread (can't start new thread): raise the limit" in ended.stderr
    assert "trace=" not in ended.stderr
    assert ended.returncode == 1


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), OSError(errno.EMFILE, "no descriptor")])
def test_http_request_during_a_shortage_gets_503(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def fails(request: web.Request) -> web.StreamResponse:
        raise error

    async def scenario() -> None:
        answer = await errors_as_json(make_mocked_request("GET", "/api/v1/topics"), fails)
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"

    run(scenario, bound_s=BOUND_S)
    assert [record.exc_info for record in caplog.records] == [None]


@pytest.mark.parametrize(
    ("limit", "most"), [(120, 30), (1_024, 256), (1 << 20, MAX_CONNECTIONS), (resource.RLIM_INFINITY, MAX_CONNECTIONS)]
)
def test_http_connections_use_a_quarter_of_a_low_descriptor_limit(
    limit: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    assert most_connections() == most


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_server_without_threads_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(ServerError, match=r"can't start new thread.*ulimit -u"):
        resources.started(ThreadPoolExecutor(2), 2)


def test_burst_of_rejected_connections_uses_two_descriptors() -> None:
    async def scenario() -> None:
        accepted = most = 0
        all_refused = asyncio.Event()
        bound = socket.socket()
        bound.bind((HOST, 0))
        bound.listen(BURST)
        bound.setblocking(False)
        clients = [socket.create_connection(bound.getsockname()) for _ in range(BURST)]
        before = len(os.listdir("/proc/self/fd"))

        class Refusing(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                nonlocal accepted, most
                accepted += 1
                most = max(most, len(os.listdir("/proc/self/fd")) - before)
                cast("asyncio.Transport", transport).abort()
                if accepted == BURST:
                    all_refused.set()

        server = await asyncio.get_running_loop().create_server(Refusing, sock=bound, backlog=BURST)
        async with asyncio.timeout(BOUND_S):
            await all_refused.wait()
        server.close()
        for client in clients:
            client.close()
        # asyncio's own loop accepts the whole backlog in one turn.
        assert most <= 2

    uvloop.run(scenario())
