"""A recovery with the compiled scanner has the result of one that reads records one at a time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from delaymq import kernels
from delaymq.broker.broker import Broker
from delaymq.broker.opening import open_broker
from delaymq.message import names
from delaymq.message.errors import NewerFormError
from delaymq.message.record import MESSAGE_MAGIC
from delaymq.protocol.codes import RequestCode
from delaymq.store.errors import StoreError
from delaymq.store.model import NewRecord
from delaymq.store.recovery import plain_scan
from delaymq_testing.broker.batches import random_batch
from delaymq_testing.broker.followers import Follower
from delaymq_testing.broker.harness import FakeSession, Harness, made, send_fields
from delaymq_testing.compiled_kernels import NEEDS_KERNELS
from delaymq_testing.repetitions import FUZZ_INPUTS, SEED
from delaymq_testing.store.log_scanner import LogScanner
from delaymq_testing.store.raw_logs import log_of
from delaymq_testing.store.small_stores import flush

TOPICS = (names.SCHEDULE_TOPIC, names.TIMER_TOPIC, names.HALF_TOPIC, "Bills")
NAMES = (names.MARK, names.DELAY, names.DELAY_SCHEDULE_ID, "color")


def fill(harness: Harness, chance: Random) -> None:
    """Store messages of all kinds, and deliver some delayed ones."""
    wide = FakeSession(address="::1")
    for _ in range(120):
        kind = chance.randrange(12)
        topic, queue_id = chance.choice(["Orders", "Orders", "Bills"]), chance.randrange(3)
        fields = send_fields(topic) | {"e": queue_id}
        if kind < 7:
            code = RequestCode.SEND_BATCH_MESSAGE
            made(harness.broker, int(code), harness.ask(code, fields, random_batch(chance)))
        elif kind < 10:
            properties = chance.choice([
                {"DELAY": "1"}, {"DELAY": "9"}, {"TIMER_DELAY_MS": "2000"}, {"TIMER_DELAY_MS": "600000"},
                {"TRAN_MSG": "true", "PGROUP": "g"},
                {"text": "TIMER_OUT_MS"}, {"KEYS": "a b"}, {"TAGS": "größe 😀"},
            ])  # fmt: skip
            unique = f"{chance.getrandbits(128):032X}"
            harness.send(topic, chance.randbytes(300), {"UNIQ_KEY": unique, **properties}, e=queue_id)
            if "KEYS" in properties:  # RocketMQ's broker also stores a NUL
                stored = properties | {"x": "zero\0", "CLUSTER": "c"}
                harness.broker.store.append(
                    NewRecord(topic, queue_id, b"", stored, 0, 0, harness.clock(), wide.remote_host, wide.remote_host)
                )
        else:
            harness.ask(RequestCode.SEND_MESSAGE_V2, fields, b"wide", session=wide)
        harness.clock.advance(chance.choice([0, 1, 700]))
        harness.broker.delivery.hand_over(harness.clock(), 100)


def damage(path: Path, chance: Random) -> None:
    """Flip a few bits of the log's records."""
    for segment in sorted((path / "commitlog").iterdir()):
        content = segment.read_bytes()
        end = len(content.rstrip(b"\0"))
        with segment.open("r+b") as file:
            for _ in range(chance.randrange(4) if end else 0):
                at = chance.randrange(end)
                file.seek(at)
                file.write(bytes([content[at] ^ 1 << chance.randrange(8)]))


def remove(*folders: str) -> Callable[[Path, Random], None]:
    def apply(path: Path, chance: Random) -> None:
        for folder in folders:
            shutil.rmtree(path / folder)

    return apply


def kill(path: Path, chance: Random) -> None:
    (path / "abort").touch()
    (path / "delaymq/snapshot.json").unlink()


def kill_and_damage(path: Path, chance: Random) -> None:
    kill(path, chance)
    damage(path, chance)


STATES: dict[str, Callable[[Path, Random], None]] = {
    "without queues": remove("consumequeue"),
    "without queues and index": remove("consumequeue", "index"),
    "killed": kill,
    "killed and damaged": kill_and_damage,
}


