"""The honest client during an attack: it sends and pulls at a fixed rate, and verifies the messages that it reads.

`python bench/hostile_load/honest.py HOST PORT NAMESRV_PORT SECONDS RATE` connects, prints `ready`, waits for a line,
works, and prints a line of JSON. Latency is measured from the time at which a request was due, so that it includes the
requests that a stalled broker delays.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Coroutine
from typing import Any

import uvloop
from delaymq.message.record import decode_record
from delaymq.protocol.command import Command, request_command
from delaymq.protocol.signatures import Signer
from delaymq.transport import RemotingConnection, TransportError, connect
from delaymq_testing.running_server import send_command

TOPIC, GROUP = "Honest", "honest"
TIMEOUT_MS = 15_000
PULL = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0"}
PULL |= {"suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "1", "expressionType": "TAG"}


class Honest:
    """A client with an account, a connection for sends and one for pulls."""

    def __init__(self, host: str, port: int, namesrv_port: int) -> None:
        self._host = host
        self._ports = port, namesrv_port
        self._signer = Signer("honest-secret")
        self._tasks: set[asyncio.Task[None]] = set()
        self.first = 0
        """Number of messages that existed before."""
        self.sent = self.stored = self.read = 0
        self._bodies: dict[int, bytes] = {}
        """Acknowledged bodies, by queue offset."""
        self.latencies_ms: dict[str, list[float]] = {"send": [], "pull": []}
        self.errors: dict[str, int] = {}

    async def work(self, seconds: float, rate: int) -> None:
        """Send both kinds of requests for a while, then wait for the responses."""
        port, namesrv_port = self._ports
        self._sending, self._pulling, self._route = [
            await connect(self._host, each, timeout_ms=TIMEOUT_MS) for each in (port, port, namesrv_port)
        ]
        for connection in (self._sending, self._pulling):
            connection.sign = lambda command: self._signer.sign(command, "honest-key")
        fields = {"topic": TOPIC, "queueId": "0"}
        self.first = int((await self._pulling.request(request_command(30, fields), TIMEOUT_MS)).fields["offset"])
        self.stored = self.read = self.first
        self.sent = self.first
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        began = time.perf_counter()
        for number in range(int(seconds * rate)):
            due = began + number / rate
            # Without a pause, the responses to a late client would wait for its requests.
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            self._start(self._send(due))
            self._start(self._pull(due))
            if number % rate == 0:
                self._start(self._look(number))
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _error(self, text: str) -> None:
        self.errors[text] = self.errors.get(text, 0) + 1

    async def _request(self, connection: RemotingConnection, command: Command, due: float, kind: str) -> Command | None:
        try:
            answer = await connection.request(command, TIMEOUT_MS)
        except TransportError as error:
            self._error(f"{kind}: {type(error).__name__}")
            return None
        finally:
            self.latencies_ms[kind].append((time.perf_counter() - due) * 1000)
        if answer.code != 0:
            self._error(f"{kind}: {answer.code} {(answer.remark or '')[:80]}")
            return None
        return answer

    async def _send(self, due: float) -> None:
        body = b"message %d" % self.sent
        self.sent += 1
        answer = await self._request(self._sending, send_command(TOPIC, body), due, "send")
        if answer is not None:
            offset = int(answer.fields["queueOffset"])
            self._bodies[offset] = body
            self.stored = max(self.stored, offset + 1)

    async def _pull(self, due: float) -> None:
        # The next unread message, or the last one again if all have been read.
        offset = self.read if self.read < self.stored else max(self.stored - 1, 0)
        if offset >= self.stored:
            return
        self.read = offset + 1
        command = request_command(11, PULL | {"queueOffset": str(offset)})
        answer = await self._request(self._pulling, command, due, "pull")
        if answer is not None:
            body = decode_record(answer.body, 0).body
            if body != self._bodies.get(offset, body) or not body.startswith(b"message "):
                self._error("pull: another message than was sent")

    async def _look(self, number: int) -> None:
        """Check that the route names the broker, and that the group's offsets can be committed."""
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": str(self.read)}
        answers = []
        for connection, command in (
            (self._route, request_command(105, {"topic": TOPIC})),
            (self._pulling, request_command(15, fields)),
        ):
            try:
                answers.append(await connection.request(command, TIMEOUT_MS))
            except TransportError as error:
                self._error(f"{command.code}: {type(error).__name__}")
                return
        route, committed = answers
        if (
            route.code != 0
            or f'"{self._host}:{self._ports[0]}"'.encode() not in route.body
            or b"203.0.113" in route.body
        ):
            self._error("route: another broker's address")
        if committed.code != 0:
            self._error(f"commit: {committed.code} {(committed.remark or '')[:80]}")

    def report(self) -> dict[str, Any]:
        """Return counts, errors, and percentiles in ms."""
        found: dict[str, Any] = {"sent": self.sent - self.first, "stored": self.stored, "errors": self.errors}
        for kind, values in self.latencies_ms.items():
            ordered = sorted(values) or [0.0]
            last = len(ordered) - 1
            found[kind] = {str(share): ordered[min(len(ordered) * share // 100, last)] for share in (50, 99, 100)}
        return found


async def main() -> None:
    host, port, namesrv_port, seconds, rate = sys.argv[1:6]
    honest = Honest(host, int(port), int(namesrv_port))
    await honest.work(float(seconds), int(rate))
    print(json.dumps(honest.report()))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
