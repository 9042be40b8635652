"""Requests longer than a time slice: large batches, and colliding keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from delaymq.broker.broker import Broker
from delaymq.broker.filters.cost import SHARE_OF_ONE, CompileWork
from delaymq.broker.processors import batched, query
from delaymq.message.hashing import index_key_hash
from delaymq.protocol.batch import BatchMessage, encode_batch
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import FLAG_ONEWAY, MAX_HEADER_BYTES, Command, request_command
from delaymq.server.standalone import Standalone
from delaymq.store.index.index_file import STEP_ENTRIES, IndexFile
from delaymq.store.index.key_index import MAX_QUERY_STEPS
from delaymq_testing.running_server import BrokerPeer, run, send_command, standalone, until

BATCH = 20 * batched.BATCHED_AT_ONCE + 1


def batch(count: int, topic: str = "Orders", *, text: str = "") -> Command:
    command = send_command(topic)
    command.code = RequestCode.SEND_BATCH_MESSAGE
    command.fields["m"] = "true"
    properties = [f"KEYS\1{text or number}".encode() for number in range(count)]
    command.body = encode_batch([BatchMessage(0, b"", each) for each in properties])
    return command


@asynccontextmanager
async def serving(
    path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> AsyncIterator[tuple[Standalone, BrokerPeer, BrokerPeer, list[int]]]:
    """A server, two peers, and for each step of a request in turns how many messages were stored before it."""
    stored: list[int] = []
    next_step = Broker.next_step

    def counted(broker: Broker, *arguments: Any) -> Any:
        stored.append(broker.store.next_queue_offset("Orders", 0))
        return next_step(broker, *arguments)

    monkeypatch.setattr(Broker, "next_step", counted)
    async with standalone(path, **changes) as server:
        yield server, await BrokerPeer.connect(server.broker.port), await BrokerPeer.connect(server.broker.port), stored


def test_large_batch_is_stored_in_slices_while_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, monkeypatch) as (server, peer, other, stored):
            large = peer.connection.start_request(batch(BATCH), 60_000)
            behind = peer.connection.start_request(send_command("Behind"), 60_000)
            between = 0
            while not large.done():
                assert (await other.send("Other")).code == 0
                between += 1
            answer = await large
            assert between >= 3
            assert not behind.done() or server.broker.broker.store.next_queue_offset("Orders", 0) == BATCH
            assert (await behind).code == 0
            ids = [int(each[-16:], 16) for each in answer.fields["msgId"].split(",")]
            assert (answer.code, answer.fields["queueOffset"], len(ids)) == (0, "0", BATCH)
            assert ids == sorted(set(ids))
            found = await peer.connection.request(
                request_command(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(ids[-1])})
            )
            assert int.from_bytes(found.body[20:28], "big") == BATCH - 1
            steps = [after - before for before, after in zip(stored, [*stored[1:], BATCH], strict=True)]
            assert max(steps) <= batched.BATCHED_AT_ONCE
            assert len(steps) >= 2 * 21  # all are checked before the first is stored
            assert set(stored[:21]) == {0}

    run(scenario)


def test_batch_that_cannot_be_stored_completely_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, monkeypatch) as (server, peer, _, stored):
            bad = batch(BATCH)
            bad.body += encode_batch([BatchMessage(0, b"", b"DELAY\0013")])
            torn = batch(BATCH)
            torn.body = torn.body[:-1]
            many = batch(1 + batched.most_batched(server.broker.broker), text="k")
            for command, text in ((bad, "delay"), (torn, "message 2560"), (many, "send smaller batches")):
                answer = await peer.connection.request(command, 60_000)
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL
                assert text in (answer.remark or "")
            assert set(stored) == {0}
            assert not server.broker.broker.store.has_queue("Orders", 0) or stored[-1] == 0

    run(scenario)


def test_largest_batch_has_a_response_that_clients_accept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, monkeypatch) as (server, peer, _, _stored):
            most = batched.most_batched(server.broker.broker)
            assert most > 31_000
            answer = await peer.connection.request(batch(most, text="k"), 60_000)
            assert (answer.code, answer.fields["msgId"].count(",") + 1) == (0, most)
            assert sum(len(name) + len(value) for name, value in answer.fields.items()) < MAX_HEADER_BYTES

    run(scenario)


@pytest.mark.parametrize("oneway", [False, True])
def test_large_batch_is_stored_completely_when_its_sender_disconnects(
    oneway: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, monkeypatch) as (server, peer, other, stored):
            command = batch(BATCH)
            if oneway:
                command.flag |= FLAG_ONEWAY
                peer.connection.send_oneway(command)
                await until(lambda: stored)
            else:
                peer.connection.start_request(command, 60_000).add_done_callback(lambda future: future.exception())
                await until(lambda: stored)
                peer.connection.abort()
            await until(lambda: server.broker.broker.store.next_queue_offset("Orders", 0) == BATCH)
            assert (await other.send("Orders")).code == 0

    run(scenario)


def collide(count: int) -> tuple[list[str], str]:
    """Keys of one hash, and one in the same chain of the index (of 1,000 slots) with another hash."""
    keys = [""]
    while len(keys) < count:
        keys = [key + pair for key in keys for pair in ("Aa", "BB")]
    own = index_key_hash("Orders", keys[0])
    for number in range(1_000_000):
        other = index_key_hash("Orders", f"k{number}")
        if other % 1_000 == own % 1_000 and other != own:
            return keys[:count], f"k{number}"
    raise AssertionError


def entries_looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fills with the numbers of the index entries that are read."""
    entries: list[int] = []
    entry = IndexFile.entry

    def noted(file: IndexFile, number: int) -> tuple[int, int, int, int]:
        entries.append(number)
        return entry(file, number)

    monkeypatch.setattr(IndexFile, "entry", noted)
    return entries


