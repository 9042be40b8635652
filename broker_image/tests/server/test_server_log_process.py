"""Log output of server processes: JSON lines, and a pipe without a reader."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.ports import free_port

HOST = "127.0.0.1"
BOUND_S = 60
PIPE_BYTES = 4_096
CONF = "mappedFileSizeCommitLog=4194304\nmaxHashSlotNum=1000\nmaxIndexNum=4000\nsendMessageThreadPoolNums=4\n"


class Process:
    """A standalone server whose stderr is a pipe."""

    def __init__(self, path: Path, stderr: int, **environment: str) -> None:
        self.http_port = free_port()
        conf = path / "broker.conf"
        conf.write_text(CONF)
        ports = ["--listen-port", "0", "--namesrv-port", "0", "--http-port", str(self.http_port)]
        words = [
            sys.executable,
            "-m",
            "delaymq",
            "standalone",
            "-c",
            str(conf),
            "--store-path",
            str(path / "s"),
            *ports,
        ]
        self.process = subprocess.Popen(words, stderr=stderr, stdout=stderr, env={**os.environ, **environment})

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.http_port}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait_until(self, condition: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + BOUND_S
        while not condition():
            assert self.process.poll() is None
            assert time.monotonic() < give_up_at
            time.sleep(0.02)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(BOUND_S)


@pytest.fixture
def started() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for each in processes:
        each.process.kill()
        each.process.wait(BOUND_S)


def test_every_json_line_is_an_event(tmp_path: Path, started: list[Process]) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        server = Process(tmp_path, file.fileno(), DELAYMQ_LOG_FORMAT="json", DELAYMQ_LISTEN_PRT="1")
    started.append(server)
    server.wait_until(server.is_ready)
    assert server.stop() == 0
    events = [json.loads(line) for line in log.read_text().splitlines()]
    texts = [event["event"] for event in events if event["logger"] == "delaymq"]
    assert texts[0] == "the environment variable DELAYMQ_LISTEN_PRT is not a setting: did you mean DELAYMQ_LISTEN_PORT?"
    assert texts[1] == "ignored keys without a meaning here: sendMessageThreadPoolNums"
    assert "allocated at startup" in texts[2]
    assert [text for text in texts if "listens on" in text][1].startswith("broker broker-a listens on 127.0.0.1:")
    assert texts[-1] == "stopped"
    assert {event["level"] for event in events} <= {"info", "warning"}


def test_unread_pipe_blocks_neither_start_nor_service_nor_stop(tmp_path: Path, started: list[Process]) -> None:
    reading, writing = os.pipe()
    try:
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.write(writing, b"x" * PIPE_BYTES)  # the first line has no room already
        server = Process(tmp_path, writing)
        started.append(server)
        server.wait_until(server.is_ready)
        assert server.stop() == 0
    finally:
        os.close(writing)
        os.close(reading)


def test_errors_in_threads_and_destructors_are_one_line(tmp_path: Path) -> None:
    program = """
import logging, threading
from delaymq.server.logs import output as logs
class Bad:
    def __del__(self):
        raise ValueError("in a destructor")
def fail():
    raise ValueError("in a thread")
logs.start_logs("json", "info")
thread = threading.Thread(target=fail, name="worker")
thread.start()
thread.join()
Bad()
logs.stop_logs()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=BOUND_S, check=True)
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(event["level"], event["error"]) for event in events] == [
        ("error", "ValueError: in a thread"),
        ("error", "ValueError: in a destructor"),
    ]
    assert events[0]["event"] == "thread worker failed"


def test_environments_log_level_applies_from_the_first_line(tmp_path: Path, started: list[Process]) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        server = Process(tmp_path, file.fileno(), DELAYMQ_LOG_LEVEL="error")
    started.append(server)
    server.wait_until(server.is_ready)
    assert server.stop() == 0
    assert log.read_text() == ""
