"""Hostile changes of consumer offsets are bounded, and no honest group loses its position."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from delaymq.broker.groups import consumer_offsets as offsets_module
from delaymq.protocol.bodies import ConsumerOffsets
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, request_command
from delaymq.server.api.store.files import small_files
from delaymq.server.standalone import Standalone
from delaymq.store.backup.source import FolderSource
from delaymq.store.disk.config_files import CONSUMER_OFFSETS
from delaymq_testing.running_server import HOST, BrokerPeer, run, standalone

BENCHMARK = "BenchmarkTest"
BENCHMARK_QUEUES = 1_024
TOPIC_QUEUES = 4
KEPT = ["config/consumerOffset.json.bak.unreadable", "config/consumerOffset.json.unreadable"]


def committed(topic: str, group: str, queue_id: int, offset: int, *, oneway: bool = False) -> Command:
    """Request 15."""
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    return request_command(RequestCode.UPDATE_CONSUMER_OFFSET, fields, oneway=oneway)


def cloned(topic: str, source: str, destination: str) -> Command:
    """Request 314."""
    fields = {"srcGroup": source, "destGroup": destination, "topic": topic, "offline": "true"}
    return request_command(RequestCode.CLONE_GROUP_OFFSET, fields)


def asked(topic: str, group: str, *, language: str = "PYTHON") -> Command:
    """Request 14."""
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    command = request_command(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    command.language = language
    return command


async def codes(peer: BrokerPeer, *commands: Command) -> list[int]:
    answers = await asyncio.gather(*(peer.connection.start_request(command, 30_000) for command in commands))
    return [answer.code for answer in answers]


async def persist(server: Standalone) -> None:
    """What the server does every flushConsumerOffsetInterval."""
    broker = server.broker.broker
    task = broker.persist_task(broker.now_ms())
    if task is not None:
        await asyncio.get_running_loop().run_in_executor(None, task.run)
        task.finish()


def table_of(store: Path) -> dict[str, dict[int, int]]:
    data = (store / "config" / "consumerOffset.json").read_bytes()
    return ConsumerOffsets.decode(data, max_bytes=offsets_module.MAX_FILE_BYTES).offset_table


def test_commits_of_nonexistent_queues_are_dropped_and_clones_do_not_multiply(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T")
            commits = [committed("T", "g", queue_id, 2**63 - 1) for queue_id in range(1_000)]
            assert (await codes(peer, *commits)).count(ResponseCode.SUCCESS) == TOPIC_QUEUES
            unknown = [committed(f"Made{number}", "g", 0, 1) for number in range(100)]
            assert set(await codes(peer, *unknown)) == {ResponseCode.TOPIC_NOT_EXIST}
            clones = [cloned("T", "g", f"g{number}") for number in range(100)]
            assert set(await codes(peer, *clones)) == {ResponseCode.SUCCESS}
            offsets = server.broker.broker.offsets
            assert offsets.entries == TOPIC_QUEUES * 101 == sum(map(len, offsets.table.values()))
            assert offsets.ignored == 1_000 - TOPIC_QUEUES + 100

    run(scenario)


def test_offsets_of_all_groups_are_limited_and_existing_ones_advance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = 3 * BENCHMARK_QUEUES + 1
    monkeypatch.setattr(offsets_module, "MAX_ENTRIES", bound)

    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T")
            assert await codes(peer, committed("T", "honest", 0, 1)) == [0]
            await codes(peer, *(committed(BENCHMARK, "g", queue_id, 1) for queue_id in range(BENCHMARK_QUEUES)))
            clones = await codes(peer, *(cloned(BENCHMARK, "g", f"g{number}") for number in range(20)))
            assert clones == [0, 0] + [ResponseCode.SYSTEM_ERROR] * 18
            assert server.broker.broker.offsets.entries == bound
            assert await codes(peer, committed("T", "late", 0, 1), committed("T", "honest", 0, 2)) == [1, 0]

    run(scenario)


def test_table_that_the_next_start_would_reject_replaces_neither_file_nor_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets_module, "MAX_FILE_BYTES", 2_000)

    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            await peer.send("T")
            assert await codes(peer, committed("T", "honest", 0, 1)) == [0]
            await persist(server)
            for offset in (1, 2):
                commits = [committed(BENCHMARK, "g", queue_id, offset) for queue_id in range(BENCHMARK_QUEUES)]
                assert set(await codes(peer, *commits)) == {ResponseCode.SUCCESS}
                await persist(server)
        assert table_of(tmp_path / "store") == {"T@honest": {0: 1}}
        async with standalone(tmp_path) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            answer = await peer.connection.request(asked("T", "honest"))
            assert (answer.code, answer.fields) == (ResponseCode.SUCCESS, {"offset": "1"})

    run(scenario)


def test_unreadable_offsets_block_consumers_until_resolved(tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    damaged = {"consumerOffset.json": b'{"offsetTable":{"T@honest":{"0":1', "consumerOffset.json.bak": b"\0" * 100}

    async def unserved(server: Standalone) -> None:
        broker = server.broker.broker
        peer = await BrokerPeer.connect(server.broker.port)
        assert (await peer.send("T", DELAY="1")).code == ResponseCode.SUCCESS
        for command in (
            asked("T", "honest"),
            request_command(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}),
            request_command(RequestCode.GET_ALL_CONSUMER_OFFSET),
            committed("T", "honest", 0, 7),
            cloned("T", "honest", "other"),
        ):
            answer = await peer.connection.request(command)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "discard the offsets with `delaymq group forget-offsets`" in str(answer.remark)
            assert "config/consumerOffset.json.unreadable" in str(answer.remark)
        pulled = await peer.pull("T", 0, wait_ms=0)
        assert pulled.code == ResponseCode.SERVICE_NOT_AVAILABLE
        # RocketMQ's client in Java takes every refusal for "no offset", but not an answer that it cannot read.
        answer = await peer.connection.request(asked("T", "honest", language="JAVA"))
        assert (answer.code, answer.fields) == (ResponseCode.SUCCESS, {})
        peer.connection.send_oneway(committed("T", "honest", 0, 7, oneway=True))
        assert (await peer.connection.request(asked("T", "honest"))).code == ResponseCode.SERVICE_NOT_AVAILABLE
        await persist(server)
        assert (broker.offsets.table, (config / "consumerOffset.json").exists()) == ({}, False)

    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            await (await BrokerPeer.connect(server.broker.port)).send("T")
        for name, data in damaged.items():
            (config / name).write_bytes(data)
        for _ in range(2):
            async with standalone(tmp_path) as server:
                await unserved(server)
        assert {name: (config / f"{name}.unreadable").read_bytes() for name in damaged} == damaged
        async with standalone(tmp_path, http=True) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            assert await forget(server) == (200, KEPT)
            assert (await forget(server))[0] == 409
            assert not server.broker.broker.offsets.unreadable
            assert await codes(peer, asked("T", "honest"), committed("T", "honest", 0, 1)) == [0, 0]
            assert (await peer.pull("T", 0, wait_ms=0)).code == ResponseCode.SUCCESS
        async with standalone(tmp_path) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            assert (await peer.connection.request(asked("T", "honest"))).fields == {"offset": "1"}

    run(scenario)


async def forget(server: Standalone) -> tuple[int, Any]:
    """Status, and files or error, of POST /api/v1/offsets/forget."""
    url = f"http://{HOST}:{server.broker.http_port}/api/v1/offsets/forget"
    async with aiohttp.ClientSession() as session, session.post(url, json={}) as answer:
        told = await answer.json()
        return answer.status, told.get("kept", told)


def test_valid_file_next_to_unreadable_ones_is_used_at_the_next_start(tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"

    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            await (await BrokerPeer.connect(server.broker.port)).send("T")
        (config / "consumerOffset.json").write_bytes(b"{")
        (config / "consumerOffset.json.bak").unlink(missing_ok=True)
        async with standalone(tmp_path) as server:
            assert server.broker.broker.offsets.unreadable == ("config/consumerOffset.json.unreadable",)
        (config / "consumerOffset.json").write_bytes(b'{"offsetTable":{"T@honest":{0:1}}}')
        async with standalone(tmp_path) as server:
            peer = await BrokerPeer.connect(server.broker.port)
            assert (await peer.connection.request(asked("T", "honest"))).fields == {"offset": "1"}

    run(scenario)


def test_unreadable_backup_of_offsets_does_not_count_as_empty(tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / "consumerOffset.json").write_bytes(b"{")

    async def scenario() -> None:
        async with standalone(tmp_path) as server:
            asked = dict(small_files(server.broker.broker))[CONSUMER_OFFSETS].encode()
        copied = FolderSource(str(tmp_path / "store")).state().small_files[CONSUMER_OFFSETS]
        for number, data in enumerate((asked, copied)):
            restored = tmp_path / str(number) / "store" / "config"
            restored.mkdir(parents=True)
            (restored / "consumerOffset.json").write_bytes(data)
            async with standalone(tmp_path / str(number)) as server:
                assert server.broker.broker.offsets.unreadable

    run(scenario)
