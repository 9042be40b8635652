"""Deliveries on the real store: kills, full replays, and stores written by the real broker."""

from __future__ import annotations

import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from delaymq.broker.delivery import Delivery
from delaymq.broker.delivery.recovery import Replay
from delaymq.message.levels import DelayLevels
from delaymq.message.names import SCHEDULE_TOPIC
from delaymq.message.record import BLANK_MAGIC, SIZE_AND_MAGIC, Record, decode_record
from delaymq.store.message_store import MessageStore
from delaymq.store.model import NewRecord
from delaymq.store.options import StoreOptions
from delaymq_testing.broker.delivery_harness import HOST, START_MS, Settings

GOLDEN = Path(__file__).parent.parent / "golden"
OPTIONS = StoreOptions(
    commit_log_file_bytes=16_384,
    consume_queue_file_bytes=400,
    delete_when=tuple(range(24)),
    index_slots=200,
    index_entries=400,
    disk_max_used_ratio=0.99,
    disk_clean_ratio=0.99,
    disk_write_refused_ratio=1.0,
)


class Opened:
    """A delivery on a store in a folder."""

    def __init__(self, path: Path, levels: str = "1s 5s 10s") -> None:
        self.path = path
        self.levels = DelayLevels.parse(levels)
        self.now_ms = START_MS
        self.is_open = False
        self.start()

    def start(self) -> None:
        replay = Replay()
        self.store = MessageStore.open(
            self.path, OPTIONS, now_ms=lambda: self.now_ms, levels=self.levels, observers=[replay]
        )
        self.is_open = True
        self.delivery = Delivery(self.store, replay, Settings(), self.levels, lambda: self.now_ms)
        self.store.hand_on([self.delivery])

    def kill(self) -> None:
        self.store.abandon()
        self.is_open = False

    def stop(self) -> None:
        self.delivery.close()
        self.store.close()
        self.is_open = False

    def send(self, body: str, level: int) -> None:
        topic, queue_id, properties = self.delivery.ingress.prepare({"UNIQ_KEY": body}, "orders", 0, level)
        self.store.append(NewRecord(topic, queue_id, body.encode(), properties, 0, 0, self.now_ms, HOST, HOST))

    def flush(self) -> None:
        if (task := self.store.flush_task()) is not None:
            task.run()
            assert task.finish() is None

    def snapshot(self) -> None:
        task = self.store.snapshot_task(force=True)
        assert task is not None
        task.run()
        assert task.finish() is None

    def save(self) -> None:
        self.now_ms += 10_000
        for _ in range(2):
            self.flush()
            if (task := self.delivery.save_task()) is not None:
                task.run()
                assert task.finish() is None

    def offsets(self) -> Path:
        return self.path / "config" / "delayOffset.json"

    def hand_over(self) -> int:
        count = 0
        while taken := self.delivery.hand_over(self.now_ms, 64):
            count += taken
        return count

    def records(self) -> Iterator[Record]:
        position = self.store.min_offset
        while position < self.store.end_offset:
            size, magic = SIZE_AND_MAGIC.unpack(self.store.read_bytes(position, 8))
            if magic != BLANK_MAGIC:
                yield decode_record(self.store.read_bytes(position, size))
            position += size

    def marked(self) -> list[str]:
        return [record.body.decode() for record in self.records() if "__DMQ_MARK" in record.properties]

    def pending(self) -> dict[int, int]:
        return {level: count for level, count in self.delivery.pending().items() if count}


