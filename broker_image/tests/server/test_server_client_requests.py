"""Requests of the broker to its clients, over real connections, with scripted responses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from delaymq.broker.requests.results import Deferred, RelayedRequests
from delaymq.broker.requests.session import Session
from delaymq.protocol.command import (
    FLAG_ONEWAY,
    Command,
    Response,
    encode_response,
    request_command,
)
from delaymq.server.broker_server import BrokerServer
from delaymq.server.requests import client_requests as module
from delaymq_testing.running_server import BrokerPeer, run, standalone, until

ASK, HELLO, QUESTION = 9_001, 9_002, 9_003
LONG_MS = 600_000


class Asker:
    """A broker in which code ASK asks everybody who said HELLO."""

    def __init__(self, server: BrokerServer) -> None:
        self.server = server
        self.members: list[Session] = []
        self.answers: list[list[Command | None]] = []
        self.timeout_ms = LONG_MS
        self.deferred = False
        self._handle = server.broker.handle
        server.broker.handle = self.handle  # type: ignore[assignment]

    def handle(self, session: Session, command: Command) -> object:
        if command.code == HELLO:
            self.members.append(session)
            return Response()
        if command.code == ASK:
            requests = [
                (member, request_command(QUESTION, {"n": str(n)}, command.body))
                for n, member in enumerate(self.members)
            ]
            return RelayedRequests(requests, self.timeout_ms, self.answer)
        return self._handle(session, command)

    def answer(self, answers: list[Command | None]) -> Response | Deferred:
        self.answers.append(answers)
        texts = ["-" if answer is None else answer.body[:20].decode() for answer in answers]
        response = Response(remark=" ".join(texts))
        if self.deferred:
            return Deferred(response, self.server.broker.store.end_offset, LONG_MS, Response(10))
        return response

    async def member(self) -> BrokerPeer:
        peer = await BrokerPeer.connect(self.server.port)
        await peer.connection.request(request_command(HELLO))
        return peer


@asynccontextmanager
async def asker(path: Path) -> AsyncIterator[Asker]:
    async with standalone(path) as server:
        yield Asker(server.broker)


async def question_to(peer: BrokerPeer, count: int = 1) -> Command:
    """The last of `count` questions that the broker sent it."""
    await until(lambda: len(peer.told) >= count)
    return peer.told[count - 1]


def reply(peer: BrokerPeer, question: Command, body: bytes, code: int = 0) -> None:
    peer.connection.send(encode_response(question, Response(code, body=body)))


def test_requester_gets_all_members_responses_in_request_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asker(tmp_path) as broker:
            first, second = await broker.member(), await broker.member()
            peer = await BrokerPeer.connect(broker.server.port)
            waiting = peer.connection.start_request(request_command(ASK, body=b"why"), LONG_MS)
            asked_second, asked_first = await question_to(second), await question_to(first)
            assert (asked_first.code, asked_first.fields, asked_first.body) == (QUESTION, {"n": "0"}, b"why")
            reply(second, asked_second, b"two", code=1)
            await peer.connection.request(request_command(HELLO))
            assert not waiting.done()
            reply(first, asked_first, b"one")
            answer = await waiting
            assert answer.remark == "one two"
            assert [each.code for each in broker.answers[0] if each is not None] == [0, 1]
            assert broker.server.client_requests.open_requests == 0

    run(scenario)


def test_silent_or_leaving_member_yields_no_response(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asker(tmp_path) as broker:
            first, second, gone = await broker.member(), await broker.member(), await broker.member()
            gone.connection.abort()
            await until(lambda: len(broker.server.sessions) == 2)
            peer = await BrokerPeer.connect(broker.server.port)
            waiting = peer.connection.start_request(request_command(ASK), LONG_MS)
            reply(first, await question_to(first), b"one")
            await question_to(second)
            second.connection.abort()
            answer = await waiting
            assert answer.remark == "one - -"

            broker.members = broker.members[:1]
            broker.timeout_ms = 50
            answer = await peer.connection.request(request_command(ASK), LONG_MS)
            assert answer.remark == "-"
            late = await question_to(first, 2)
            reply(first, late, b"late")
            third = peer.connection.start_request(request_command(ASK), LONG_MS)
            assert (await third).remark == "-"
            assert first.connection.closing is False

    run(scenario)


def test_request_without_recipients_is_answered_immediately(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asker(tmp_path) as broker:
            peer = await BrokerPeer.connect(broker.server.port)
            assert (await peer.connection.request(request_command(ASK))).remark == ""
            assert broker.answers == [[]]

    run(scenario)


def test_response_may_wait_for_flush(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asker(tmp_path) as broker:
            member = await broker.member()
            peer = await BrokerPeer.connect(broker.server.port)
            await peer.send("T")
            broker.deferred = True
            waiting = peer.connection.start_request(request_command(ASK), LONG_MS)
            reply(member, await question_to(member), b"one")
            assert (await waiting).remark == "one"
            assert broker.server.broker.store.flushed_offset == broker.server.broker.store.end_offset

    run(scenario)


def test_oneway_request_is_forwarded_without_response(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asker(tmp_path) as broker:
            member = await broker.member()
            peer = await BrokerPeer.connect(broker.server.port)
            command = request_command(ASK)
            command.flag = FLAG_ONEWAY
            peer.connection.send_oneway(command)
            reply(member, await question_to(member), b"one")
            await until(lambda: broker.answers)
            assert (await peer.connection.request(request_command(HELLO))).code == 0

    run(scenario)


def test_disconnected_requester_has_no_effect_on_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asker(tmp_path) as broker:
            member = await broker.member()
            peer = await BrokerPeer.connect(broker.server.port)
            peer.connection.start_request(request_command(ASK), LONG_MS).add_done_callback(
                lambda done: done.exception()
            )
            question = await question_to(member)
            peer.connection.abort()
            await until(lambda: len(broker.server.sessions) == 1)
            reply(member, question, b"one")
            await until(lambda: broker.answers)
            assert broker.server.client_requests.open_requests == 0
            assert broker.server.client_requests._of_requester == {}

    run(scenario)


def test_open_requests_per_requester_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN_PER_REQUESTER", 2)

    async def scenario() -> None:
        async with asker(tmp_path) as broker:
            member = await broker.member()
            peer, other = [await BrokerPeer.connect(broker.server.port) for _ in range(2)]
            open_ones = [peer.connection.start_request(request_command(ASK), LONG_MS) for _ in range(2)]
            refused = await peer.connection.request(request_command(ASK))
            assert refused.code == 2
            assert (refused.remark or "").startswith("[REJECTREQUEST]system busy, start flow control for a while")
            open_ones.append(other.connection.start_request(request_command(ASK), LONG_MS))
            for count in (1, 2, 3):
                reply(member, await question_to(member, count), b"one")
            assert [(await each).remark for each in open_ones] == ["one"] * 3
            broker.members.clear()
            assert (await peer.connection.request(request_command(ASK))).code == 0

    run(scenario)


def test_memory_of_open_requests_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_HELD_BYTES_PER_REQUESTER", 2_500)
    monkeypatch.setattr(module, "MAX_HELD_BYTES", 4_500)

    async def scenario() -> None:
        async with asker(tmp_path) as broker:
            member = await broker.member()
            first, second = [await BrokerPeer.connect(broker.server.port) for _ in range(2)]
            for peer in (first, first, second, second):
                peer.connection.start_request(request_command(ASK, body=bytes(1_000)), LONG_MS)
            await question_to(member, 4)
            assert (await first.connection.request(request_command(ASK, body=bytes(1_000)))).code == 2
            third = await BrokerPeer.connect(broker.server.port)
            assert (await third.connection.request(request_command(ASK, body=bytes(1_000)))).code == 2
            for question in member.told[:4]:
                reply(member, question, b"x")
            await until(lambda: not broker.server.client_requests.open_requests)
            whole = first.connection.start_request(request_command(ASK, body=bytes(9_000)), LONG_MS)
            reply(member, await question_to(member, 5), b"y")
            assert (await whole).remark == "y"

    run(scenario)


def test_total_of_open_requests_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN_REQUESTS", 3)

    async def scenario() -> None:
        async with asker(tmp_path) as broker:
            members = [await broker.member(), await broker.member()]
            peer, other = [await BrokerPeer.connect(broker.server.port) for _ in range(2)]
            waiting = peer.connection.start_request(request_command(ASK), LONG_MS)
            await question_to(members[0])
            assert (await other.connection.request(request_command(ASK))).code == 2
            for member in members:
                reply(member, await question_to(member), b"x")
            assert (await waiting).remark == "x x"

    run(scenario)


def test_many_members_are_queried_in_several_loop_iterations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SENT_AT_ONCE", 3)

    async def scenario() -> None:
        async with asker(tmp_path) as broker:
            member = await broker.member()
            broker.members *= 10
            peer = await BrokerPeer.connect(broker.server.port)
            waiting = peer.connection.start_request(request_command(ASK), LONG_MS)
            for count in range(1, 11):
                question = await question_to(member, count)
                reply(member, question, question.fields["n"].encode())
            assert (await waiting).remark == "0 1 2 3 4 5 6 7 8 9"

    run(scenario)


def test_responses_beyond_one_frame_are_omitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RESPONSE_BYTES", 1_000)

    async def scenario() -> None:
        async with asker(tmp_path) as broker:
            members = [await broker.member() for _ in range(3)]
            peer = await BrokerPeer.connect(broker.server.port)
            waiting = peer.connection.start_request(request_command(ASK), LONG_MS)
            for member, size in zip(members, (600, 600, 300), strict=True):
                reply(member, await question_to(member), b"x" * size)
                await member.connection.request(request_command(14_000))
            assert (await waiting).remark == f"{'x' * 20} - {'x' * 20}"
            assert broker.server.client_requests._kept_bytes == 0

    run(scenario)


def test_request_larger_than_a_frame_has_no_response(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asker(tmp_path) as broker:
            await broker.member()

            def too_large(session: Session, command: Command) -> RelayedRequests:
                question = request_command(QUESTION, body=bytes(17 << 20))
                return RelayedRequests([(broker.members[0], question)], LONG_MS, broker.answer)

            broker.server.broker.handle = too_large
            peer = await BrokerPeer.connect(broker.server.port)
            assert (await peer.connection.request(request_command(ASK))).remark == "-"

    run(scenario)


def test_stop_ends_open_requests(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with asker(tmp_path) as broker:
            member = await broker.member()
            peer = await BrokerPeer.connect(broker.server.port)
            waiting = peer.connection.start_request(request_command(ASK), LONG_MS)
            await question_to(member)
        with pytest.raises(Exception, match="connection was"):
            await waiting
        assert broker.answers == []

    run(scenario)
