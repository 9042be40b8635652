"""Records that the compiled kernel collects for a pull are those of its twin, and of pulls without it."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from delaymq import kernels
from delaymq.broker.filters import Filter, compile_expression
from delaymq.broker.pull import queue_reader
from delaymq.broker.pull.queue_reader import Pulled, read_queue
from delaymq.message.hashing import java_hash
from delaymq.store.consume_queue import BLANK_ENTRY, ENTRY
from delaymq_testing.broker.harness import Harness
from delaymq_testing.compiled_kernels import NEEDS_KERNELS
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from delaymq_testing.store.record_collector import collect_matching

pytestmark = NEEDS_KERNELS
TAGS = ("T0", "T1", "T2", "T3", "none")
EXPRESSIONS = ("*", "T0", "T1||T3", "none", "T0||T1||T2||T3")


def fill(harness: Harness, chance: Random, count: int) -> None:
    """Store messages of random sizes and tags in two queues of one topic, and in another topic."""
    for _ in range(count):
        properties = {"TAGS": tag} if (tag := chance.choice((*TAGS[:-1], ""))) else {}
        body = chance.randbytes(chance.choice([0, 1, 100, 100, 1_000, chance.randrange(8_000)]))
        harness.send(chance.choice(["Orders"] * 5 + ["Bills"]), body, properties, e=chance.choice([0, 0, 0, 1]))


def compiled(*given: Any) -> Any:
    return kernels.compiled("collect_matching")(*given)


class World:
    """A broker, and the number of pulls whose records the kernel collected or left."""

    def __init__(self, harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
        self.harness, self.monkeypatch = harness, monkeypatch
        self.collected = self.left = 0

    def pulls(self, wanted: Filter, limit: int, offset: int) -> list[Pulled]:
        """Pull from an offset with the kernel and without it."""
        found = []
        for kernel in (self._counting, None):
            self.monkeypatch.setattr(queue_reader, "collect_matching", kernel)
            found.append(read_queue(self.harness.broker, "Orders", 0, offset, limit, wanted))
        return found

    def _counting(self, *given: Any) -> Any:
        collected = compiled(*given)
        self.collected += collected is not None
        self.left += collected is None
        return collected

    def check(self, chance: Random, count: int) -> None:
        """Compare pulls of all filters from random offsets."""
        high = self.harness.broker.store.queue_bounds("Orders", 0)[1]
        for _ in range(count):
            wanted = compile_expression(None, chance.choice(EXPRESSIONS))
            quick, usual = self.pulls(wanted, chance.choice([1, 2, 32, 32, 1_000]), chance.randrange(high))
            assert quick == usual


@pytest.fixture
def opened(open_harness: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    return lambda **settings: World(open_harness(**settings), monkeypatch)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_transfer_bytes_on_message_in_memory": 3_000},
        {"max_transfer_bytes_on_message_in_memory": 0, "max_transfer_count_on_message_in_memory": 3},
        {"access_message_in_memory_max_ratio": 0, "max_transfer_count_on_message_in_disk": 2},
        {"mapped_file_size_commit_log": 64 * 1024},
    ],
)
def test_pulls_equal_those_without_the_kernel(opened: Callable[..., World], settings: dict[str, Any]) -> None:
    chance, world = Random(f"{SEED} {settings}"), opened(**settings)
    fill(world.harness, chance, 200)
    world.check(chance, 200)
    assert world.collected > 20
    assert world.left > 20 or "mapped_file_size_commit_log" not in settings


def test_pulls_of_a_damaged_log_equal_those_without_the_kernel(opened: Callable[..., World]) -> None:
    chance, world = Random(SEED), opened(mapped_file_size_commit_log=1 << 20)
    fill(world.harness, chance, 200)
    store: Any = world.harness.broker.store
    entries = store.read_entries("Orders", 0, 0, 1_000)
    for offset, size, _ in [*ENTRY.iter_unpack(entries)][chance.randrange(15) :: 15]:
        mapping, base = store.open_segment
        at = offset - base + chance.choice([0, 3, 4, 7, 20, 27, chance.randrange(size)])
        mapping[at] ^= 1 << chance.randrange(8)
    world.check(chance, 200)
    assert world.collected > 20
    assert world.left > 10


def test_pulls_of_unconfirmed_messages_equal_those_without_the_kernel(opened: Callable[..., World]) -> None:
    chance, world = Random(SEED), opened(flush_disk_type="SYNC_FLUSH")
    fill(world.harness, chance, 100)
    store: Any = world.harness.broker.store
    end = store.end_offset
    for flushed in (*(chance.randrange(end + 1) for _ in range(20)), end):
        store._log.flushed_offset = flushed
        world.check(chance, 10)
    assert world.collected > 3


def random_log(chance: Random) -> tuple[bytes, list[tuple[int, int, int]]]:
    """A segment with heads of records, and the entries of its queue."""
    log, entries = b"", []
    for number in range(chance.randrange(1, 60)):
        size = chance.choice([91, 91, 100, 500, chance.randrange(90, 2_000)])
        head = size.to_bytes(4, "big") + bytes.fromhex("DAA320A7") + bytes(12) + (number + 7).to_bytes(8, "big")
        entries.append((len(log), size, chance.choice([java_hash(tag) for tag in TAGS])))
        log += head + chance.randbytes(size - len(head))
        log += chance.randbytes(chance.choice([0, 0, 0, 200]))
    return log, entries


def test_kernel_returns_what_its_twin_returns_for_hostile_entries() -> None:
    chance, collected = Random(SEED), 0
    for _ in range(FUZZ_INPUTS // 10):
        log, rows = random_log(chance)
        base = chance.choice([0, 0, 2**40])
        rows = [(offset + base, size, code) for offset, size, code in rows]
        packed = bytearray(b"".join(ENTRY.pack(*row) for row in rows))
        if chance.random() < 0.3:
            packed[chance.randrange(len(packed))] ^= 1 << chance.randrange(8)
        if chance.random() < 0.1:
            at = chance.randrange(len(rows)) * ENTRY.size
            packed[at : at + ENTRY.size] = chance.choice(
                [BLANK_ENTRY, ENTRY.pack(-1, -1, -1), ENTRY.pack(2**62, 91, 0)]
            )
        codes = sorted(java_hash(tag) & 0xFFFFFFFF for tag in chance.sample(TAGS, chance.choice([0, 1, 1, 2, 4])))
        given = (
            bytes(packed), b"".join(code.to_bytes(4, "big") for code in codes), log, base,
            base + chance.choice([len(log)] * 5 + [len(log) - 100, len(log) + 100, -1, 0]),
            chance.choice([7] * 9 + [8]), chance.choice([0, 1, 5, 32, 1_000]), chance.choice([0, 1_000, 1 << 20]),
        )  # fmt: skip
        result = compiled(*given)
        assert result == collect_matching(*given)
        collected += result is not None
    assert collected > FUZZ_INPUTS // 100


def test_kernel_leaves_numbers_beyond_its_range() -> None:
    entry, low, high = ENTRY.pack(2**63 - 1, 2**31 - 1, 0), -(2**63), 2**63 - 1
    for base, end, number in ((low, high, 0), (high, low, 0), (0, 100, high), (low, low + 100, 0)):
        assert compiled(entry * 2, b"", bytes(100), base, end, number, 9, 9) is None
    assert compiled(b"", b"", bytes(9), 0, 9, high, 9, 9) == (0, 0, b"")
    assert compiled(entry, b"abc", memoryview(bytes(18))[::2], 0, 9, 0, 9, 9) is None


def test_mapping_can_be_closed_after_a_call() -> None:
    with mmap.mmap(-1, 4_096) as mapping:
        assert compiled(ENTRY.pack(0, 91, 0), b"", mapping, 0, 4_096, 0, 32, 1 << 20) is None