def test_query_reads_colliding_keys_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = entries_looked_at(monkeypatch)

    async def scenario() -> None:
        async with serving(tmp_path, monkeypatch, max_index_num=100_000) as (_, peer, other, steps):
            keys, searched = collide(8 * STEP_ENTRIES * query.STEPS_AT_ONCE)
            assert (await peer.send("Orders", b"wanted", KEYS=searched)).code == 0
            assert (await peer.send("Orders", b"first", KEYS=keys[0])).code == 0
            for at in range(1, len(keys), 100):
                assert (await peer.send("Orders", KEYS=" ".join(keys[at : at + 100]))).code == 0
            for key, body in ((searched, b"wanted"), (keys[0], b"first")):
                steps.clear()
                entries.clear()
                fields = {"topic": "Orders", "key": key, "maxNum": "32", "beginTimestamp": "0"}
                question = request_command(RequestCode.QUERY_MESSAGE, fields | {"endTimestamp": str(1 << 53)})
                found = peer.connection.start_request(question, 60_000)
                while not found.done():
                    assert (await other.send("Other")).code == 0
                answer = await found
                # 64 records of the same hash no longer hide the one that has the key.
                assert (answer.code, body in answer.body) == (0, True)
                assert len(entries) >= len(keys)
                assert len(steps) >= len(entries) // STEP_ENTRIES - query.STEPS_AT_ONCE - 1

    run(scenario)


def test_query_ends_after_a_bounded_number_of_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "MAX_INDEX_ENTRIES", 3 * STEP_ENTRIES)

    async def scenario() -> None:
        async with serving(tmp_path, monkeypatch, max_index_num=100_000) as (_, peer, _other, _steps):
            keys, searched = collide(10 * STEP_ENTRIES)
            await peer.send("Orders", b"wanted", KEYS=searched)
            for at in range(0, len(keys), 100):
                await peer.send("Orders", KEYS=" ".join(keys[at : at + 100]))
            fields = {"topic": "Orders", "key": searched, "maxNum": "32", "beginTimestamp": "0"}
            question = request_command(RequestCode.QUERY_MESSAGE, fields | {"endTimestamp": str(1 << 53)})
            assert (await peer.connection.request(question)).code == ResponseCode.QUERY_NOT_FOUND

    run(scenario)


