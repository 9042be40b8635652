"""Hostile frames and HTTP requests over sockets do not affect an honest client."""

import asyncio
import contextlib
import logging
import os
import random
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delaymq.broker.processors.table import PROCESSORS as BROKER_CODES
from delaymq.namesrv import PROCESSORS as NAMESRV_CODES
from delaymq.protocol.command import Command, request_command
from delaymq.protocol.signatures import Signer
from delaymq.server.api.routes import ROUTES
from delaymq.server.standalone import Standalone
from delaymq_testing.broker.harness import records_of
from delaymq_testing.hostile.frames import request, signed
from delaymq_testing.hostile.requests import HostileRequests
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from delaymq_testing.running_server import HOST, BrokerPeer, run, send_command, standalone

FRAMES = FUZZ_INPUTS // 2
HTTP_REQUESTS = FUZZ_INPUTS // 10
A_BURST = 40
"""Number of frames that one connection writes together."""
LAST_OPAQUE = 987_654_321
TOKEN = "t0ken-for-tests"
SECRET = b"for the honest only"
MAX_GROWTH_BYTES = 256 * 1024 * 1024
RULES = """
accounts:
- {accessKey: hostile-key, secretKey: hostile-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB,
   topicPerms: [Honest=DENY], groupPerms: [G=DENY]}
- {accessKey: honest-key, secretKey: honest-secret, topicPerms: [Honest=PUB|SUB], groupPerms: [G=SUB]}
"""

