"""A JVM with RocketMQ's clients, controlled by JSON lines (see compat/java/src/delaymq/driver/Main.java).

One JVM serves a whole test session: starting it takes longer than most tests. Commands run concurrently in it.
"""

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from harness import java
from harness.brokers import HOME_PATH
from harness.errors import HarnessError

READY_TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 70.0
"""Longer than every timeout of the clients themselves (held pulls: 30 s), so that those expire first."""
EXIT_TIMEOUT_S = 10.0
LOG_TAIL_BYTES = 4000
JVM_OPTIONS = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
NO_SAMPLE_YET = "java.util.NoSuchElementException, java.base/java.util.LinkedList.getLast"
"""RocketMQ's StoreStatsService fails in this way until its first sample, taken a second after its thread starts."""
SAMPLE_TIMEOUT_S = 10.0
SAMPLE_POLL_INTERVAL_S = 0.2


class ClientError(Exception):
    """Exception of a RocketMQ client; ``code`` is the broker's response code, the client's own, or None."""

    def __init__(self, kind: str, message: str, code: int | None, remark: str) -> None:
        super().__init__(f"{kind} {code}: {message}")
        self.kind = kind
        self.code = code
        self.remark = remark


@dataclass(frozen=True, kw_only=True)
class Received:
    """A message as received by a client; times in ms."""

    topic: str
    tags: str | None
    keys: str | None
    body: bytes
    message_id: str
    offset_message_id: str
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    reconsume_times: int
    flag: int
    system_flag: int
    store_bytes: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    properties: dict[str, str]
    arrival_timestamp_ms: int

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Received":
        return cls(
            topic=fields["topic"],
            tags=fields["tags"],
            keys=fields["keys"],
            body=base64.b64decode(fields["body"]),
            message_id=fields["msgId"],
            offset_message_id=fields["offsetMsgId"],
            queue_id=fields["queueId"],
            queue_offset=fields["queueOffset"],
            commit_log_offset=fields["commitLogOffset"],
            reconsume_times=fields["reconsumeTimes"],
            flag=fields["flag"],
            system_flag=fields["sysFlag"],
            store_bytes=fields["storeSize"],
            born_timestamp_ms=fields["bornTimestamp"],
            store_timestamp_ms=fields["storeTimestamp"],
            properties=fields["properties"],
            arrival_timestamp_ms=fields.get("arrivalTimestamp", 0),
        )


