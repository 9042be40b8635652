"""Batches encoded by one call, of the compiled kernel or of its twin, have the same effects as single messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from delaymq import kernels
from delaymq.broker.processors import batched
from delaymq.broker.sending.plain_batches import BatchEncoder
from delaymq.message import names
from delaymq.message.record import Record
from delaymq.protocol.batch import BatchMessage, encode_batch
from delaymq.protocol.codes import RequestCode
from delaymq.store.index import index_file
from delaymq.store.index.index_file import INDEXED_KEY, IndexFile
from delaymq.store.model import Dispatched
from delaymq.store.reader import Damage, StoreReader
from delaymq_testing.broker.batches import random_batch, random_properties
from delaymq_testing.broker.harness import Harness, made, send_fields
from delaymq_testing.compiled_kernels import NEEDS_KERNELS
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from delaymq_testing.store.killed_copies import Killed, KilledError

BOTH = pytest.mark.parametrize(
    "is_compiled", [pytest.param(False, id="twin"), pytest.param(True, id="compiled", marks=NEEDS_KERNELS)]
)
RULED = ("DELAY", "TIMER_DELAY_MS", "TRAN_MSG", "DELAY_CRON", "RETRY_TOPIC", "DELAY_SCHEDULE_ID")
HOST = b"\x0a\0\0\2\0\0\xc3\x50"


def twin() -> Any:
    return BatchEncoder(RULED, names.OWN_PREFIX)


def compiled() -> Any:
    return kernels.compiled("BatchEncoder")(RULED, names.OWN_PREFIX)


def chaining(is_compiled: bool) -> Any:
    return kernels.compiled("chain_entries") if is_compiled else index_file.chain_entries


class Recorder:
    """An observer that receives records, never runs."""

    name = "recorder"

    def __init__(self) -> None:
        self.records: list[Dispatched] = []

    def dispatch(self, record: Dispatched) -> None:
        self.records.append(record)

    def state(self) -> None:
        return None


class Recorded:
    """A broker, and everything that its batches cause."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.outcomes: list[object] = []
        self.arrivals: list[object] = []
        self.recorder = Recorder()
        broker = harness.broker
        dispatcher = broker.store._dispatcher
        dispatcher.observed_by([*dispatcher.observers, self.recorder])
        broker.on_arrival = lambda *arrival: self.arrivals.append(arrival)
        broker._arrivals.property_interest = {("Orders", 1)}

    def send(self, fields: dict[str, Any], body: bytes) -> None:
        code = RequestCode.SEND_BATCH_MESSAGE
        self.outcomes.append(made(self.harness.broker, int(code), self.harness.ask(code, fields, body)))
        self.harness.broker.announce_arrivals()

    def counts(self) -> dict[str, object]:
        stats = self.harness.broker.stats
        by_topic = {topic: (each.messages, each.bytes, each.times) for topic, each in stats.by_key.puts.items()}
        return {
            "messages": (stats.put_messages, stats.put_bytes, stats.put_failed, stats.last_send_ms),
            "by topic": by_topic,
            "elsewhere": stats.stored_elsewhere,
        }

    def files(self) -> dict[str, bytes]:
        root = Path(self.harness.config.store_path)
        folders = ("commitlog", "consumequeue", "index")
        paths = [path for folder in folders for path in (root / folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(root)): path.read_bytes() for path in paths}


class Counting:
    """An encoder that counts the batches that it encodes."""

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder
        self.encoded = self.refused = 0

    def encode(self, *given: Any) -> Any:
        encoded = self._encoder.encode(*given)
        self.encoded += encoded is not None
        self.refused += encoded is None
        return encoded


@BOTH
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_batches_leave_responses_files_and_statistics_of_single_messages(
    open_harness: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch, is_compiled: bool, flush: str
) -> None:
    chance = Random(f"{SEED} {flush}")
    counting = Counting(compiled() if is_compiled else twin())
    monkeypatch.setattr(batched, "encoder", counting)
    monkeypatch.setattr(index_file, "_chain_entries", chaining(is_compiled))
    at_once, single = (
        Recorded(open_harness(flush_disk_type=flush, mapped_file_size_commit_log=128 * 1024, max_index_num=300))
        for _ in range(2)
    )
    monkeypatch.setattr(single.harness.broker.store, "append_encoded", lambda *_: None)
    for _ in range(250):
        shared = random_properties(chance).decode(errors="replace") if chance.random() < 0.3 else "WAIT\x01true"
        fields = send_fields(chance.choice(["Orders", "Orders", "Bills"])) | {
            "e": chance.randrange(3),
            "f": chance.choice([0, 0, 0, 1, 0x10]),
            "i": shared,
            "j": chance.choice([0, 7]),
        }
        body, wait_ms = random_batch(chance), chance.choice([0, 0, 1, 1_500])
        for recorded in (at_once, single):
            recorded.send(fields, body)
            recorded.harness.clock.advance(wait_ms)
            if flush == "SYNC_FLUSH":
                recorded.harness.flush()
        assert at_once.outcomes[-1] == single.outcomes[-1]
    assert at_once.recorder.records == single.recorder.records
    assert at_once.arrivals == single.arrivals
    assert at_once.counts() == single.counts()
    for recorded in (at_once, single):
        recorded.harness.broker.close()
    assert at_once.files() == single.files()
    # Log segments and index files were exchanged, and both ways were used.
    assert sum(name.startswith("commitlog/") for name in at_once.files()) > 1
    assert sum(name.startswith("index/") for name in at_once.files()) > 1
    assert counting.encoded > 30
    assert counting.refused > 10


