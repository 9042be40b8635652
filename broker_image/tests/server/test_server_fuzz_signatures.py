"""Signed requests over sockets, mostly tampered with: the broker serves valid ones, each once."""

import asyncio
import itertools
import re
from base64 import b64decode, b64encode
from collections import Counter, deque
from pathlib import Path

import pytest
from delaymq.broker.processors.table import PROCESSORS, PROCESSORS_OF_ACCESS
from delaymq.protocol.command import Command
from delaymq.protocol.frame import FrameReceiver
from delaymq.protocol.signatures import Signer
from delaymq.server.standalone import Standalone
from delaymq_testing.broker.harness import records_of, send_fields
from delaymq_testing.hostile.frames import Request, Value, text_of
from delaymq_testing.hostile.requests import HostileRequests
from delaymq_testing.hostile.second_signatures import Owner, Rule
from delaymq_testing.hostile.signature_tricks import SignatureTricks
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from delaymq_testing.running_server import HOST, BrokerPeer, run, standalone, until

INPUTS = FUZZ_INPUTS // 20
WAITING = {11, 37, 222, 223, 307, 309, 324, 325}
"""Codes that are answered late, or not always (37): each request here is answered before the next one is sent."""
ANSWER_S = 30
"""A limit on a hang, not a measure."""
RULES = """
accounts:
- {accessKey: careful-key, secretKey: careful-secret, requireSecondSignature: true, defaultTopicPerm: PUB|SUB}
- {accessKey: easy-key, secretKey: easy-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
"""
OWNERS = {"careful-key": Owner("careful-secret", requires_second=True), "easy-key": Owner("easy-secret")}
NOT_SIGNED = re.compile(r"(No accessKey|No acl config|Check signature failed|accessKey=\S+ requires the second)")
NO_FORM = re.compile(r"(request code=\d+ has no |field )")
SENT = {name: text_of(value) or "" for name, value in send_fields("Signed").items()}

