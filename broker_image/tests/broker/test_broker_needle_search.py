"""The compiled search for a needle finds what its twin finds, whatever log and queue contain."""

from __future__ import annotations

from mmap import mmap
from random import Random

import pytest
from delaymq.broker.pull.needle_search import find_needle, find_needle_twin
from delaymq.broker.pull.property_reader import MAX_SEARCHED_BYTES, PropertyReader
from delaymq.message import flags
from delaymq.message.ids import pack_host
from delaymq.message.record import decode_record, encode_record
from delaymq.store.consume_queue import ENTRY
from delaymq_testing.compiled_kernels import NEEDS_KERNELS
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED

NEEDLE = b"color\x01red"
SEARCHED = [0, 21, MAX_SEARCHED_BYTES, MAX_SEARCHED_BYTES]


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
def test_kernel_finds_what_its_twin_finds() -> None:
    chance, found_ones, skipped = Random(SEED), 0, 0
    assert find_needle is not find_needle_twin
    for number in range(FUZZ_INPUTS):
        log, entries = log_and_entries(chance)
        base, window = int.from_bytes(log[:8], "big"), log[8:]
        if chance.randrange(4) == 0:
            cut = chance.randrange(len(window) + 1)
            window, base = chance.choice([(window[:cut], base), (window[cut:], base + cut)])
        place, most_skipped = chance.choice([0, 0, 1, 4]), chance.choice([0, 1, 3, 10_000])
        limits = (
            most_skipped,
            chance.choice(SEARCHED),
            chance.choice([0, 1, 2, 33]),
        )
        searched = mapped(window) if window and chance.randrange(2) else window
        found, following = find_needle(searched, base, entries, place, NEEDLE, *limits)
        assert (found, following) == find_needle_twin(searched, base, entries, place, NEEDLE, *limits)
        assert (found, following) == find_needle_twin(window, base, entries, place, NEEDLE, *limits), (SEED, number)
        found_ones += len(found)
        skipped += following - place - len(found)
    assert min(found_ones, skipped) > FUZZ_INPUTS // 40


class Log:
    """A log of 300 records in one queue, whose end may be a mapped segment."""

    def __init__(self, mapped_share: float) -> None:
        chance = Random(SEED)
        log, self.entries, self.wanted = b"", b"", list[int]()
        self.properties: list[bytes] = []
        for place in range(300):
            part = record(chance, len(log))
            self.entries += ENTRY.pack(len(log), len(part), 0)
            log += part
            self.properties.append(decode_record(part).raw_properties)
            if part.endswith(NEEDLE):
                self.wanted.append(place)
        self._log, base = log, int(len(log) * (1 - mapped_share))
        self._window = (mapped(log[base:]), base) if mapped_share else ()

    def reader(self, work: int) -> PropertyReader:
        return PropertyReader(self._read, work, *self._window)

    def _read(self, at: int, size: int) -> bytes:
        return self._log[at : at + size] if at + size <= len(self._log) else b""


SHARES = pytest.mark.parametrize("mapped_share", [0, 0.5, 1])


@SHARES
@pytest.mark.parametrize("most", [1, 33])
def test_every_record_with_the_needle_is_a_candidate_and_work_is_bounded(mapped_share: float, most: int) -> None:
    log = Log(mapped_share)
    reader = log.reader(1_000)
    found = []
    for place, (physical_offset, size, _) in reader.candidates(log.entries, NEEDLE, most):
        assert reader(physical_offset, size) == log.properties[place]
        found.append(place)
    assert set(log.wanted) <= set(found)
    assert len(found) < 300
    assert reader.work_left == 1_000 - (300 - len(found))
    reader = log.reader(10)
    found = [place for place, _ in reader.candidates(log.entries, NEEDLE, most)]
    assert len(found) == 290
    assert reader.work_left == 0


@SHARES
def test_pulls_with_little_work_reach_every_record(mapped_share: float) -> None:
    log, first, examined = Log(mapped_share), 0, []
    for _ in range(300):
        reader = log.reader(8)
        for place, (physical_offset, size, _) in reader.candidates(log.entries[first * ENTRY.size :], NEEDLE, 33):
            if reader.work_left <= 0:
                break
            assert reader(physical_offset, size) == log.properties[first + place]
            reader.work_left -= 5
            examined.append(first + place)
        else:
            break
        assert place
        first += place
    else:
        pytest.fail("the pulls did not reach the end of the queue")
    assert examined == sorted(set(examined))
    assert set(log.wanted) <= set(examined)
