"""Half messages and ends of transactions encoded by the compiled kernel are those of its twin and of the processors."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from delaymq import kernels
from delaymq.broker.groups.consumer_group import Client
from delaymq.broker.opening import open_broker
from delaymq.message import names
from delaymq.message.properties import encode_properties
from delaymq.message.record import Record, encode_record
from delaymq.protocol.bodies import TopicConfig
from delaymq.protocol.codes import RequestCode
from delaymq.server.requests import plain_sends
from delaymq.store.reader import Damage, StoreReader
from delaymq_testing.broker.harness import START_MS, FakeSession, Harness
from delaymq_testing.broker.plain_sends.lanes import World, answers, counted, fixed, is_sound, pieces
from delaymq_testing.broker.plain_sends.send_encoder import SendEncoder
from delaymq_testing.broker.plain_sends.sends import (
    ANSWER,
    HOST,
    TOPICS,
    damaged,
    encoder_arguments,
    end_frame,
    half_fields_of,
    java_frame,
    random_body,
    random_frame,
)
from delaymq_testing.broker.plain_sends.signing import Keys, signed
from delaymq_testing.compiled_kernels import NEEDS_KERNELS
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from delaymq_testing.store.killed_copies import Killed, KilledError
from delaymq_testing.transport.memory_transport import run

pytestmark = NEEDS_KERNELS
RULES = (
    ("TIMER_DELAY_MS", "TRAN_MSG", "RETRY_TOPIC"), names.OWN_PREFIX, list(names.CLOSED_TO_CLIENTS),
    names.RETRY_PREFIX, plain_sends.NAMES, plain_sends.TRANSACTION_RULES, plain_sends.DELAY_RULES,
)  # fmt: skip
SHARE = 5
"""Frames of the streams are one in this number of FUZZ_INPUTS."""


class Queue(NamedTuple):
    max_number: int


class Halves(NamedTuple):
    """Part of the pending half messages."""

    offsets: array[int]
    physical_offsets: array[int]
    checks: array[int]


def half_record(chance: Random, number: int, place: int) -> bytes:
    """A record of the half topic; one in a few is unusual."""
    properties = {
        "UNIQ_KEY": f"U{number}", "KEYS": "a b", "TAGS": "paid", "TRAN_MSG": "true", "PGROUP": "producers",
        "CLUSTER": "c", "REAL_TOPIC": chance.choice(TOPICS), "REAL_QID": str(chance.randrange(4)),
    }  # fmt: skip
    queue_id, topic, sys_flag, host = 0, names.HALF_TOPIC, chance.choice([0, 0, 1]), HOST
    if chance.random() < 0.2:
        name = chance.choice([*properties, "DELAY", names.ACCOUNT, "TRANSACTION_CHECK_TIMES", "größe"])
        value = chance.choice(["", "0", "7", "-1", "007", "12345", "Unknown", "%RETRY%readers", names.HALF_TOPIC, "ü"])
        properties[name] = value
    if chance.random() < 0.05:
        queue_id, topic = chance.choice([(1, topic), (0, "Orders"), (0, names.OP_HALF_TOPIC)])
    if chance.random() < 0.05:
        sys_flag, host = chance.choice([(0x10, bytes(20)), (8, HOST), (12, HOST)])
    raw = encode_properties(properties)
    if chance.random() < 0.05:
        raw = chance.choice([b"", raw + b"\x02x\x01\xff", raw + b"\x02" * 64, b"\x02" + raw])
    data = encode_record(
        topic.encode(), queue_id, number, place, 5, sys_flag, START_MS, host, START_MS, HOST, 3, 0, random_body(chance),
        raw,
    )  # fmt: skip
    return damaged(data, chance, 2).ljust(len(data), b"\0") if chance.random() < 0.1 else data


def pending(chance: Random, base: int) -> tuple[bytes, list[Halves], list[tuple[int, int, str]]]:
    """An open segment, the pending half messages in it, and all half messages, with older ones elsewhere."""
    known = [(number, max(base - 5_000 + 90 * number, 0), "producers") for number in range(chance.choice([0, 3]))]
    log = b""
    for number in range(len(known), len(known) + chance.randrange(1, 12)):
        known.append((number, base + len(log), "producers"))
        log += half_record(chance, number, base + len(log))
    if chance.random() < 0.1:
        log = log[: -chance.randrange(1, 200)]
    chunks: list[Halves] = []
    for number, place, _ in known:
        if chance.random() < 0.1 or (chunks and place <= chunks[-1].physical_offsets[-1]):
            continue
        if not chunks or chance.random() < 0.3:
            chunks.append(Halves(array("q"), array("q"), array("H")))
        chunks[-1].offsets.append(number + (chance.random() < 0.02))
        chunks[-1].physical_offsets.append(place)
        chunks[-1].checks.append(int(chance.random() < 0.05))
    return log, chunks, known


def encoding(chance: Random) -> tuple[Any, ...]:
    """Arguments for an encoder, nearly all valid."""
    base = chance.choice([0, 1 << 20, 2**40])
    log, chunks, known = pending(chance, base)
    topics = {name: TopicConfig(name, 4, 4) for name in (*TOPICS, names.HALF_TOPIC, "%RETRY%readers")}
    queues = {(topic, queue_id): Queue(chance.choice([0, 1, 2**62])) for topic in topics for queue_id in range(4)}
    queues |= {(names.OP_HALF_TOPIC, 0): Queue(7), (names.HALF_TOPIC, 0): Queue(9), (names.SCHEDULE_TOPIC, 0): Queue(3)}
    if chance.random() < 0.1:
        del topics[chance.choice([*topics])]
    if chance.random() < 0.1:
        setattr(topics[chance.choice([*topics])], *chance.choice([("order", True), ("topic_filter_type", "MULTI_TAG")]))
    for _ in range(chance.choice([0, 0, 0, 3])):
        queues.pop(chance.choice([*queues]))
    unusual = chance.choice([0, 0.05, 0.4])
    keys = chance.choice([None, Keys("producers-key", "größe-secret")])
    permitted = set(topics) - {chance.choice([*topics, ""])}
    signer = None if keys is None else (keys.access_key, keys.secret_key.encode(), permitted)
    frames = []
    for _ in range(chance.randrange(1, 9)):
        opaque, kind = chance.randrange(2**31), chance.randrange(5)
        if kind == 0:
            frames.append(random_frame(chance, opaque, unusual, keys))
        elif kind == 1:
            body = random_body(chance)
            fields = signed(chance, half_fields_of(chance, unusual=unusual), body, keys, unusual)
            frames.append(java_frame(fields, opaque, body))
        else:
            frames.append(end_frame(chance, opaque, chance.choice(known), unusual, keys))
        if chance.random() < 0.05:
            frames[-1] = damaged(frames[-1], chance)
    end = base + chance.choice([len(log) + 9, len(log) + 9, len(log) + 9, len(log) // 2])
    given_log: Any = chance.choice([log, bytearray(log), memoryview(log)])
    return (
        b"".join(frames), topics, HOST, chance.choice([HOST] * 20 + [bytes(20)]), 4 << 20, "DefaultCluster", ANSWER,
        chance.choice([True, False]),
        (chance.choice([4 << 20, 4 << 20, 1_000, -1]), chunks, START_MS + 9, end),
        ((1_000,), {}, 4 << 20, 4 << 20, 10**9), signer, queues,
        base + max(len(log) + chance.choice([0, 0, 0, -100, 50]), 0), START_MS,
        chance.choice([4 << 20, 4 << 20, 900, 200]), chance.choice([1 << 30, 1 << 30, 3_000, 1_400]), given_log, base,
    )  # fmt: skip


def test_compiled_encoder_returns_what_its_twin_returns_for_transactions() -> None:
    chance = Random(SEED)
    kernel, twin = kernels.compiled("SendEncoder")(*RULES), SendEncoder(*RULES)
    frames = halves = commits = rollbacks = delayed = 0
    while frames < FUZZ_INPUTS:
        given = encoding(chance)
        frames += 5
        result = kernel.encode(*given)
        assert result == twin.encode(*given), given
        halves += sum(bool(group) for *_, group in result[7])
        commits += sum(outcome == 8 for _, _, outcome, group in result[7] if not group)
        rollbacks += sum(outcome == 12 for _, _, outcome, group in result[7] if not group)
        delayed += len(result[8])
    assert delayed > FUZZ_INPUTS // 10_000
    assert min(halves, commits, rollbacks) > FUZZ_INPUTS // 500


@pytest.mark.parametrize(
    ("chunks", "log"),
    [
        ([None], b""),
        ([object()], b""),
        ([Halves(array("q"), array("q"), array("H"))], b""),
        ([Halves(array("I", [1]), array("I", [100]), array("I", [0]))], b""),
        ([Halves(array("q"), array("q", [100]), array("H"))], b""),
        ([Halves(array("q", [1]), array("q", [100]), array("H", [0]))], None),
        ([Halves(array("q", [1]), array("q", [100]), array("H", [0]))], "text"),
        ([Halves(array("q", [1]), array("q", [100]), array("H", [0]))], array("q", [0] * 100)),
        ([Halves(array("q", [1]), array("q", [100]), array("H", [0]))], b"\x7f\xff\xff\xff" * 50),
        ([Halves(array("q", [1]), array("q", [100]), array("H", [0]))], b"\xff\xff\xff\xff" * 50),
    ],
)
def test_compiled_encoder_ends_nothing_with_unusable_tables(chunks: list[Any], log: Any) -> None:
    data = end_frame(Random(1), 1, (1, 100, "producers"), 0)
    queues = {(names.OP_HALF_TOPIC, 0): Queue(0)}
    given = encoder_arguments(data, {}, queues, halves=(100, chunks, 0, 300), log=log, end=300)
    assert kernels.compiled("SendEncoder")(*RULES).encode(*given) == (0, 0, b"", b"", [], [], b"", [], [], 0)


# Brokers


class Lives(NamedTuple):
    """Two servers with the same life, of which the first one stores plain requests with one call."""

    worlds: list[World]
    chance: Random
    halves: list[tuple[int, int, str]]
    read: list[int]

    async def receive(self, stream: bytes) -> None:
        for piece in pieces(stream, self.chance):
            is_open = [await world.receive(piece) for world in self.worlds]
            assert is_open[0] == is_open[1]
            if not is_open[0]:
                self.read[0] = 0
                break
        if self.worlds[0].broker.answers_wait:
            waiting = [world.confirm() for world in self.worlds]
            assert waiting[0] == waiting[1]
        written = bytes(self.worlds[0].producer.written)
        assert written == bytes(self.worlds[1].producer.written)
        for answer in answers(written[self.read[0] :]):
            if answer.code == 0 and "msgId" in answer.fields:
                place = int(answer.fields["msgId"][16:32], 16)
                self.halves.append((int(answer.fields["queueOffset"]), place, "producers"))
        self.read[0] = len(written)

    def frames(self, count: int, unusual: float) -> list[bytes]:
        chance, made = self.chance, []
        for _ in range(count):
            opaque, kind = chance.randrange(2**31), chance.randrange(8)
            if kind == 0:
                made.append(random_frame(chance, opaque, unusual))
            elif kind < 4 or not self.halves:
                made.append(java_frame(half_fields_of(chance, unusual=unusual), opaque, random_body(chance)))
            else:
                recent = self.halves[-chance.choice([5, 20, 200]) :]
                half = recent[chance.randrange(len(recent))]
                made.append(end_frame(chance, opaque, half, unusual))
        return made


def change(world: World, kind: int) -> None:
    """Change what decides about transactions, or let time pass."""
    broker = world.broker
    if kind == 0:
        rejects = not broker.config.reject_transaction_message
        broker.transactions.settings = broker.config = broker.config.__class__(
            **vars_of(broker.config) | {"reject_transaction_message": rejects}
        )
    elif kind == 1:
        broker.transactions.check(broker.now_ms(), 64)
    elif kind == 2:
        session = FakeSession()
        broker.clients.register_producer(Client(session, "client", "JAVA", 409, broker.now_ms()), "producers")
    elif kind == 3:
        broker.store.refuse_all("" if broker.store.refusal else "The disk is full: free space.")
    elif kind == 4:
        orders = broker.topics.table.get("Orders")
        if orders is not None:
            orders.topic_filter_type = "MULTI_TAG" if orders.topic_filter_type == "SINGLE_TAG" else "SINGLE_TAG"
    elif kind == 5:
        task = broker.store.flush_task()
        if task is not None:
            task.run()
            task.finish()
        broker.store.write_behind()


def vars_of(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


@pytest.mark.parametrize("segment_kib", [64, 1024])
@pytest.mark.parametrize(("slice_s", "waits"), [(0.0, False), (1_000.0, False), (1_000.0, True)])
def test_transactions_have_the_effects_of_single_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_s: float, waits: bool, segment_kib: int
) -> None:
    counting = counted(monkeypatch, slice_s)
    chance = Random(f"{SEED} {slice_s} {segment_kib}")
    options = {"mapped_file_size_commit_log": segment_kib * 1024, "transaction_check_max": 3, "max_index_num": 2_000}

    async def scenario() -> None:
        with fixed(monkeypatch) as now:
            worlds = [World(tmp_path / str(number), has_lane=number == 0, **options) for number in range(2)]
            for world in worlds:
                world.broker._arrivals.property_interest = {("Bills", 1), (names.HALF_TOPIC, 0), ("Orders", 2)}
                if waits:
                    world.wait_for_replicas()
            lives = Lives(worlds, chance, [], [0])
            for round_number in range(FUZZ_INPUTS // SHARE // 4 // 12):
                if round_number == 8:
                    now.advance(70_000)
                    for world in worlds:
                        change(world, 2)
                        change(world, 1)
                if round_number % 3 == 2:
                    kind = chance.choice([0, 1, 1, 1, 2, 3, 4, 5, 5])
                    for world in worlds:
                        change(world, kind)
                    if kind in (0, 3, 4):  # for one round only
                        await lives.receive(b"".join(frame for frame in lives.frames(4, 0) if is_sound(frame)))
                        for world in worlds:
                            change(world, kind)
                unusual = chance.choice([0, 0, 0.02, 0.3])
                await lives.receive(b"".join(frame for frame in lives.frames(12, unusual) if is_sound(frame)))
                now.advance(chance.choice([0, 0, 1, 70_000]))
            outcomes = [world.outcome() for world in worlds]
            for part in outcomes[0]:
                assert outcomes[0][part] == outcomes[1][part], part
            files = [world.closed_files() for world in worlds]
            assert files[0] == files[1]
            totals = worlds[0].broker.transactions.totals()
            assert counting.halves > 5
            assert counting.ended > (totals.committed + totals.rolled_back) / 60
            assert min(totals.committed, totals.rolled_back, totals.checked) > 0

    run(scenario)


class Lane:
    """A broker that has committed one half message and rolled back another, and its plain requests."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.broker: Any = harness.broker
        self.numbers = 0
        self.queue_offset = -1
        for outcome in (8, 12):
            harness.ask(RequestCode.SEND_MESSAGE_V2, self.fields())
            fields = {
                "producerGroup": "producers", "tranStateTableOffset": self.queue_offset, "msgId": "U",
                "commitLogOffset": self.broker.store.last_offset, "commitOrRollback": outcome,
            }  # fmt: skip
            assert harness.ask(RequestCode.END_TRANSACTION, fields).code == 0
        self.sends = plain_sends.PlainSends(self.broker)

    def fields(self, **properties: str) -> dict[str, str]:
        self.numbers += 1
        self.queue_offset += 1
        pairs = {"UNIQ_KEY": f"U{self.numbers}", "TRAN_MSG": "true", "PGROUP": "producers"} | properties
        text = "\x02".join(f"{name}\x01{value}" for name, value in pairs.items())
        return {
            "a": "producers", "b": "Orders", "c": "TBW102", "d": "4", "e": "0", "f": "4", "g": str(START_MS), "h": "0",
            "i": text, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip

    def store(self, data: bytes) -> int:
        return self.sends.store(self.harness.session, data)[0]

    def half(self, body: bytes = b"body", **properties: str) -> tuple[int, int, str]:
        """A half message that the kernel stores."""
        data = java_frame(self.fields(**properties), 1, body)
        assert self.store(data) == len(data)
        return self.queue_offset, self.broker.store.last_offset, "producers"

    def harness_half(self, body: bytes) -> tuple[int, int, str]:
        """A half message that the processor stores."""
        assert self.harness.ask(RequestCode.SEND_MESSAGE_V2, self.fields(), body).code == 0
        return self.queue_offset, self.broker.store.last_offset, "producers"

    def ends(self, half: tuple[int, int, str], outcome: str = "8") -> bool:
        fields = {
            "producerGroup": half[2], "tranStateTableOffset": str(half[0]), "commitLogOffset": str(half[1]),
            "commitOrRollback": outcome, "fromTransactionCheck": "false", "msgId": "U",
        }  # fmt: skip
        data = java_frame(fields, 1, b"", code=37, flag=2)
        size = self.store(data)
        assert size in (0, len(data))
        return bool(size)


@pytest.fixture
def lane(open_harness: Callable[..., Harness]) -> Lane:
    return Lane(open_harness(mapped_file_size_commit_log=64 * 1024))


def test_commit_and_rollback_settle_the_half_message_once(lane: Lane) -> None:
    transactions = lane.broker.transactions
    for outcome in ("8", "12"):
        half = lane.half()
        assert transactions.totals().pending == 1
        assert lane.ends(half, outcome)
        assert transactions.totals().pending == 0
        assert not lane.ends(half, "8")
        assert not lane.ends(half, "12")
    assert (transactions.totals().committed, transactions.totals().rolled_back) == (2, 2)


def test_two_ends_in_one_read_are_not_both_taken(lane: Lane) -> None:
    data = end_frame(Random(1), 1, lane.half(), 0)
    assert lane.store(data + data) == len(data)


def test_checked_half_message_is_left_to_the_processor(lane: Lane) -> None:
    half = lane.half()
    chunk, index = lane.broker.transactions.ledger.pending.find(half[1])
    chunk.checks[index] = 1
    assert not lane.ends(half)
    chunk.checks[index] = 0
    assert lane.ends(half)


def test_damaged_half_message_is_left_to_the_processor(lane: Lane) -> None:
    half, log = lane.half(body=b"content"), lane.broker.store._log
    at = log.mapping.find(b"content", half[1] - log.segment_base)
    log.mapping[at] ^= 1
    assert not lane.ends(half)
    log.mapping[at] ^= 1
    assert lane.ends(half)


def test_half_message_in_an_older_segment_is_left_to_the_processor(lane: Lane) -> None:
    half, log = lane.half(), lane.broker.store._log
    while log.segment_base == 0:
        lane.harness.ask(RequestCode.SEND_MESSAGE_V2, lane.fields(filler="x" * 9_000))
    assert not lane.ends(half)
    assert lane.ends(lane.half())


@pytest.mark.parametrize("body_bytes", [10, 40_000])
def test_half_messages_are_left_to_the_processor_if_they_may_be_rejected(lane: Lane, body_bytes: int) -> None:
    if body_bytes == 10:
        config = lane.broker.config
        lane.broker.transactions.settings = config.__class__(**vars_of(config) | {"reject_transaction_message": True})
    assert lane.store(java_frame(lane.fields(), 1, bytes(body_bytes))) == 0


def test_half_messages_beyond_the_limit_of_a_call_are_left_to_the_processor(
    open_harness: Callable[..., Harness],
) -> None:
    lane = Lane(open_harness(mapped_file_size_commit_log=4 << 20))
    halves = [lane.half(body=bytes(60_000)) for _ in range(6)]
    frames = [end_frame(Random(number), number, half, 0) for number, half in enumerate(halves)]
    assert lane.store(b"".join(frames)) == len(b"".join(frames[:4]))
    assert not lane.ends(lane.harness_half(bytes(300_000)))
    assert lane.broker.transactions.totals().pending == 3


def test_failure_after_the_append_leaves_the_transaction_settled(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("an observer fails")

    half = lane.half()
    monkeypatch.setattr(lane.broker.store._dispatcher, "_receiving_runs", [fail])
    with pytest.raises(RuntimeError):
        lane.ends(half)
    with pytest.raises(RuntimeError):
        lane.half()
    monkeypatch.undo()
    assert lane.broker.transactions.totals().pending == 1
    assert not lane.ends(half)


def test_killed_broker_finds_the_transactions_in_its_log(lane: Lane) -> None:
    halves = [lane.half() for _ in range(4)]
    assert lane.ends(halves[0])
    assert lane.ends(halves[2], "12")
    before = lane.broker.transactions.ledger.state()
    lane.broker.store.abandon()
    lane.harness.broker = open_broker(lane.harness.config, lane.harness.clock)
    assert lane.harness.broker.transactions.ledger.state() == before
    assert [run[:2] for run in before["pending"]] == [[3, 4], [5, 6]]


@pytest.mark.parametrize(("copies", "count", "records"), [(1, 100, 0), (2, 100, 0), (2, 460, 1), (2, 9_999, 2)])
def test_killed_commit_leaves_a_torn_tail_without_a_hole(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, copies: int, count: int, records: int
) -> None:
    half, store = lane.half(body=bytes(200)), lane.broker.store
    before = sum(isinstance(each, Record) for each in StoreReader(lane.broker.config.store_path).walk())
    mapping, encoder = store._log.mapping, plain_sends.encoder

    class Reading:
        """The encoder, which reads the mapping that is not killed."""

        def encode(self, *given: Any) -> Any:
            return encoder.encode(*given[:-2], mapping, given[-1])

    monkeypatch.setattr(plain_sends, "encoder", Reading())
    monkeypatch.setattr(store._log, "mapping", Killed(mapping, copies, count))
    with pytest.raises(KilledError):
        lane.ends(half)
    monkeypatch.undo()
    found = list(StoreReader(lane.broker.config.store_path).walk())
    assert not [each for each in found if isinstance(each, Damage)]
    assert sum(isinstance(each, Record) for each in found) == before + records