pytestmark = pytest.mark.timeout(300 + FUZZ_INPUTS // 100)


class Wire:
    """A connection that reconnects when the broker closes it; each has a distinct number."""

    numbers = itertools.count()

    def __init__(self, port: int) -> None:
        self._port = port
        self._open = False
        self.number = -1

    async def ask(self, frame: bytes) -> Command | None:
        """The answer; None: the connection ended."""
        if not self._open:
            self._reader, self._writer = await asyncio.open_connection(HOST, self._port)
            self._receiver, self._open = FrameReceiver(), True
        self._writer.write(frame)
        async with asyncio.timeout(ANSWER_S):
            while data := await self._reader.read(1 << 16):
                for command in self._receiver.feed(data):
                    if command.is_response:
                        return command
        self.close()
        return None

    def close(self) -> None:
        """Ends the connection, if there is one."""
        if self._open:
            self._writer.close()
            self._open = False

    def begin(self) -> None:
        """Takes a new number for a connection that is not open yet."""
        if not self._open:
            self.number = next(self.numbers)


class Attacked:
    """A broker, the rule that it has to keep, and what it stored of the messages sent to it."""

    def __init__(self) -> None:
        self.rule = Rule(OWNERS)
        self.stored: list[bytes] = []
        self.counted: deque[tuple[bytes, bytes]] = deque(maxlen=100)
        """The last frames with the second signature that were accepted, each behind its connection's nonce."""
        self.found = Counter[str]()
        self._number = 0
        self._requests = HostileRequests(f"{SEED} signed", (PROCESSORS | PROCESSORS_OF_ACCESS).keys() - WAITING)
        self.chance = self._requests.random
        self.tricks = SignatureTricks(f"{SEED} signatures on sockets", self._drawn, self.rule)

    def _drawn(self) -> Request:
        """A message with a body of its own, or a hostile request that is answered."""
        self._number += 1
        if self.chance.randrange(2):
            return self._requests.drawn(self._number, self.chance.randrange(6, 60))
        is_binary = self.chance.randrange(2) == 0
        return Request(310, list(SENT.items()), b"message %d" % self._number, self._number, is_binary=is_binary)

    async def send(self, wire: Wire, number: int) -> None:
        """One request, whose answer must be by the rule."""
        wire.begin()
        frame = self.tricks.next(wire.number).frame()
        try:
            answer = await wire.ask(frame)
        except TimeoutError as error:
            raise AssertionError(f"input {number} of DELAYMQ_SEED={SEED} has no answer: {frame!r}") from error
        if answer is None:
            self.found["ended"] += 1
            return
        (command,) = FrameReceiver().feed(frame)
        remark = (answer.remark or "").rpartition("AclException: ")[2]
        if NO_FORM.match(remark) and "AclException" in (answer.remark or ""):
            self.found["form"] += 1
            return
        expected = self.rule.accepts(wire.number, command)
        accepted = NOT_SIGNED.match(remark) is None
        assert accepted == expected, f"input {number} of DELAYMQ_SEED={SEED}: {answer.remark!r}: {frame!r}"
        is_second = "DmqSignature" in command.fields
        self.found[f"{'second' if is_second else 'other'} {'accepted' if accepted else 'refused'}"] += 1
        if accepted and is_second and "AccessKey" in command.fields:  # without it anybody may ask for a challenge
            self.counted.append((self.rule.challenges[wire.number].nonce, frame))
        if answer.code == 0 and "server" in answer.fields:
            nonce, value = command.fields["nonce"], answer.fields["value"]
            self.rule.challenged(wire.number, b64decode(nonce), b64decode(value), answer.fields["server"])
        if answer.code == 0 and command.code == 310 and command.fields["b"] == "Signed":
            self.stored.append(command.body)

    async def check(self, server: Standalone) -> None:
        """The topic holds what was accepted, once."""
        peer = await BrokerPeer.connect(server.broker.port)
        peer.connection.sign = lambda command: Signer("easy-secret").sign(command, "easy-key")
        read: list[bytes] = []
        while len(read) < len(self.stored):
            answer = await peer.pull("Signed", len(read), wait_ms=1)
            assert answer.code == 0, answer
            read += [record.body for record in records_of(answer.body)]
        assert read == self.stored


def test_broker_serves_validly_signed_requests_once_even_after_a_restart(tmp_path: Path) -> None:
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(RULES)
    attacked = Attacked()

    async def before() -> None:
        async with standalone(tmp_path, acl_enable=True, acl_config_path=str(rules)) as server:
            wires = [Wire(server.broker.port) for _ in range(3)]
            for number in range(INPUTS):
                await attacked.send(attacked.chance.choice(wires), number)
            await attacked.check(server)
            access = server.broker.broker.access
            assert access is not None
            assert len(access.channels) > 0
            for wire in wires:
                wire.close()
            async with asyncio.timeout(ANSWER_S):
                await until(lambda: len(access.channels) == 0)

    async def after() -> None:
        async with standalone(tmp_path, acl_enable=True, acl_config_path=str(rules)) as server:
            wire = Wire(server.broker.port)
            for nonce, frame in attacked.counted:
                fields: list[tuple[str, Value]] = [
                    ("namespace", "DELAYMQ"),
                    ("key", "challenge"),
                    ("nonce", b64encode(nonce).decode()),
                ]
                told = await wire.ask(Request(101, fields).frame())
                assert told is not None
                assert told.code == 0
                answer = await wire.ask(frame)
                assert answer is not None
                assert "Check signature failed" in (answer.remark or "")
            await attacked.check(server)

    run(before, bound_s=200 + FUZZ_INPUTS // 100)
    run(after)
    assert attacked.found["second accepted"] > INPUTS // 5, attacked.found
    assert attacked.found["second refused"] > INPUTS // 10, attacked.found
    assert len(attacked.stored) > INPUTS // 20