def counted_advances(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the number of records of each scan."""
    advanced: list[int] = []
    advance = plain_scan.PlainScan.advance

    def counted(*given: Any) -> int:
        advanced.append(advance(*given))
        return advanced[-1]

    monkeypatch.setattr(plain_scan.PlainScan, "advance", counted)
    return advanced


def recovered(harness: Harness) -> dict[str, Any]:
    """Open a broker; everything that the recovery found."""
    harness.broker = broker = _open(harness)
    report = broker.store.recovery
    found = {
        "replayed": (report.replayed_records, report.replayed_bytes, report.snapshot_used),
        "corrections": [str(each) for each in report.corrections],
        "end": (broker.store.end_offset, broker.store.last_offset, broker.store.last_store_timestamp_ms),
        "refused": broker.store._dispatcher.refused_entries,
        "queues": sorted((*key, *broker.store.stored_bounds(*key)) for key in broker.store.queues()),
        "schedule": broker.delivery.state(),
        "half messages": broker.transactions.ledger.state(),
    }
    broker.close()
    root = Path(harness.config.store_path)
    folders = ("commitlog", "consumequeue", "index")
    paths = [path for folder in folders for path in (root / folder).rglob("*") if path.is_file()]
    found["files"] = {str(path.relative_to(root)): path.read_bytes() for path in paths}
    return found


def _open(harness: Harness) -> Broker:
    return open_broker(harness.config, harness.clock)


@NEEDS_KERNELS
@pytest.mark.parametrize("state", STATES)
def test_recovery_with_kernels_has_the_result_of_a_recovery_without(
    open_harness: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str
) -> None:
    chance = Random(f"{SEED} {state}")
    harness = open_harness(mapped_file_size_commit_log=256 * 1024, max_index_num=2_000)
    fill(harness, chance)
    harness.broker.close()
    root = Path(harness.config.store_path)
    STATES[state](root, chance)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    advanced = counted_advances(monkeypatch)
    with_kernels = recovered(harness)
    assert any(advanced)
    shutil.rmtree(root)
    os.rename(copy, root)
    monkeypatch.setattr(plain_scan, "_log_scanner", None)
    without = recovered(harness)
    for part in without:
        assert with_kernels[part] == without[part], part


def received(folder: Path, harness: Harness, log: bytes, chance: Random) -> dict[str, Any]:
    """Let a replica receive a log in random pieces, and return everything that it derived."""
    follower = Follower(folder, harness.clock, max_index_num=2_000, mapped_file_size_commit_log=256 * 1024)
    broker = follower.broker
    arrived: list[tuple[object, ...]] = []
    arrivals = broker._arrivals
    arrivals.on_arrival = lambda *place: arrived.append(place)
    arrivals.property_interest = {("Bills", 0): 1}
    follower.receive(log, len(log), chance)
    arrivals.announce(len(log))
    flush(broker.store)
    assert broker.following is not None
    broker.following.decide()
    root = follower.path / "store"
    paths = [path for part in ("commitlog", "consumequeue", "index") for path in (root / part).rglob("*")]
    found = {
        "end": (broker.store.end_offset, broker.store.last_offset, broker.store.last_store_timestamp_ms),
        "refused": broker.store._dispatcher.refused_entries,
        "queues": sorted((*key, *broker.store.stored_bounds(*key)) for key in broker.store.queues()),
        "schedule": broker.delivery.state(),
        "half messages": broker.transactions.ledger.state(),
        "arrivals": sorted(map(str, arrived)),
    }
    broker.close()
    return found | {"files": {str(path.relative_to(root)): path.read_bytes() for path in paths if path.is_file()}}


@NEEDS_KERNELS
@pytest.mark.parametrize("run", range(3))
def test_replica_with_kernels_derives_what_one_without_derives(
    open_harness: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: int
) -> None:
    chance = Random(f"{SEED} {run}")
    harness = open_harness(mapped_file_size_commit_log=256 * 1024)
    fill(harness, chance)
    log, seed = log_of(harness.broker.store), chance.random()
    plain = counted_advances(monkeypatch)
    with_kernels = received(tmp_path, harness, log, Random(seed))
    assert any(plain)
    monkeypatch.setattr(plain_scan, "_log_scanner", None)
    count = len(plain)
    without = received(tmp_path, harness, log, Random(seed))
    assert len(plain) == count
    for part in without:
        assert with_kernels[part] == without[part], part


@NEEDS_KERNELS
def test_replica_with_kernels_refuses_what_one_without_refuses(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chance = Random(SEED)
    fill(harness, chance)
    log = log_of(harness.broker.store)
    followers = []
    for compiled in (plain_scan._log_scanner, None):
        monkeypatch.setattr(plain_scan, "_log_scanner", compiled)
        followers.append(Follower(tmp_path, harness.clock))
        store = followers[-1].broker.store
        store.append_raw(0, log[:3_000])
        store.forget_received()
    start, refused = store.end_offset, 0
    for _ in range(300):
        data = bytearray(log[start : start + chance.choice([400, 4_000, 20_000])])
        for _ in range(chance.choice([1, 1, 2])):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        outcomes = []
        for follower in followers:
            try:
                follower.broker.store._receiver._verify(memoryview(data), start)
                outcomes.append("")
            except (StoreError, NewerFormError) as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
        refused += bool(outcomes[0])
    assert 10 < refused < 300


def pieces(harness: Harness, chance: Random) -> bytes:
    """The first segment of a log."""
    fill(harness, chance)
    harness.broker.close()
    segments = sorted(Path(harness.config.store_path, "commitlog").iterdir())
    return segments[0].read_bytes()


@NEEDS_KERNELS
def test_compiled_scanner_returns_what_its_twin_returns_for_hostile_pieces(harness: Harness) -> None:
    chance = Random(SEED)
    log = pieces(harness, chance)
    starts = []
    at = log.find(MESSAGE_MAGIC.to_bytes(4, "big"))
    while at >= 0:
        starts.append(at - 4)
        at = log.find(MESSAGE_MAGIC.to_bytes(4, "big"), at + 1)
    records = 0
    for number in range(FUZZ_INPUTS // 20):
        start = chance.choice(starts)
        piece = bytearray(log[start : start + chance.choice([100, 1_000, 8_000])])
        for _ in range(chance.choice([0, 1, 2])):
            # Most fields are at the start of a record.
            piece[chance.randrange(min(len(piece), chance.choice([120, 8_000])))] = chance.randrange(256)
        options = list(TOPICS)[: number % 5], list(NAMES)[: number % 3], [["TIMER_OUT_MS"], []][number % 2]
        given = bytes(piece), start, chance.choice([2**63 - 1, 1_700_000_010_000]), (1, 2, 3)
        results = [
            kind(*options, check_crc, wants_entries).scan(*given)
            for check_crc, wants_entries in [(number % 7 > 0, number % 4 > 0)]
            for kind in (kernels.compiled("LogScanner"), LogScanner)
        ]
        assert results[0] == results[1], given
        records += results[0][1]
    assert records > FUZZ_INPUTS // 100
