"""A broker in a separate process, on free ports, with a new or existing store; it can be killed and restarted."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from delaymq.message.levels import DelayLevels
from delaymq.store.message_store import MessageStore
from delaymq.store.model import NewRecord
from delaymq.store.options import StoreOptions

SEGMENT_BYTES = 1 << 20
_START_LIMIT_S = 60
_PROGRAM = "from delaymq.cli.main import main; main()"
_HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


class RunningBroker:
    """`delaymq standalone` with the given store."""

    def __init__(self, store: Path, **environment: str) -> None:
        self.store = store
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self.http_port = 0
        self.namesrv_port = 0
        self._log = store.parent / f"{store.name}.log"

    @property
    def url(self) -> str:
        """The broker's HTTP address."""
        return f"http://127.0.0.1:{self.http_port}"

    def start(self) -> None:
        """Start the broker and wait until it responds; later starts use the same ports as the first."""
        command = [sys.executable, "-c", _PROGRAM, "standalone", "--store-path", str(self.store), "--listen-port", "0"]
        command += ["--http-port", str(self.http_port), "--namesrv-port", str(self.namesrv_port)]
        environment = {**os.environ, "DELAYMQ_MAPPED_FILE_SIZE_COMMIT_LOG": str(SEGMENT_BYTES), **self._environment}
        self._log.write_bytes(b"")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log, env=environment)
        deadline = time.monotonic() + _START_LIMIT_S
        while not (said := re.search(r"HTTP on 127\.0\.0\.1:(\d+), store", self._log.read_text())):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(self._log.read_text())
            time.sleep(0.02)
        self.http_port = int(said[1])
        names = re.search(r"NameServer listens on 127\.0\.0\.1:(\d+)", self._log.read_text())
        assert names is not None
        self.namesrv_port = int(names[1])

    def kill(self) -> None:
        """Kill the broker with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the broker cleanly."""
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    def request(self, method: str, path: str) -> Any:
        """Return the status of a request without a token."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=20)
        try:
            connection.request(method, path)
            return connection.getresponse().status
        finally:
            connection.close()


@contextmanager
def running_broker(store: Path, **environment: str) -> Iterator[RunningBroker]:
    broker = RunningBroker(store, **environment)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


def write_store(path: Path, count: int, body_bytes: int = 2_000, first: int = 0) -> None:
    """Write `count` messages in segments of SEGMENT_BYTES with the broker's own code, and stop cleanly."""
    options = StoreOptions(commit_log_file_bytes=SEGMENT_BYTES, consume_queue_file_bytes=4000, index_enable=False)
    clock = iter(range(1_700_000_000_000 + first, 1 << 60))
    store = MessageStore.open(path, options, now_ms=clock.__next__, levels=DelayLevels.parse())
    for number in range(first, first + count):
        store.append(
            NewRecord(
                topic="Orders", queue_id=number % 3, body=bytes([number % 251]) * body_bytes,
                properties={"KEYS": f"k{number}"}, flag=0, sys_flag=0, born_timestamp_ms=1_699_999_999_000,
                born_host=_HOST, store_host=_HOST,
            )
        )  # fmt: skip
    store.close()
