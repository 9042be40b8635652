"""Responses with thousands of entries: others are served while they are built."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from delaymq.broker.broker import Broker
from delaymq.protocol.bodies import TopicConfig
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, request_command
from delaymq.server.standalone import Standalone
from delaymq.transport import TransportError, inbound
from delaymq.transport import fair_queue as turns_module
from delaymq_testing.running_server import BrokerPeer, run, standalone, until

QUEUES = 16_384
OFFSETS = 30_000
WIDE = {"topic": "Wide"}
READERS = {"consumerGroup": "readers"}


@pytest.fixture(autouse=True)
def _smallest_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "SLICE_S", 0.0)
    monkeypatch.setattr(turns_module, "LOOP_SLICE_S", 0.0)


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[tuple[Standalone, BrokerPeer, BrokerPeer]]:
    """A broker with a topic of 16,384 queues and offsets of many groups, and two peers."""
    async with standalone(path) as server:
        broker = server.broker.broker
        broker.topics.put(TopicConfig("Wide", QUEUES, QUEUES, 6))
        broker.groups.find("readers")
        for number in range(QUEUES):
            broker.offsets.commit("Wide", "readers", number, 0)
        for number in range(OFFSETS):
            broker.offsets.commit(f"T{number}", "readers" if number % 2 else f"g{number}", 0, 1)
            broker.offsets.commit("Many", f"g{number}", 0, 1)
        yield server, await BrokerPeer.connect(server.broker.port), await BrokerPeer.connect(server.broker.port)


async def answered(peer: BrokerPeer, question: Command, other: BrokerPeer) -> tuple[Command, int]:
    """The answer, and how many requests of another connection were answered before it."""
    future = peer.connection.start_request(question, 60_000)
    between = 0
    while not future.done():
        assert (await other.send("Other")).code == 0
        between += 1
    return await future, between


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_TOPIC_STATS_INFO, WIDE),
        (RequestCode.GET_CONSUME_STATS, READERS | WIDE),
        (RequestCode.GET_CONSUME_STATS, READERS | {"topic": ""}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, WIDE | {"group": "readers"}),
        (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "Many"}),
        (RequestCode.QUERY_CORRECTION_OFFSET, WIDE | {"filterGroups": "", "compareGroup": "readers"}),
        (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "readers", "destGroup": "heirs", "topic": "", "offline": "true"}),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, WIDE | {"group": "readers", "timestamp": "-1", "isForce": "true"}),
    ],
)
def test_others_are_served_while_a_response_about_all_queues_is_built(
    tmp_path: Path, code: int, fields: dict[str, str]
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as (_, peer, other):
            answer, between = await answered(peer, request_command(code, fields), other)
            reset = code == RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
            assert answer.code == (ResponseCode.CONSUMER_NOT_ONLINE if reset else 0)
            assert between >= 8

    run(scenario)


def test_concurrent_long_requests_are_limited_and_others_queue_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped: list[int] = []
    next_step = Broker.next_step

    def noted(broker: Broker, session: Any, *arguments: Any) -> Any:
        stepped.append(session.id)
        return next_step(broker, session, *arguments)

    monkeypatch.setattr(Broker, "next_step", noted)

    async def scenario() -> None:
        async with serving(tmp_path) as (server, peer, other):
            peers = [peer, *[await BrokerPeer.connect(server.broker.port) for _ in range(4)]]
            row = server.broker.long_requests
            futures = []
            for at, each in enumerate(peers):
                futures.append(each.connection.start_request(request_command(202, WIDE), 60_000))
                if at < 2:
                    await until(lambda expected=at + 1: row.under_way >= expected or all(f.done() for f in futures))
            behind = peers[4].connection.start_request(request_command(202, {"topic": "Nowhere"}), 60_000)
            assert (await other.send("Other")).code == 0
            answers = await asyncio.gather(*futures)
            assert {len(answer.body) for answer in answers} == {len(answers[0].body)}
            assert (await behind).code == ResponseCode.TOPIC_NOT_EXIST
            assert row.under_way == 0
            order = list(dict.fromkeys(stepped))
            assert len(order) == 5
            ends = {each: len(stepped) - stepped[::-1].index(each) for each in order}
            begins = {each: stepped.index(each) for each in order}
            for at in range(2, 5):
                assert sum(ends[earlier] > begins[order[at]] + 1 for earlier in order[:at]) < 2

    run(scenario)


def test_queued_request_of_a_disconnected_client_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stepped: Counter[int] = Counter()
    next_step = Broker.next_step

    def noted(broker: Broker, session: Any, *arguments: Any) -> Any:
        stepped[session.id] += 1
        return next_step(broker, session, *arguments)

    monkeypatch.setattr(Broker, "next_step", noted)

    async def scenario() -> None:
        async with serving(tmp_path) as (server, peer, other):
            row = server.broker.long_requests
            futures = [each.connection.start_request(request_command(202, WIDE), 60_000) for each in (peer, other)]
            await until(lambda: row.under_way == 2)
            leaving = [await BrokerPeer.connect(server.broker.port) for _ in range(3)]
            for each in leaving:
                each.connection.start_request(request_command(202, WIDE), 60_000).cancel()
            await until(lambda: len(row) == 3 or all(future.done() for future in futures))
            for each in leaving:
                each.connection.abort()
            for future in futures:
                assert (await future).code == 0
            await until(lambda: row.under_way == 0)
            assert len(row) == 0
            steps = sorted(stepped.values())
            assert (steps[:3], steps[3] > 100, len(steps)) == ([1, 1, 1], True, 5)
            assert (await peer.connection.request(request_command(202, WIDE), 60_000)).code == 0

    run(scenario)


def test_failed_step_releases_its_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    next_step = Broker.next_step

    def broken(broker: Broker, *arguments: Any) -> Any:
        raise AssertionError("a defect")

    async def scenario() -> None:
        async with serving(tmp_path) as (server, peer, other):
            monkeypatch.setattr(Broker, "next_step", broken)
            for _ in range(3):
                broken_off = await BrokerPeer.connect(server.broker.port)
                with pytest.raises(TransportError):
                    await broken_off.connection.request(request_command(202, WIDE), 60_000)
            monkeypatch.setattr(Broker, "next_step", next_step)
            assert server.broker.long_requests.under_way == 0
            for each in (peer, other):
                assert (await each.connection.request(request_command(202, WIDE), 60_000)).code == 0

    run(scenario)