@pytest.fixture
def open_at(tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    opened: list[Opened] = []

    def open_one(path: Path | None = None, levels: str = "1s 5s 10s") -> Opened:
        opened.append(Opened(path or tmp_path / "store", levels))
        return opened[-1]

    yield open_one
    for each in opened:
        if each.is_open:
            each.kill()


def test_kill_after_any_number_of_deliveries_repeats_none(open_at: Callable[..., Opened]) -> None:
    at = open_at()
    for number in range(300):
        at.send(f"m{number}", 1 + number % 2)
    at.now_ms += 5_000
    random = Random(1)
    handed_over = 0
    while handed_over < 300:
        handed_over += at.delivery.hand_over(at.now_ms, random.randrange(1, 40))
        assert len(at.marked()) == handed_over
        if random.random() < 0.4:
            at.snapshot()
        elif random.random() < 0.3:
            at.save()
        at.kill()
        at.start()
        assert sum(at.pending().values()) == 300 - handed_over
    assert Counter(at.marked()) == Counter(f"m{number}" for number in range(300))
    at.stop()
    assert at.offsets().read_bytes() == b'{"offsetTable":{"1":150,"2":150}}'
    at.start()
    assert at.delivery.corrected == []
    assert at.hand_over() == 0


@pytest.mark.parametrize("content", [None, b"", b"\0" * 40, b'{"offsetTable":{1:2}}', b'{"offsetTable":{"1":7000}}'])
@pytest.mark.parametrize("whole_log", [False, True])
def test_log_corrects_delay_offset_json(open_at: Callable[..., Opened], content: bytes | None, whole_log: bool) -> None:
    at = open_at()
    for number in range(50):
        at.send(f"m{number}", 1)
    at.now_ms += 1_000
    assert at.delivery.hand_over(at.now_ms, 20) == 20
    at.stop()
    assert at.offsets().read_bytes() == b'{"offsetTable":{"1":20}}'
    at.offsets().with_suffix(".json.bak").unlink(missing_ok=True)
    if content is None:
        at.offsets().unlink()
    else:
        at.offsets().write_bytes(content)
    if whole_log:
        (at.path / "delaymq" / "snapshot.json").unlink()
    at.start()
    reason = {None: "missing", b'{"offsetTable":{1:2}}': "stale", b'{"offsetTable":{"1":7000}}': "out-of-range"}
    (correction,) = at.delivery.corrected
    assert (correction.level, correction.position, correction.reason) == (1, 20, reason.get(content, "corrupt"))
    assert at.hand_over() == 30
    assert Counter(at.marked()) == Counter(f"m{number}" for number in range(50))


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_offset_file_ahead_of_the_log_settles_nothing_pending(
    open_at: Callable[..., Opened], with_snapshot: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A plain copy of a live store has the log of an earlier moment than its delayOffset.json."""
    at = open_at()
    for number in range(50):
        at.send(f"m{number}", 1)
    at.snapshot()
    copied = {path: path.read_bytes() for path in at.path.rglob("*") if path.is_file() and "config" not in path.parts}
    at.now_ms += 1_000
    assert at.hand_over() == 50
    at.save()
    assert at.offsets().read_bytes() == b'{"offsetTable":{"1":50}}'
    at.kill()
    for path in (at.path / "commitlog").iterdir():
        path.unlink()
    for path, data in copied.items():
        path.write_bytes(data)
    if not with_snapshot:
        (at.path / "delaymq" / "snapshot.json").unlink()
    at.start()
    (correction,) = at.delivery.corrected
    assert correction.as_json() == {"level": 1, "from": 50, "to": 0, "reason": "ahead"}
    assert at.delivery.counters.corrected == {"ahead": 1}
    assert "delayOffset.json marks 50 messages of delay level 1 as delivered, but the log contains no" in caplog.text
    assert at.hand_over() == 50
    assert Counter(at.marked()) == Counter(f"m{number}" for number in range(50))


def test_stored_offset_settles_entries_of_a_foreign_broker(open_at: Callable[..., Opened]) -> None:
    at = open_at()
    for number in range(6):
        if number % 2:
            at.send(f"m{number}", 1)
        else:
            properties = {"UNIQ_KEY": f"m{number}", "DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "0"}
            body = f"m{number}".encode()
            at.store.append(NewRecord(SCHEDULE_TOPIC, 0, body, properties, 0, 0, at.now_ms, HOST, HOST))
    at.kill()
    at.offsets().write_bytes(b'{"offsetTable":{"1":4}}')
    at.now_ms += 5_000
    at.start()
    assert at.pending() == {1: 4}
    assert at.hand_over() == 4
    assert Counter(at.marked()) == Counter(["m1", "m3", "m4", "m5"])


def test_entries_lost_to_damage_write_no_marks(open_at: Callable[..., Opened]) -> None:
    at = open_at()
    for number in range(20):
        at.send(f"m{number}", 1)
    places = [record.physical_offset for record in at.records()]
    at.kill()
    log = at.path / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    for place in places[5:9]:
        data[place + 4] ^= 1
    log.write_bytes(data)
    at.now_ms += 5_000
    at.start()
    at.hand_over()
    assert at.pending() == {}
    assert Counter(at.marked()) == Counter(f"m{number}" for number in range(20) if number not in range(5, 9))
    assert at.delivery.counters.gone == 4


def test_foreign_level_table_does_not_move_messages(open_at: Callable[..., Opened]) -> None:
    at = open_at(levels="10s 20s")
    at.send("a", 1)
    at.send("b", 2)
    at.kill()
    at.levels = DelayLevels.parse("1s")
    at.start()
    assert at.delivery.next_wakeup_ms() == START_MS + 10_000
    at.now_ms += 9_999
    assert at.hand_over() == 0
    at.now_ms += 1
    assert at.hand_over() == 1
    at.now_ms += 10_000
    assert at.hand_over() == 1
    assert at.marked() == ["a", "b"]


def test_snapshot_of_a_later_version_is_not_used(
    open_at: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = open_at()
    at.send("a", 1)
    at.send("b", 1)
    at.now_ms += 1_000
    assert at.delivery.hand_over(at.now_ms, 1) == 1
    with monkeypatch.context() as patched:
        patched.setattr(at.delivery, "state", lambda: {"version": 99})
        at.stop()
    at.start()
    assert not at.store.recovery.snapshot_used
    assert at.pending() == {1: 1}
    assert at.hand_over() == 1
    assert at.marked() == ["a", "b"]


def test_retention_keeps_pending_messages(open_at: Callable[..., Opened]) -> None:
    at = open_at()
    at.store.pins.hold("schedule", at.delivery.pin)
    at.send("kept", 3)
    for number in range(400):
        at.store.append(NewRecord("plain", 0, b"x" * 200, {"n": str(number)}, 0, 0, at.now_ms, HOST, HOST))
    at.flush()
    # Ages are those of the files, which a test cannot make old but by looking from later on.
    later_ms = time.time_ns() // 1_000_000 + 100 * 3_600_000
    assert at.store.clean(later_ms) == []
    at.now_ms += 10_000
    assert at.hand_over() == 1
    assert at.marked() == ["kept"]
    assert at.store.clean(later_ms) == []  # the copy is not on the disk yet
    at.flush()
    assert at.store.clean(later_ms) != []


@pytest.fixture(params=["clean", "killed"])
def golden_store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"golden-{request.param}"
    with tarfile.open(GOLDEN / f"store-{request.param}.tar.gz") as archive:
        archive.extractall(path, filter="data")
    return path


@pytest.mark.parametrize("offsets", ["as they are", "deleted", "of the beginning", "beyond the end"])
def test_exactly_the_six_pending_of_the_real_brokers_twelve_messages_are_delivered(
    golden_store: Path, open_at: Callable[..., Opened], offsets: str
) -> None:
    path = golden_store / "config" / "delayOffset.json"
    if offsets != "as they are":
        path.with_suffix(".json.bak").unlink(missing_ok=True)
        path.unlink()
    if offsets == "of the beginning":
        path.write_bytes(b'{\n\t"offsetTable":{1:0,3:0\n\t}\n}')
    if offsets == "beyond the end":
        path.write_bytes(b'{"offsetTable":{1:99,3:99,5:99,18:99}}')
    at = open_at(golden_store, "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")
    delayed = {}
    copied = set()
    for record in at.records():
        properties = record.properties
        if record.topic == SCHEDULE_TOPIC and properties["REAL_TOPIC"] == "GoldenDelay":
            delayed[properties["UNIQ_KEY"]] = at.store.read_entries(
                SCHEDULE_TOPIC, record.queue_id, record.queue_offset, 1
            )
        elif record.topic == "GoldenDelay":
            copied.add(properties["UNIQ_KEY"])
    assert (len(delayed), len(copied)) == (12, 6)
    assert at.pending() == {5: 2, 18: 4}
    due_times = {key: int.from_bytes(entry[12:], "big") for key, entry in delayed.items() if key not in copied}
    assert at.delivery.next_wakeup_ms() == min(due_times.values())
    at.now_ms = min(due_times.values()) - 1
    assert at.hand_over() == 0
    while (wakeup_ms := at.delivery.next_wakeup_ms()) is not None:
        at.now_ms = wakeup_ms
        assert at.hand_over() > 0
    assert at.now_ms == max(due_times.values())
    at.kill()
    at.start()
    assert at.pending() == {}
    marked = [record.properties["UNIQ_KEY"] for record in at.records() if "__DMQ_MARK" in record.properties]
    assert sorted(marked) == sorted(due_times)
    at.stop()
    assert at.offsets().read_bytes() == b'{"offsetTable":{"1":6,"3":3,"5":2,"18":4}}'