pytestmark = pytest.mark.timeout(300 + FUZZ_INPUTS // 100)


class Honest:
    """A client with an account of its own; an error of one of its requests fails the test."""

    def __init__(self, server: Standalone, sent: list[bytes]) -> None:
        self.server = server
        self.sent = sent
        self._signer = Signer("honest-secret")

    async def connect(self) -> None:
        """Opens its connections."""
        self.broker = await BrokerPeer.connect(self.server.broker.port)
        self.broker.connection.sign = lambda command: self._signer.sign(command, "honest-key")
        self.namesrv = await BrokerPeer.connect(self.server.namesrv.port)

    async def work(self) -> None:
        """Sends, reads what it sent last, and asks for its route."""
        self.sent.append(SECRET + b" %d" % len(self.sent))
        answer = await self.broker.connection.request(send_command("Honest", self.sent[-1]), 20_000)
        assert answer.code == 0, answer
        await self.check(len(self.sent) - 1)
        route = await self.namesrv.connection.request(request_command(105, {"topic": "Honest"}), 20_000)
        assert route.code == 0, route

    async def check(self, offset: int) -> None:
        """Reads from `offset` on what was sent."""
        read: list[bytes] = []
        while offset + len(read) < len(self.sent):
            answer: Command = await self.broker.pull("Honest", offset + len(read))
            assert answer.code == 0, answer
            read += [record.body for record in records_of(answer.body)]
        assert read == self.sent[offset:]


async def burst(port: int, requests: HostileRequests) -> bytes:
    """Writes frames over a connection of its own; what came back until the last answer, or until the end."""
    reader, writer = await asyncio.open_connection(HOST, port)
    whole = True
    answers = b""
    with contextlib.suppress(ConnectionError):
        for number in range(A_BURST):
            writer.write(requests.frame(number))
            whole = whole and requests.is_whole
        writer.write(request(28, opaque=LAST_OPAQUE))
        if not whole:
            writer.write_eof()  # it may wait for the rest of a frame
        while data := await reader.read(1 << 16):
            answers += data
            if b'"opaque":%d' % LAST_OPAQUE in answers:
                break
    writer.close()
    return answers


def http_request(chance: random.Random) -> bytes:
    """A request for a route with something wrong in it; only such that read may have the token."""
    route = chance.choice(ROUTES)
    words = ["Orders", "Honest", "..", "%2e%2e%2f", "%00", "x" * 5_000, "é", "-1", "0", "2147483648", ""]
    path = "/".join(chance.choice(words) if part[:1] == "{" else part for part in route.path.split("/"))
    method = route.method if chance.randrange(8) else chance.choice(("PUT", "DELETE", "TRACE", "PATCH", "G E T", "é"))
    names = ["topic", "group", "limit", "offset", "queueId", "key", "from", "until", "by", "bucket", "level", "x"]
    query = "&".join(f"{chance.choice(names)}={chance.choice(words)}" for _ in range(chance.choice((0, 0, 1, 2, 30))))
    bodies = [b"", b"{}", b"[", b'{"level":"debug"}', b'{"mode":"refuse"}', b"[" * 3_000, b'{"x":' + b"9" * 400 + b"}"]
    body = chance.choice(bodies)
    lines = [f"{method} {path}{'?' if query else ''}{query} HTTP/1.1"]
    lines.append(f"Host: {chance.choice((HOST, HOST, 'localhost', 'evil.example', '', 'a' * 9_000))}")
    lines.append(f"Content-Type: {chance.choice(('application/json', 'text/plain', ''))}")
    length = len(body) if chance.randrange(8) else chance.choice((-1, 0, 5, 10**12, "x"))
    lines.append(f"Content-Length: {length}" if chance.randrange(6) else "Transfer-Encoding: chunked")
    if method == "GET" and chance.randrange(2):
        lines.append(f"Authorization: Bearer {TOKEN}")
    elif chance.randrange(2):
        lines.append(
            "Authorization: " + chance.choice(("Bearer", "Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}"))
        )
    if not chance.randrange(6):
        odd = ("Content-Encoding: gzip", "Expect: 100-continue", "Upgrade: websocket", " folded", ":")
        lines.append(chance.choice(odd))
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode(errors="replace") + body


async def http(port: int, data: bytes) -> None:
    """Check that the response is an intended error or a success, or missing."""
    reader, writer = await asyncio.open_connection(HOST, port)
    answer = b""
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        writer.write_eof()
        answer = await reader.read()
    writer.close()
    if answer:
        status = int(answer.split(b" ", 2)[1])
        assert 200 <= status < 500 or status in (501, 503), (data, answer[:500])
    assert SECRET not in answer or b"Bearer " + TOKEN.encode() in data


def resources() -> tuple[int, int]:
    """Open sockets, and the most memory so far in bytes. Files are opened by the store as its log grows."""
    names = []
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            names.append(os.readlink(f"/proc/self/fd/{each}"))
    sockets = sum(name.startswith("socket:") for name in names)
    return sockets, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_hostile_frames_and_http_requests_do_not_affect_an_honest_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, record_property: Callable[[str, object], None]
) -> None:
    caplog.set_level(logging.WARNING)
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(RULES)
    settings: dict[str, Any] = {"acl_enable": True, "acl_config_path": str(rules), "http_token": TOKEN}
    sign = lambda fields, body: signed("hostile-key", "hostile-secret", fields, body)  # noqa: E731
    names = {"topic": ["Honest", "Orders", "Orders", "%RETRY%G"], "consumerGroup": ["G", "readers", "readers"]}
    to_broker = HostileRequests(f"{SEED} broker's port", BROKER_CODES, texts=names, sign=sign)
    others = {"brokerName": ["b", "other", ""], "clusterName": ["C", ""], "topic": ["Orders", "New"]}
    to_namesrv = HostileRequests(f"{SEED} NameServer's port", NAMESRV_CODES, texts=others)
    chance = random.Random(f"{SEED} HTTP")
    sent: list[bytes] = []
    slices = longest_ms = 0.0

    async def watch() -> None:
        """Counts the loop's turns and notes the longest: figures for the report, which no limit judges."""
        nonlocal slices, longest_ms
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.001)
            slices += 1
            longest_ms = max(longest_ms, (loop.time() - before) * 1000)

    async def attacked() -> None:
        async with standalone(tmp_path, http=True, **settings) as server:
            honest = Honest(server, sent)
            await honest.connect()
            await honest.work()
            before = resources()
            watching = asyncio.create_task(watch())
            assert server.broker.http_port is not None
            for number in range(FRAMES // A_BURST):
                for_namesrv = number % 5 == 0
                port = server.namesrv.port if for_namesrv else server.broker.port
                bursts = burst(port, to_namesrv if for_namesrv else to_broker)
                requests = [http_request(chance) for _ in range(HTTP_REQUESTS * A_BURST // FRAMES)]
                answers, *_ = await asyncio.gather(
                    bursts, honest.work(), *(http(server.broker.http_port, data) for data in requests)
                )
                assert answers is not None
                assert SECRET not in answers
            watching.cancel()
            after = resources()
            assert after[0] - before[0] <= A_BURST
            assert after[1] - before[1] < MAX_GROWTH_BYTES
            await honest.check(0)

    async def restarted() -> None:
        async with standalone(tmp_path, **settings) as server:
            honest = Honest(server, sent)
            await honest.connect()
            await honest.check(0)
            await honest.work()

    run(attacked, bound_s=200 + FUZZ_INPUTS // 100)
    run(restarted)
    record_property("loop turns", slices)
    record_property("longest turn, ms", round(longest_ms, 1))
    unexpected = [each for each in caplog.records if each.levelno >= logging.ERROR or each.exc_info]
    assert unexpected == [], f"DELAYMQ_SEED={SEED}: {caplog.text[-5_000:]}"