class Inbox:
    """The messages received by a push consumer, in order of arrival."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._messages: list[Received] = []
        self._changed = threading.Condition()

    def add(self, message: Received) -> None:
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    def messages(self) -> list[Received]:
        with self._changed:
            return list(self._messages)

    def wait_for(self, is_enough: Callable[[list[Received]], bool], *, timeout_s: float) -> list[Received]:
        """Wait until the messages suffice and return them; AssertionError with those received otherwise."""
        with self._changed:
            if not self._changed.wait_for(lambda: is_enough(self._messages), timeout_s):
                bodies = [message.body[:40] for message in self._messages]
                raise AssertionError(f"{self._name} got only {len(bodies)} messages in {timeout_s:g} s: {bodies}")
            return list(self._messages)

    def wait_count(self, count: int, *, timeout_s: float = 60.0) -> list[Received]:
        """Wait for ``count`` messages and return all of them."""
        return self.wait_for(lambda messages: len(messages) >= count, timeout_s=timeout_s)


class Driver:
    """The JVM, as a context manager. Clients are identified by the name under which they were started."""

    def __init__(self, *, jvm_options: Sequence[str] = JVM_OPTIONS, profile: java.ClientProfile = "client") -> None:
        self.home_path = Path(tempfile.mkdtemp(prefix="delaymq-driver-"))
        """Home directory for its clients."""
        self.log_path = self.home_path / "driver.log"
        options = [
            *jvm_options,
            f"-Duser.home={self.home_path}",
            f"-Drocketmq.home.dir={HOME_PATH}",
            f"-Dlogback.configurationFile={HOME_PATH / 'conf' / 'logback_tools.xml'}",
            "-Drocketmq.client.logLevel=WARN",
        ]
        self._command = java.command(java.driver_class_path(profile), "delaymq.driver.Main", options=options)
        self._ids = itertools.count(1)
        self._pending: dict[int, Future[Any]] = {}
        self._inboxes: dict[str, Inbox] = {}
        self._ready = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._write_lock = threading.Lock()

    def __enter__(self) -> Self:
        with self.log_path.open("ab") as log:
            # Tools write files to their working directory.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=self.home_path
            )
        threading.Thread(target=self._read, name="driver-output", daemon=True).start()
        if not self._ready.wait(READY_TIMEOUT_S):
            self.close()
            raise HarnessError(f"the client JVM was not ready within {READY_TIMEOUT_S:g} s\n{self.log_tail()}")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the JVM, which has no state to save."""
        process = self._process
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._process = None
        shutil.rmtree(self.home_path, ignore_errors=True)

    def submit(self, operation: str, **fields: Any) -> "Future[Any]":
        """Send a command; the future returns its response or raises ClientError."""
        process = self._process
        if process is None or process.stdin is None:
            raise HarnessError("the client JVM is not running")
        request_id = next(self._ids)
        future: Future[Any] = Future()
        self._pending[request_id] = future
        line = json.dumps({"id": request_id, "op": operation, **fields}) + "\n"
        with self._write_lock:
            process.stdin.write(line.encode())
            process.stdin.flush()
        return future

    def call(self, operation: str, **fields: Any) -> Any:
        """Run a command and return its response; ClientError for an exception of the client."""
        return self.result(self.submit(operation, **fields), operation)

    def result(self, future: "Future[Any]", what: str = "a command") -> Any:
        """Wait for a submitted command, with a time limit."""
        try:
            return future.result(COMMAND_TIMEOUT_S)
        except FutureTimeoutError as e:
            raise HarnessError(f"no response to {what} within {COMMAND_TIMEOUT_S:g} s\n{self.log_tail()}") from e

    def inbox(self, client: str) -> Inbox:
        """Return the inbox of a push consumer; create it before the consumer starts."""
        return self._inboxes.setdefault(client, Inbox(client))

    def mqadmin(self, *arguments: str) -> str:
        """Return the output of an mqadmin command; HarnessError if it only printed an error.

        A command that RocketMQ's broker rejects because it has no sample of its statistics yet is repeated.
        """
        deadline = time.monotonic() + SAMPLE_TIMEOUT_S
        while True:
            answer = self.call("mqadmin", arguments=list(arguments))
            output, errors = str(answer["output"]), str(answer["errors"])
            if output.strip() or NO_SAMPLE_YET not in errors or time.monotonic() > deadline:
                break
            time.sleep(SAMPLE_POLL_INTERVAL_S)
        if not output.strip() and "Exception" in errors:
            raise HarnessError(f"mqadmin {' '.join(arguments)} failed:\n{errors[-LOG_TAIL_BYTES:]}")
        return output

    def log_tail(self) -> str:
        if not self.log_path.exists():
            return ""
        return f"--- end of {self.log_path} ---\n" + self.log_path.read_text(errors="replace")[-LOG_TAIL_BYTES:]

    def _read(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        for line in process.stdout:
            arrival_ms = int(time.time() * 1000)
            fields = json.loads(line)
            if fields.get("event") == "message":
                fields.setdefault("arrivalTimestamp", arrival_ms)
                self.inbox(fields["client"]).add(Received.from_json(fields))
            elif fields.get("event") == "ready":
                self._ready.set()
            else:
                self._settle(fields)
        for future in list(self._pending.values()):
            if not future.done():
                future.set_exception(HarnessError(f"the client JVM ended\n{self.log_tail()}"))

    def _settle(self, fields: dict[str, Any]) -> None:
        future = self._pending.pop(fields["id"])
        error = fields.get("error")
        if error is None:
            future.set_result(fields["result"])
        else:
            remark = error.get("remark") or error["message"]
            future.set_exception(ClientError(error["type"], error["message"], error.get("code"), remark))
