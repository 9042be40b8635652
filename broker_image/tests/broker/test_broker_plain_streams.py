"""Producers' byte streams have the same effects on a server that stores plain sends of a read with one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import Command, encode_command
from delaymq.server.requests.plain_sends import MAX_REQUESTS
from delaymq_testing.broker.harness import records_of, send_fields
from delaymq_testing.broker.plain_sends.lanes import World, answers, counted, fixed, is_sound, pieces
from delaymq_testing.broker.plain_sends.sends import damaged, java_frame, random_frame, send_fields_of
from delaymq_testing.compiled_kernels import NEEDS_KERNELS
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from delaymq_testing.transport.memory_transport import run, turns

pytestmark = NEEDS_KERNELS
STORE_HOST = bytes([10, 0, 0, 1, 0, 0, 42, 159])
SHARE = 5
"""Frames of the streams are one in this number of FUZZ_INPUTS."""


def change(world: World, kind: int) -> None:
    """Change a state that decides about sends, or change it back."""
    broker = world.broker
    orders = broker.topics.table.get("Orders")
    if kind == 0:
        broker.writable = not broker.writable
    elif kind == 1:
        broker.drain.takes_sends = not broker.drain.takes_sends
    elif kind == 2:
        broker.store.refuse_all("" if broker.store.refusal else "The disk is full: free space.")
    elif kind == 3 and orders is not None:
        orders.topic_filter_type = "MULTI_TAG" if orders.topic_filter_type == "SINGLE_TAG" else "SINGLE_TAG"
    elif kind == 4 and orders is not None:
        orders.write_queue_nums = orders.read_queue_nums = 6 - orders.write_queue_nums
    elif kind == 5:
        broker.max_message_size = 2_000 if broker.max_message_size > 2_000 else 4 << 20
    elif kind == 6:
        world.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Bills"})


@pytest.mark.parametrize("run_number", range(3))
@pytest.mark.parametrize(("slice_s", "waits"), [(0.0, False), (1_000.0, False), (1_000.0, True)])
def test_streams_have_the_effects_of_single_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_s: float, waits: bool, run_number: int
) -> None:
    counting = counted(monkeypatch, slice_s)
    chance = Random(f"{SEED} {slice_s} {run_number}")

    async def scenario() -> None:
        with fixed(monkeypatch) as now:
            worlds = [World(tmp_path / str(number), has_lane=number == 0) for number in range(2)]
            for world in worlds if waits else ():
                world.wait_for_replicas()
            changed: list[int] = []
            is_changed = False
            for round_number in range(FUZZ_INPUTS // SHARE // 6 // 20):
                if round_number % 4 == 3:
                    kind = changed.pop() if changed else chance.randrange(7)
                    is_changed = not is_changed and kind != 6
                    changed += [kind] if is_changed else []
                    for world in worlds:
                        change(world, kind)
                unusual = chance.choice([0, 0, 0.02, 0.3])
                frames = [random_frame(chance, chance.randrange(2**31), unusual) for _ in range(20)]
                stream = b"".join(frames)
                if slice_s == 0:
                    # Which deferred requests are dropped because of a damaged one depends on the reads.
                    stream = b"".join(frame for frame in frames if is_sound(frame))
                elif chance.random() < 0.05:
                    stream = damaged(stream, chance)
                for piece in pieces(stream, chance):
                    is_open = [await world.receive(piece) for world in worlds]
                    now.advance(chance.choice([0, 0, 1]))
                    assert is_open[0] == is_open[1]
                    if not is_open[0]:
                        break
                in_sync = chance.choice([2, 2, 2, 1, 0])
                waiting = [world.confirm(in_sync) if waits else 0 for world in worlds]
                assert waiting[0] == waiting[1]
                handed = [world.broker.hand_over(now(), 64) for world in worlds]
                assert handed[0] == handed[1]
            outcomes = [world.outcome() for world in worlds]
            for part in outcomes[0]:
                assert outcomes[0][part] == outcomes[1][part], part
            assert min(counting.delayed, counting.timed) > 0
            assert counting.encoded > outcomes[0]["messages"][0] / 50  # type: ignore[index]
            files = [world.closed_files() for world in worlds]
            assert files[0] == files[1]
            assert sum(name.startswith("commitlog/") for name in files[0]) > 1
            again = [World(tmp_path / str(number), has_lane=number == 0) for number in range(2)]
            assert again[0].pending() == again[1].pending()
            assert again[0].broker.delivery.pending_total() == worlds[0].broker.delivery.pending_total()
            for world in again:
                world.closed_files()

    run(scenario)


def lane_of(path: Path, **changes: Any) -> World:
    world = World(path, has_lane=True, **changes)
    for queue_id in range(4):
        world.ask(RequestCode.SEND_MESSAGE_V2, send_fields("Orders") | {"e": queue_id, "i": "KEYS\x01a"})
    return world


def plain(number: int, **fields: str) -> bytes:
    usual = send_fields_of(Random(number), ("Orders",), 0) | {"i": f"UNIQ_KEY\x01{number}"}
    return java_frame(usual | fields, number, b"body")


def test_nul_in_properties_is_rejected_between_plain_sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = counted(monkeypatch)

    async def scenario() -> None:
        world = lane_of(tmp_path)
        await world.receive(plain(1) + plain(2) + plain(3, i="KEYS\x01a\0") + plain(4) + plain(5))
        found = answers(bytes(world.producer.written))
        assert [each.code for each in found] == [0, 0, ResponseCode.MESSAGE_ILLEGAL, 0, 0]
        assert counting.encoded >= 2
        files = world.closed_files()
        assert not any(b"a\0" in content for name, content in files.items() if name.startswith("commitlog/"))

    run(scenario)


def test_requests_of_other_kinds_keep_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = counted(monkeypatch)

    async def scenario() -> None:
        world = lane_of(tmp_path)
        ask = encode_command(Command(RequestCode.GET_MAX_OFFSET, 3, fields={"topic": "Orders", "queueId": "0"}))
        sends = [plain(number, e="0") for number in (1, 2, 4, 5)]
        await world.receive(sends[0] + sends[1] + ask + sends[2] + sends[3])
        found = answers(bytes(world.producer.written))
        assert [each.opaque for each in found] == [1, 2, 3, 4, 5]
        assert found[2].fields["offset"] == "3"
        assert [each.fields.get("queueOffset") for each in found] == ["1", "2", None, "3", "4"]
        assert counting.encoded == 2
        world.closed_files()

    run(scenario)


def test_held_pull_is_answered_with_the_messages_of_a_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = lane_of(tmp_path)
        world.broker.watch_arrivals(
            world.server.held_pulls.arrived, world.server.held_pulls.queues, world.server.held_pulls.property_queues
        )
        connection, consumer = world.connect()
        fields = {
            "consumerGroup": "readers", "topic": "Orders", "queueId": "0", "queueOffset": "1", "maxMsgNums": "32",
            "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*",
            "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        consumer.receive(encode_command(Command(RequestCode.PULL_MESSAGE, 9, fields=fields)))
        await turns()
        assert not consumer.written
        await world.receive(plain(1, e="0") + plain(2, e="1") + plain(3, e="0"))
        await turns()
        (answer,) = answers(bytes(consumer.written))
        assert [record.properties["UNIQ_KEY"] for record in records_of(answer.body)] == ["1", "3"]
        connection.abort()
        world.closed_files()

    run(scenario)


STATES: dict[str, Callable[[World], object]] = {
    "held": lambda world: world.server.hold(held=True),
    "suspected to be late": lambda world: setattr(world.server.flow, "suspicious_at", 0.0),
    "with a busy disk": lambda world: setattr(world.server.flushing, "busy_at", 0.0),
    "with a connection beyond the limits": lambda world: setattr(world.connection, "session", None),
    "with requests for another function": lambda world: world.connection.pass_requests_to(lambda *_: None),
    "with requests that have waited": lambda world: setattr(world.connection, "deferred_since", -1e9),
    "without intake": lambda world: world.connection.stop_reading(),
}


@pytest.mark.parametrize("state", STATES)
def test_servers_in_another_state_leave_sends_to_their_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    counting = counted(monkeypatch)

    async def scenario() -> None:
        world = lane_of(tmp_path)
        await world.receive(plain(1))
        assert counting.encoded == 1
        world.server.flow.patience_s = 10.0
        STATES[state](world)
        world.producer.receive(plain(2))
        assert counting.encoded == 1
        world.closed_files()

    run(scenario)


def test_sends_of_a_broker_that_flushes_are_answered_after_the_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = counted(monkeypatch)

    async def scenario() -> None:
        world = lane_of(tmp_path, flush_disk_type="SYNC_FLUSH")
        await world.server.flushing.flush()
        world.producer.receive(plain(1) + plain(2) + plain(3, i="WAIT\x01false") + plain(4))
        assert counting.encoded == 2
        assert [each.opaque for each in answers(bytes(world.producer.written))] == [3]
        assert world.server.flushing.waiting == 3
        end, flushing = world.broker.store.end_offset, world.server.flushing
        async with asyncio.timeout(10):
            while flushing.waiting:  # noqa: ASYNC110 - the time limit bounds it
                await asyncio.sleep(0.001)
        assert world.broker.store.flushed_offset == end
        assert [each.opaque for each in answers(bytes(world.producer.written))] == [3, 1, 2, 4]
        flushing.capacity = MAX_REQUESTS - 1
        world.producer.receive(plain(5))
        assert counting.encoded == 2
        world.closed_files()

    run(scenario)