def test_second_commit_reads_a_bounded_part_of_a_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = entries_looked_at(monkeypatch)

    async def scenario() -> None:
        async with serving(tmp_path, monkeypatch, max_index_num=100_000) as (_, peer, _other, _steps):
            keys, searched = collide(MAX_QUERY_STEPS + 200)
            half = await peer.send("Orders", b"paid", TRAN_MSG="true", PGROUP="P", UNIQ_KEY=searched)
            offset = str(int(half.fields["msgId"][-16:], 16))
            fields = {"producerGroup": "P", "tranStateTableOffset": "0", "commitLogOffset": offset, "msgId": "m"}
            fields |= {"commitOrRollback": "8", "transactionId": "t"}
            end = request_command(RequestCode.END_TRANSACTION, fields)
            assert (await peer.connection.request(end)).code == 0
            for at in range(0, len(keys), 100):
                assert (await peer.send("Orders", KEYS=" ".join(keys[at : at + 100]))).code == 0
            entries.clear()
            await peer.connection.request(end)
            assert MAX_QUERY_STEPS <= len(entries) <= 2 * MAX_QUERY_STEPS

    run(scenario)


def test_connection_with_many_expressions_does_not_block_anothers_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: list[tuple[int, int]] = []
    spend = CompileWork.spend

    def noted(work: CompileWork, asker: int, text: str, comparisons: int) -> None:
        before = work._spent
        spend(work, asker, text, comparisons)
        spent.append((asker, work._spent - before))

    monkeypatch.setattr(CompileWork, "spend", noted)

    async def scenario() -> None:
        async with serving(tmp_path, monkeypatch, enable_property_filter=True) as (server, peer, other, _steps):
            await other.send("Orders", b"wanted", colour="red")
            server.broker.broker.compile_work._now_ms = lambda: 1  # one window, however long this takes
            fields = {"consumerGroup": "G", "topic": "Orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32"}
            fields |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "1"}
            fields |= {"expressionType": "SQL92"}
            flood = [
                request_command(RequestCode.PULL_MESSAGE, fields | {"subscription": f"colour = 'shade {number}'"})
                for number in range(500)
            ]
            flood.append(request_command(RequestCode.PULL_MESSAGE, fields | {"subscription": "a = " + "-" * 30_000}))
            answers = await asyncio.gather(*[peer.connection.request(each, 60_000) for each in flood])
            assert {answer.code for answer in answers} <= {ResponseCode.PULL_NOT_FOUND, 20}
            assert len({asker for asker, _ in spent}) == 1
            assert sum(units for _, units in spent) <= SHARE_OF_ONE + 10
            polite = request_command(RequestCode.PULL_MESSAGE, fields | {"subscription": "colour = 'red'"})
            assert (await other.connection.request(polite)).code == 0

    run(scenario)


def test_first_of_thousands_of_keys_are_indexed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    puts: list[int] = []
    put = IndexFile.put

    def noted(file: IndexFile, *arguments: Any) -> None:
        puts.append(1)
        put(file, *arguments)

    monkeypatch.setattr(IndexFile, "put", noted)

    async def scenario() -> None:
        async with serving(tmp_path, monkeypatch, max_index_num=100_000) as (server, peer, _, _steps):
            keys = [f"{number:x}" for number in range(6_000)]
            assert (await peer.send("Orders", b"many", KEYS=" ".join(keys))).code == 0
            assert len(puts) == 128
            store = server.broker.broker.store
            assert [bool(store.query_index("Orders", keys[n], 1, 0, 1 << 53)) for n in (0, 127, 128)] == [
                True,
                True,
                False,
            ]

    run(scenario)