@BOTH
@pytest.mark.parametrize(("copies", "count", "records"), [(1, 100, 0), (2, 100, 0), (2, 2_000, 2), (2, 9_999, 5)])
def test_killed_copy_of_a_batch_leaves_a_torn_tail_without_a_hole(
    open_harness: Callable[..., Harness],
    monkeypatch: pytest.MonkeyPatch,
    is_compiled: bool,
    copies: int,
    count: int,
    records: int,
) -> None:
    monkeypatch.setattr(batched, "encoder", compiled() if is_compiled else twin())
    harness = open_harness()
    body = encode_batch([BatchMessage(0, b"content" * 100, b"KEYS\x01k") for _ in range(5)])
    recorded = Recorded(harness)
    recorded.send(send_fields("Orders") | {"e": 1, "f": 0}, body)
    log = harness.broker.store._log
    monkeypatch.setattr(log, "mapping", Killed(log.mapping, copies, count))
    with pytest.raises(KilledError):
        recorded.send(send_fields("Orders") | {"e": 1, "f": 0}, body)
    monkeypatch.undo()
    found = list(StoreReader(harness.config.store_path).walk())
    assert not [each for each in found if isinstance(each, Damage)]
    assert sum(isinstance(each, Record) for each in found) == 5 + records


def arguments(chance: Random, body: bytes) -> tuple[Any, ...]:
    """Arguments for an encoder, nearly all valid."""
    raw = random_properties(chance).decode(errors="surrogateescape" if chance.random() < 0.1 else "replace")
    shared = dict(pair.partition("\x01")[::2] for pair in raw.split("\x02") if "\x01" in pair)
    topic = chance.choice(["Orders", "größe", "t" * 127, "t" * 128])
    host = chance.choice([HOST] * 20 + [bytes(20), b""])
    return (
        body, chance.choice([1, 128, 128]), {name: value for name, value in shared.items() if name and value}, topic,
        chance.choice([0, 2**31 - 1]), chance.choice([0, 2**62]), chance.choice([0, 2**40 + 17]),
        chance.choice([0, 0, 1, 2, 4, 8, 0x10, 0x20]), chance.choice([0, -1, 2**63 - 1]), host,
        chance.choice([0, 1_700_000_000_000]), HOST, chance.choice([0, -1]), chance.choice([4 << 20, 300]),
        chance.choice([1 << 30, 2_000]), "7F00000100002A9F",
    )  # fmt: skip


@NEEDS_KERNELS
def test_compiled_encoder_returns_what_its_twin_returns_for_hostile_batches() -> None:
    chance = Random(SEED)
    kernel, reference = compiled(), twin()
    encoded = 0
    for _ in range(FUZZ_INPUTS // 4):
        given = arguments(chance, random_batch(chance) if chance.random() < 0.5 else small_batch(chance))
        result = kernel.encode(*given)
        assert result == reference.encode(*given), given
        encoded += result is not None
    assert encoded > FUZZ_INPUTS // 100


def small_batch(chance: Random) -> bytes:
    """A batch of one message with a few bytes changed, or random bytes."""
    if chance.random() < 0.2:
        return chance.randbytes(chance.randrange(80))
    body = bytearray(encode_batch([BatchMessage(0, b"body", random_properties(chance)[:32_767])]))
    for _ in range(chance.choice([0, 1, 1, 2])):
        body[chance.randrange(min(len(body), 40))] = chance.randrange(256)
    return bytes(body)


@NEEDS_KERNELS
def test_compiled_chains_are_those_of_the_twin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chance = Random(SEED)
    files = [IndexFile(None, str(tmp_path / name), 97, 5_000) for name in ("compiled", "twin")]  # type: ignore[arg-type]
    for file in files:
        file.load_slots(from_file=False)
    stored_ms = chance.choice([1_700_000_000_000, 0])
    while files[0].count < 4_000:
        keys = b""
        for _ in range(chance.randrange(1, 60)):
            stored_ms += chance.choice([0, 0, 0, 1, 999, 5_000, -3_000])
            keys += INDEXED_KEY.pack(chance.randrange(2**31), chance.randrange(2**62), stored_ms)
        for file, is_compiled in zip(files, (True, False), strict=True):
            monkeypatch.setattr(index_file, "_chain_entries", chaining(is_compiled))
            file.put_packed(keys)
    assert files[0].header() == files[1].header()
    assert files[0].buffer == files[1].buffer
    assert files[0].copy_of_slots() == files[1].copy_of_slots()


@NEEDS_KERNELS
def test_compiled_chains_reject_slots_and_numbers_that_do_not_suffice() -> None:
    chain = kernels.compiled("chain_entries")
    key = INDEXED_KEY.pack(5, 7, 9)
    for slots, slot_count, number in (
        (bytearray(8), 3, 1),
        (bytearray(8), 0, 1),
        (bytearray(8), 2, 2**31 - 1),
        (b"12345678", 2, 1),
    ):
        before = bytes(slots)
        with pytest.raises(ValueError, match="slots"):
            chain(slots, slot_count, number, 0, key)
        assert bytes(slots) == before
