"""The compiled search for records without a needle counts what its twin counts, whatever log and queue contain."""

from __future__ import annotations

from mmap import mmap
from random import Random

import pytest
from delaymq.broker.pull.needle_search import count_without, count_without_twin
from delaymq.broker.pull.property_reader import MAX_SEARCHED_BYTES, PropertyReader
from delaymq.message import flags
from delaymq.message.ids import pack_host
from delaymq.message.record import encode_record
from delaymq.store.consume_queue import ENTRY
from delaymq_testing.compiled_kernels import NEEDS_KERNELS
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED

NEEDLE = b"color\x01red"


def record(chance: Random, offset: int) -> bytes:
    """Return a record whose properties contain the needle in one of three cases."""
    sys_flag = flags.BORN_HOST_IPV6 if chance.randrange(12) == 0 else 0
    born = pack_host("::1" if sys_flag else "10.0.0.1", 4000)
    color = chance.choice(["red", "blue", "re"])
    properties = f"{'x' * chance.choice([0, 5, 940, 1_100])}\x01y\x02color\x01{color}".encode()
    body = chance.choice([b"", b"body", NEEDLE, bytes(700)])
    return encode_record(
        b"Orders", 0, 0, offset, 0, sys_flag, 1, born, 2, pack_host("10.0.0.2", 1), 0, 0, body, properties, None
    )


def log_and_entries(chance: Random) -> tuple[bytes, bytes]:
    """Return a log, with some damage, and the entries of a queue, of which some are wrong."""
    base = offset = chance.choice([0, 1_000, 2**40])
    parts, entries = [], []
    for _ in range(chance.randrange(8)):
        part = bytearray(record(chance, offset))
        entries.append((offset, len(part), 0))
        if chance.randrange(5) == 0:
            at = chance.randrange(len(part)) if chance.randrange(2) else chance.randrange(90)
            part[at] = chance.choice([0, 0x7F, 0xFF, part[at] ^ 1 << chance.randrange(8)])
        gap = chance.choice([0, 0, 0, 50])
        parts.append(bytes(part) + bytes(gap))
        offset += len(parts[-1])
    if entries and chance.randrange(4) == 0:
        number = chance.randrange(len(entries))
        at, size, _ = entries[number]
        wrong = [(at + 1, size), (at, size - 1), (at, -1), (at, 2**31 - 1), (-(2**63), size), (2**63 - 1, size), (0, 0)]
        entries[number] = (*chance.choice(wrong), 0)
    packed = b"".join(ENTRY.pack(*entry) for entry in entries)
    return base.to_bytes(8, "big") + b"".join(parts), packed


def mapped(data: bytes) -> mmap:
    """Return a mapping with this content."""
    mapping = mmap(-1, len(data))
    mapping.write(data)
    return mapping


@NEEDS_KERNELS
def test_kernel_counts_as_its_twin_does() -> None:
    chance, counted = Random(SEED), 0
    assert count_without is not count_without_twin
    for number in range(FUZZ_INPUTS):
        log, entries = log_and_entries(chance)
        base, window = int.from_bytes(log[:8], "big"), log[8:]
        if chance.randrange(4) == 0:
            cut = chance.randrange(len(window) + 1)
            window, base = chance.choice([(window[:cut], base), (window[cut:], base + cut)])
        place, most = chance.randrange(4), chance.choice([0, 1, 3, 10_000])
        most_searched = chance.choice([0, 20, MAX_SEARCHED_BYTES])
        searched = mapped(window) if window and chance.randrange(2) else window
        found = count_without(searched, base, entries, place, NEEDLE, most, most_searched)
        assert found == count_without_twin(searched, base, entries, place, NEEDLE, most, most_searched)
        assert found == count_without_twin(window, base, entries, place, NEEDLE, most, most_searched), (SEED, number)
        counted += found
    assert counted > FUZZ_INPUTS // 20


@pytest.mark.parametrize("mapped_share", [0, 0.5, 1])
def test_every_record_with_the_needle_is_a_candidate_and_work_is_bounded(mapped_share: float) -> None:
    """The end of the log, or all of it, may be a mapped segment."""
    chance = Random(SEED)
    log, entries, expected = b"", b"", []
    for place in range(300):
        part = record(chance, len(log))
        entries += ENTRY.pack(len(log), len(part), 0)
        log += part
        if part.endswith(NEEDLE):
            expected.append(place)

    def read(at: int, size: int) -> bytes:
        return log[at : at + size] if at + size <= len(log) else b""

    base = int(len(log) * (1 - mapped_share))
    window = (mapped(log[base:]), base) if mapped_share else ()
    reader = PropertyReader(read, 1_000, *window)
    found = [place for place, _ in reader.candidates(entries, NEEDLE)]
    assert set(expected) <= set(found)
    assert len(found) < 300
    assert reader.work_left == 1_000 - (300 - len(found))
    reader = PropertyReader(read, 10, *window)
    found = [place for place, _ in reader.candidates(entries, NEEDLE)]
    assert len(found) == 290
    assert reader.work_left == 0
