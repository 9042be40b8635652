"""Copies encoded by the compiled kernel are those of its twin, and deliveries by it those without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from delaymq import kernels
from delaymq.broker.delivery import encoded_copies
from delaymq.message.marks import format_due
from delaymq.message.names import ACCOUNT, SCHEDULE_TOPIC, TIMER_TOPIC
from delaymq.message.properties import encode_properties
from delaymq.message.record import encode_record
from delaymq.message.timed_marks import first_due
from delaymq.schedule.timeline import Pending
from delaymq.store.errors import StoreFullError
from delaymq_testing.broker.copy_encoder import CopyEncoder
from delaymq_testing.broker.harness import Harness
from delaymq_testing.broker.transactions import Transacting
from delaymq_testing.compiled_kernels import NEEDS_KERNELS
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED

NOW_MS = 1_700_000_000_000
HOST = bytes([10, 0, 0, 1, 0, 0, 42, 159])
EXTRA: list[dict[str, str]] = [
    *([{}] * 12),
    {"TAGS": "paid", "KEYS": "a b  c"},
    {"KEYS": " ".join(map(str, range(200)))},
    {"TAGS": "größe 😀", "KEYS": "ключ"},
    {"text": "zero\0", ACCOUNT: "ann"},
    {ACCOUNT: "ann", "UNIQ_KEY": ""},
    {"__DMQ_MARK": "delivered:0:1:2"},
    {"REAL_QID": "7"},
    {"REAL_QID": "03"},
    {"REAL_QID": "-1"},
    {"REAL_QID": "１"},
    {"DELAY_EXPIRE_MS": "5000"},
    {"DELAY_CRON": "* * * * *"},
    {"DELAY_SCHEDULE_ID": "a"},
    {"DELAY_KEY": "order-1", "DELAY_GROUP": "g"},
    {"raw": "\udcff"},
    {f"p{number}": "x" for number in range(70)},
    {"long": "x" * 31_900},
]


def due_record(chance: Random, level: int, topic: str) -> tuple[bytes, Pending]:
    """Return a record of a due message, sometimes an unusual one, and what the index states of it."""
    place, offset = chance.randrange(1 << 40), chance.randrange(1 << 30)
    due_ms = NOW_MS - chance.randrange(3)
    properties = {
        "UNIQ_KEY": f"{chance.getrandbits(64):032X}",
        "REAL_TOPIC": topic,
        "REAL_QID": str(chance.randrange(4)),
    }
    properties |= chance.choice(EXTRA)
    if level:
        properties |= {"DELAY": str(level), "__DMQ_DUE": format_due(due_ms, level - 1, offset)}
    else:
        stated_ms = due_ms - chance.choice([0] * 15 + [1_000])  # it may have been moved
        properties |= {"TIMER_OUT_MS": str(stated_ms), "__DMQ_DUE": first_due(stated_ms).at(place)}
    data = encode_record(
        (SCHEDULE_TOPIC if level else TIMER_TOPIC).encode(), max(level - 1, 0), offset, place, chance.randrange(9),
        chance.choice([0] * 20 + [4, 8, 12, 1]), NOW_MS - 5_000, chance.choice([HOST] * 30 + [bytes(20)]),
        NOW_MS - 4_000, HOST, chance.randrange(3), 0, chance.randbytes(chance.randrange(300)),
        encode_properties({name: value for name, value in properties.items() if value}),
    )  # fmt: skip
    identity = chance.choice([place] * 9 + [place - 1])
    return data, Pending(due_ms, identity, place, len(data), 0, 0)


def damaged(data: bytes, chance: Random) -> bytes:
    """Return a record with a flipped bit, or another size."""
    if chance.random() < 0.3:
        return data[: chance.randrange(len(data))]
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


@NEEDS_KERNELS
@pytest.mark.parametrize("level", [0, 1, 18])
def test_compiled_encoder_returns_what_its_twin_returns(level: int) -> None:
    chance = Random(f"{SEED} {level}")
    copied = unusual = 0
    for _ in range(FUZZ_INPUTS // 40):
        topic = chance.choice(["orders", "%RETRY%a", "x" * 120])
        made = [due_record(chance, level, topic) for _ in range(chance.randrange(1, 8))]
        datas, pendings = [data for data, _ in made], [pending for _, pending in made]
        if chance.random() < 0.3:
            number = chance.randrange(len(datas))
            datas[number] = damaged(datas[number], chance)
        numbers = [chance.choice([*[chance.randrange(1 << 40)] * 9, -1]) for _ in range(chance.choice([4, 4, 4, 2, 0]))]
        place = chance.randrange(1 << 45), NOW_MS + 7, chance.choice([1 << 30, 1 << 30, 2_000])
        given = datas, pendings, topic, level, NOW_MS, numbers, *place
        expected = CopyEncoder().encode(*given)
        assert encoded_copies.encoder.encode(*given) == expected
        copied += expected[0]
        unusual += expected[0] < len(datas)
    assert copied
    assert unusual


def slots_of(counts: Any) -> dict[str, str]:
    return {name: str(getattr(counts, name)) for name in type(counts).__slots__}


class Recorded:
    """A broker with delayed messages, and what their deliveries cause."""

    def __init__(self, harness: Harness, chance: Random) -> None:
        self.harness = harness
        self.arrivals: list[object] = []
        harness.broker.on_arrival = lambda *arrival: self.arrivals.append(arrival)
        harness.broker._arrivals.property_interest = {("Bills", 1)}
        self._chance = chance

    def fill(self, messages: int) -> None:
        chance, harness = self._chance, self.harness
        for _ in range(messages):
            topic = chance.choice(["Orders", "Orders", "Orders", "Bills"])
            delay = chance.choice([
                {"DELAY": "1"}, {"DELAY": "2"}, {"TIMER_DELAY_MS": "2000"}, {"TIMER_DELAY_MS": "1500"},
                {"TIMER_DELAY_MS": "700", "DELAY_KEY": str(chance.randrange(40))},
                {"TIMER_DELAY_MS": "900", "DELAY_EXPIRE_MS": str(chance.choice([1, 100_000]))},
                {"DELAY_EVERY_MS": "1000", "DELAY_REPEAT": "2"},
            ] if chance.random() < 0.1 else [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}])  # fmt: skip
            unique = f"{chance.getrandbits(128):032X}"
            extra = chance.choice([{}, {"KEYS": "a b"}, {"TAGS": "größe"}, {"text": "😀"}])
            harness.send(topic, chance.randbytes(200), {"UNIQ_KEY": unique, **delay, **extra}, e=chance.randrange(3))
            harness.clock.advance(chance.choice([0, 0, 0, 1]))

    def deliver(self, rounds: int, budget: int) -> None:
        """Deliver what is due at some instants, the last of which is after most due times."""
        for number in range(rounds):
            self.harness.clock.advance(self._chance.choice([1, 10, 300]) if number < rounds - 1 else 1_500)
            while self.harness.broker.delivery.hand_over(self.harness.clock(), budget):
                pass
            self.harness.broker.announce_arrivals()

    def outcome(self) -> dict[str, object]:
        """Return all files of the log, the queues and the index, and the state and counts of deliveries."""
        broker = self.harness.broker
        delivery, hand_over = broker.delivery, broker.delivery._hand_over
        found: dict[str, object] = {
            "end": (broker.store.end_offset, broker.store.last_offset, broker.store._log.last_crc),
            "arrivals": sorted(map(str, self.arrivals)),
            "counters": str(delivery.counters),
            "lateness": {queue: slots_of(each) for queue, each in hand_over.lateness.items()},
            "queues": {number: queue.as_json() for number, queue in hand_over._queues.items()},
            "by topic": {topic: (each.messages, each.bytes) for topic, each in broker.stats.by_key.puts.items()},
        }
        root = Path(self.harness.config.store_path)
        folders = ("commitlog", "consumequeue", "index")
        paths = [path for folder in folders for path in (root / folder).rglob("*") if path.is_file()]
        files: dict[str, object] = {str(path.relative_to(root)): path.read_bytes() for path in paths}
        return found | files


def opened(
    open_harness: Callable[..., Harness],
    monkeypatch: pytest.MonkeyPatch,
    is_compiled: bool,
    seed: object,
    **changes: Any,
) -> Recorded:
    """Return a broker with or without the kernel, with random choices that depend on the seed only."""
    if not is_compiled:
        monkeypatch.setattr(encoded_copies, "encoder", None)
    changes = {"mapped_file_size_commit_log": 128 * 1024, "max_index_num": 300} | changes
    return Recorded(open_harness(**changes), Random(f"{SEED} {seed}"))


@NEEDS_KERNELS
@pytest.mark.parametrize("run", range(6))
@pytest.mark.parametrize("budget", [3, 100])
def test_deliveries_with_the_kernel_have_the_effects_of_those_without(
    open_harness: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch, run: int, budget: int
) -> None:
    counted: list[int] = []
    compiled = encoded_copies.encoder

    class Counting:
        def encode(self, *given: Any) -> Any:
            found = compiled.encode(*given)
            counted.append(found[0])
            return found

    monkeypatch.setattr(encoded_copies, "encoder", Counting())
    outcomes = []
    for is_compiled in (True, False):
        recorded = opened(open_harness, monkeypatch, is_compiled, f"{run} {budget}")
        for _ in range(3):
            recorded.fill(60)
            recorded.deliver(8, budget)
        outcomes.append(recorded.outcome())
    with_kernel, without = outcomes
    assert with_kernel.keys() == without.keys()
    for part in without:
        assert with_kernel[part] == without[part], part
    assert any(counted)


@NEEDS_KERNELS
def test_transactions_with_the_kernel_are_those_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = []
    for number, is_compiled in enumerate((True, False)):
        if not is_compiled:
            monkeypatch.setattr(encoded_copies, "encoder", None)
        harness = Transacting(tmp_path / str(number))
        harness.connect()
        for delay in ({"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}) * 5:
            harness.commit(harness.prepare(**delay))
            harness.send("Orders", b"", {"UNIQ_KEY": f"M{harness.numbers}", **delay})
        harness.clock.advance(2_000)
        while harness.broker.delivery.hand_over(harness.clock(), 100):
            pass
        states.append((harness.broker.transactions.ledger.state(), harness.committed_keys()))
        assert harness.broker.delivery.counters.delivered == {"Orders": 20}
        harness.broker.close()
    assert states[0] == states[1]


def with_due_messages(open_harness: Callable[..., Harness], count: int) -> Harness:
    harness = open_harness(mapped_file_size_commit_log=128 * 1024, max_index_num=300)
    for _ in range(count):
        harness.send("Orders", b"x", {"TIMER_DELAY_MS": "100"})
    harness.clock.advance(200)
    return harness


@NEEDS_KERNELS
def test_large_messages_are_copied_in_pieces(open_harness: Callable[..., Harness]) -> None:
    harness = open_harness(mapped_file_size_commit_log=16 << 20)
    for number in range(8):
        harness.send("Orders", bytes([number]) * 700_000, {"TIMER_DELAY_MS": "100"})
    harness.clock.advance(200)
    assert harness.broker.delivery.hand_over(harness.clock(), 100) == 8
    assert harness.broker.delivery.counters.delivered == {"Orders": 8}
    bodies = [record.body[0] for offset in range(8) for record in harness.pulled(offset=offset)[:1]]
    assert bodies == list(range(8))


@NEEDS_KERNELS
def test_failure_after_the_append_delivers_no_message_twice(
    open_harness: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = with_due_messages(open_harness, 20)

    def fail(*_: object) -> None:
        raise RuntimeError("an observer fails")

    with monkeypatch.context() as patched:
        patched.setattr(harness.broker.store._dispatcher, "receive_plain", fail)
        assert harness.broker.delivery.hand_over(harness.clock(), 100) == 20
    assert harness.broker.delivery.hand_over(harness.clock(), 100) == 0
    assert harness.broker.delivery.counters.delivered == {"Orders": 20}


@NEEDS_KERNELS
def test_full_disk_pauses_deliveries_with_the_kernel_too(
    open_harness: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = with_due_messages(open_harness, 20)
    store = harness.broker.store
    store._retention.disk = store._retention.disk._replace(writes_refused=True)
    with pytest.raises(StoreFullError):
        store.refuse()
    assert harness.broker.delivery.hand_over(harness.clock(), 100) == 0
    store._retention.disk = store._retention.disk._replace(writes_refused=False)
    harness.clock.advance(60_000)
    assert harness.broker.delivery.hand_over(harness.clock(), 100) == 20


def test_brokers_without_kernels_have_no_encoder() -> None:
    assert (encoded_copies.encoder is None) == (kernels.compiled("CopyEncoder") is None)
