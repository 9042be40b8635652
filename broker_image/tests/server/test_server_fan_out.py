"""Many connections with held pulls: responses, and cleanup after disconnects."""

import asyncio
import gc
from pathlib import Path

import pytest
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, request_command
from delaymq.server.requests.client_session import ClientSession
from delaymq.server.requests.long_polling import HeldPulls
from delaymq_testing.running_server import BrokerPeer, run, standalone, until

PEERS = 60


def pull_by_sql(peer: BrokerPeer, expression: str, queue_id: int = 0) -> asyncio.Future[Command]:
    fields = {
        "consumerGroup": "G", "topic": "T", "queueId": str(queue_id), "queueOffset": "1", "maxMsgNums": "32",
        "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "60000", "subscription": expression,
        "subVersion": "1", "expressionType": "SQL92",
    }  # fmt: skip
    return peer.connection.start_request(request_command(RequestCode.PULL_MESSAGE, fields), 70_000)


def sessions_alive() -> int:
    return sum(isinstance(each, ClientSession) for each in gc.get_objects())


def test_arrival_answers_only_matching_held_pulls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The periodic rerun answers pulls whose next message does not match: PULL_RETRY_IMMEDIATELY.
    monkeypatch.setattr(HeldPulls, "recheck", lambda *_: None)

    async def scenario() -> None:
        async with standalone(tmp_path, enable_property_filter=True) as server:
            producer = await BrokerPeer.connect(server.broker.port)
            await producer.send("T", price="0")
            peers = [await BrokerPeer.connect(server.broker.port) for _ in range(PEERS)]
            waiting = [pull_by_sql(peer, f"price > {number}") for number, peer in enumerate(peers)]
            await until(lambda: len(server.broker.held_pulls) == PEERS)
            await producer.send("T", b"wanted by some", price="20")
            answers = await asyncio.gather(*waiting[:20])
            assert all(b"wanted by some" in answer.body for answer in answers)
            assert len(server.broker.held_pulls) == PEERS - 20
            assert not any(each.done() for each in waiting[20:])
            await producer.send("T", b"wanted by all", price="100")
            assert all(b"wanted by all" in answer.body for answer in await asyncio.gather(*waiting[20:]))
            for peer in (producer, *peers):
                peer.connection.close()

    run(scenario)


def test_closed_connections_leave_no_garbage_cycles(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            producer = await BrokerPeer.connect(server.broker.port)
            await producer.send("T")
            gc.collect()
            gc.disable()
            try:
                before = sessions_alive()
                peers = [await BrokerPeer.connect(server.broker.port) for _ in range(PEERS)]
                waiting = [peer.pull("T", 1) for peer in peers]
                await until(lambda: len(server.broker.held_pulls) == PEERS)
                for each in waiting:
                    each.cancel()
                for peer in peers:
                    peer.connection.close()
                await until(lambda: len(server.broker.held_pulls) == 0)
                # The look at waiting pulls, every 5 s, may still have some in hand.
                await until(lambda: sessions_alive() <= before)
            finally:
                gc.enable()
            producer.connection.close()

    run(scenario)
