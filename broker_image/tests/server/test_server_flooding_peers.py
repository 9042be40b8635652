"""Peers that flood, trickle or fall silent have a bounded effect on others, without loss."""

import asyncio
import contextlib
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import encode_command, request_command
from delaymq.server.requests.flow_control import OVERLOADED, REJECTED
from delaymq.store.message_store import MessageStore
from delaymq.transport import TransportError
from delaymq_testing.running_server import HOST, BrokerPeer, run, send_command, standalone, until


def test_connections_per_address_are_limited_and_released(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, max_connections_per_address=2) as server:
            port = server.broker.port
            peers = [await BrokerPeer.connect(port) for _ in range(2)]
            await until(lambda: len(server.broker.sessions) == 2)
            refused = await BrokerPeer.connect(port)
            await until(lambda: refused.connection.closing)
            assert server.broker.sessions.refused == 1
            assert (await peers[0].send("T")).code == ResponseCode.SUCCESS
            peers[0].connection.close()
            await until(lambda: len(server.broker.sessions) == 1)
            again = await BrokerPeer.connect(port)
            assert (await again.send("T")).code == ResponseCode.SUCCESS

    run(scenario)


def test_trickling_peer_counts_as_idle(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, channel_idle_ms=1_000, namesrv_channel_idle_ms=60_000) as server:
            reader, writer = await asyncio.open_connection(HOST, server.broker.port)
            frame = encode_command(send_command("T", b"x" * 100_000))

            async def trickle() -> None:
                with contextlib.suppress(ConnectionError):
                    for at in range(len(frame)):
                        writer.write(frame[at : at + 1])
                        await writer.drain()
                        await asyncio.sleep(0.02)

            trickling = asyncio.create_task(trickle())
            # Its end: whole frames never came.
            with contextlib.suppress(ConnectionError):
                assert await reader.read(1) == b""
            trickling.cancel()
            writer.close()
            assert server.broker.broker.stats.put_messages == 0

    run(scenario)


def test_silent_peers_with_large_announced_requests_use_little_memory(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, max_buffered_bytes=16 << 20) as server:
            silent = [await asyncio.open_connection(HOST, server.broker.port) for _ in range(100)]
            for _, writer in silent:
                writer.write(struct.pack(">II", 250_000, 10) + b"x")
            await until(lambda: len(server.broker.sessions) == 100)
            polite = await BrokerPeer.connect(server.broker.port)
            assert (await polite.send("T", b"y" * 1_000_000)).code == ResponseCode.SUCCESS
            # A quarter of the budget is given on their word, and a last one beyond it.
            assert server.broker.buffers.received_bytes <= (4 << 20) + 250_000
            assert server.broker.buffers.disconnected == 0
            for _, writer in silent:
                writer.close()
            await until(lambda: server.broker.buffers.received_bytes == 0)

    run(scenario)


def test_partial_requests_to_a_nameserver_share_one_budget(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path, namesrv_max_buffered_bytes=16 << 20) as server:
            buffers = server.namesrv.buffers
            hostile = [await asyncio.open_connection(HOST, server.namesrv.port) for _ in range(6)]
            for count, (_, writer) in enumerate(hostile, 1):
                writer.write(struct.pack(">II", 6 << 20, 10) + bytes(5 << 20))
                await until(lambda count=count: buffers.disconnected or buffers.received_bytes >= count * (5 << 20))
            await until(lambda: buffers.disconnected)
            assert buffers.received_bytes <= 16 << 20
            polite = await BrokerPeer.connect(server.namesrv.port)
            question = request_command(RequestCode.GET_BROKER_CLUSTER_INFO)
            assert (await polite.connection.request(question)).code == ResponseCode.SUCCESS
            for _, writer in hostile:
                writer.close()
            await until(lambda: buffers.received_bytes == 0)

    run(scenario)


def test_flood_of_small_requests_is_answered_without_starving_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            question = request_command(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
            polite, flooding = [await BrokerPeer.connect(server.broker.port) for _ in range(2)]
            answers = [flooding.connection.start_request(question, 60_000) for _ in range(3_000)]
            for _ in range(5):
                assert (await polite.send("T")).code == ResponseCode.SUCCESS
            assert {answer.code for answer in await asyncio.gather(*answers)} == {ResponseCode.SUCCESS}

    run(scenario)


class HeldSync:
    """A sync that a test lets go on."""

    def __init__(self, task: Any, may_go_on: Any) -> None:
        self._task = task
        self._may_go_on = may_go_on

    def run(self) -> None:
        assert self._may_go_on.wait(60)
        self._task.run()

    def finish(self) -> Any:
        return self._task.finish()


@pytest.mark.parametrize(
    ("settings", "remark"),
    [
        ({"os_page_cache_busy_time_out_mills": 1}, REJECTED),
        ({"send_thread_pool_queue_capacity": 1}, OVERLOADED),
    ],
)
def test_new_sends_are_rejected_while_the_disk_hangs_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], remark: str
) -> None:
    may_go_on = threading.Event()
    may_go_on.set()
    flush_task = MessageStore.flush_task

    def held(store: MessageStore) -> Any:
        task = flush_task(store)
        return None if task is None else HeldSync(task, may_go_on)

    monkeypatch.setattr(MessageStore, "flush_task", held)

    async def scenario() -> None:
        async with standalone(tmp_path, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000, **settings) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            broker = server.broker.broker
            may_go_on.clear()
            try:
                waiting = peer.connection.start_request(send_command("T"), 60_000)
                await until(lambda: server.broker.flushing.waiting == 1)
                stored = broker.store.end_offset
                await asyncio.sleep(0.01)  # the disk counts as busy after a millisecond
                answer = await peer.connection.request(send_command("T"), 60_000)
                assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_BUSY, remark)
                assert broker.store.end_offset == stored
                assert not waiting.done()
                question = request_command(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
                assert (await peer.connection.request(question)).code == ResponseCode.SUCCESS
            finally:
                may_go_on.set()
            assert (await waiting).code == ResponseCode.SUCCESS
            await until(lambda: server.broker.flushing.waiting == 0)
            with contextlib.suppress(TransportError):
                peer.connection.close()

    run(scenario)
