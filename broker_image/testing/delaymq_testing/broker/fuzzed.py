"""A broker without sockets that receives hostile frames, and an honest client that uses it concurrently."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from delaymq.broker.requests.results import Deferred, Held, LinkRequest, Listing, RelayedRequests
from delaymq.message.names import MARK
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.command import Command, Response, encode_response, request_command
from delaymq.protocol.errors import ProtocolError
from delaymq.protocol.frame import FrameReceiver

from delaymq_testing.broker.harness import FakeSession, Harness, made, records_of, send_fields
from delaymq_testing.hostile.requests import HostileRequests
from delaymq_testing.repetitions import SEED

A_ROUND = 10_000
"""Frames to one broker, which is then restarted with an empty store: a log must not grow without end."""
HONEST_EVERY = 100
SECRET = b"for the honest only"
HONEST_CLIENT = "honest-client"

Sign = Callable[[Command], None]


def answers_of(result: Any) -> list[Response]:
    """What may go out for a result, in time and late."""
    if result is None:
        return []  # one-way, or the end of a transaction that says nothing
    if isinstance(result, Deferred):
        return [result.response, result.late]
    if isinstance(result, Held):
        answer = result.resume(True)
        assert isinstance(answer, Response)
        return [answer]
    if isinstance(result, RelayedRequests):
        count = len(result.requests)
        heard = Command(0, flag=1)
        heard_or_not = (heard, Command(1, flag=1), None)
        return [each for told in heard_or_not for each in answers_of(result.answer([told] * count))]
    if isinstance(result, Listing | LinkRequest):
        return [Response(ResponseCode.SUCCESS)]  # the server's task
    assert isinstance(result, Response)
    return [result]


class Honest:
    """A client that sends, delays, reads and commits in topics of its own, and knows what must be there."""

    def __init__(self, harness: Harness, sign: Sign | None = None) -> None:
        self.harness = harness
        self.session = FakeSession(999, "10.9.9.9")
        self._sign = sign
        self.sent: list[bytes] = []
        self.committed = 0

    def ask(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> Response:
        """The answer, which must be a success."""
        command = request_command(code, {name: str(value) for name, value in (fields or {}).items()}, body)
        if self._sign is not None:
            self._sign(command)
        result = made(self.harness.broker, code, self.harness.broker.handle(self.session, command))
        (answer, *_) = answers_of(result)
        assert answer.code == ResponseCode.SUCCESS, f"honest request {code}: {answer}"
        return answer

    def join(self) -> None:
        """Send a heartbeat as a member of its group; the broker may only request a rebalance in return."""
        body = f'{{"clientID":"{HONEST_CLIENT}","consumerDataSet":[{{"groupName":"honest","subscriptionDataSet":'
        self.ask(34, body=(body + '[{"topic":"Honest","subString":"*","subVersion":1}]}]}').encode())
        assert {command.code for command in self.session.notified} <= {40}
        self.session.notified.clear()

    def work(self) -> None:
        """Send an immediate and a delayed message, read the newest ones, and commit."""
        self.join()
        self.sent.append(SECRET + b" %d" % len(self.sent))
        fields = {"a": "honest"}
        self.ask(310, send_fields("Honest") | fields, self.sent[-1])
        self.ask(310, send_fields("HonestLater", {"DELAY": "1"}) | fields, self.sent[-1])
        self.harness.flush()
        self.check(max(0, len(self.sent) - 5))
        self.ask(15, {"consumerGroup": "honest", "topic": "Honest", "queueId": 0, "commitOffset": len(self.sent)})
        self.committed = len(self.sent)

    def check(self, offset: int = 0) -> None:
        """All messages from `offset` on are what was sent, and the group is where it was left."""
        where = {"consumerGroup": "honest", "topic": "Honest", "queueId": 0}
        assert int(self.ask(14, where).fields["offset"]) == self.committed
        assert self._read("Honest", offset) == self.sent[offset:]

    def check_delayed(self) -> None:
        """Check that each delayed message came once, and that none is missing."""
        self.harness.clock.advance(5_000)
        while self.harness.broker.hand_over(self.harness.clock(), 1_000):
            self.harness.flush()
        self.harness.flush()
        assert sorted(self._read("HonestLater", 0)) == sorted(self.sent)

    def _read(self, topic: str, offset: int) -> list[bytes]:
        read: list[bytes] = []
        while offset + len(read) < len(self.sent):
            fields = {"consumerGroup": "honest", "topic": topic, "queueId": 0, "queueOffset": offset + len(read)}
            fields |= {"sysFlag": 4, "subscription": "*", "subVersion": 0, "expressionType": "TAG", "commitOffset": 0}
            records = records_of(self.ask(11, fields | {"maxMsgNums": 32, "suspendTimeoutMillis": 0}).body)
            assert topic == "Honest" or all(MARK in record.properties for record in records)
            read += [record.body for record in records]
        return read


def play(
    folder: Path,
    requests: HostileRequests,
    count: int,
    *,
    sign: Sign | None = None,
    keeps_secrets: bool = False,
    **changes: Any,
) -> Counter[int]:
    """Gives brokers over `folder` `count` frames; how often each code succeeded (-1: frames that were none).

    With `keeps_secrets` no answer may hold what the honest client sent.
    """
    served = Counter[int]()
    for done in range(0, count, A_ROUND):
        shutil.rmtree(folder, ignore_errors=True)
        settings = {"auto_create_topic_enable": True, "mapped_file_size_commit_log": 32 * 1024 * 1024}
        harness = Harness(folder, **settings | changes)
        honest = Honest(harness, sign)
        sessions = [FakeSession(port) for port in range(1, 6)]
        for session in sessions[1:]:
            session.is_private = True  # without it nobody changes rules by RocketMQ's signature
        for number in range(min(A_ROUND, count - done)):
            frame = requests.frame(number)
            if requests.names_stored:
                harness.flush()
            try:
                for encoded in _answers(harness, requests, sessions[number % len(sessions)], frame, served):
                    assert not keeps_secrets or SECRET not in encoded
                if number % 30 == 0:
                    harness.clock.advance(1_000)
                    harness.broker.hand_over(harness.clock(), 10)
                    harness.broker.expire_clients(harness.clock())
                if number % HONEST_EVERY == 0:
                    honest.work()
            except Exception as error:
                raise AssertionError(f"input {done + number} of DELAYMQ_SEED={SEED}: {frame!r}") from error
        harness.restart()
        honest.check()
        honest.check_delayed()
        harness.broker.close()
    shutil.rmtree(folder, ignore_errors=True)
    return served


def _answers(
    harness: Harness, requests: HostileRequests, session: FakeSession, frame: bytes, served: Counter[int]
) -> list[bytes]:
    """What goes out for one frame."""
    try:
        commands = FrameReceiver().feed(frame)
    except ProtocolError:
        served[-1] += 1
        return []
    encoded = []
    for command in commands:
        if command.is_response:
            continue
        result = harness.broker.handle(session, command)
        for answer in answers_of(made(harness.broker, command.code, result)):
            encoded.append(encode_response(command, answer))
            served[command.code] += answer.code == ResponseCode.SUCCESS
            requests.learn(answer.fields)
    return encoded
