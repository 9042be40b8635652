"""Records appended in runs, as copies or as a batch: the bytes of single appends, and what a failure leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from zlib import crc32

import pytest
from delaymq.message.flags import HOST_MASK, TRANSACTION_COMMIT, TRANSACTION_PREPARED
from delaymq.message.names import MARK, TIMER_TOPIC
from delaymq.message.properties import encode_properties
from delaymq.message.record import BODY_CRC_MASK
from delaymq.message.timed_marks import end_of, first_due
from delaymq.store.errors import RecordTooLargeError, StoreClosedError, StoreFullError
from delaymq.store.message_store import MessageStore
from delaymq.store.model import Dispatched, NewRecord
from delaymq.store.reader import StoreReader
from delaymq_testing.repetitions import SEED
from delaymq_testing.store.small_stores import HOST, Clock, Watcher, message

Open = Callable[..., MessageStore]


def plain(
    unique: str, topic: str = "Watched", queue_id: int = 0, body: bytes = b"body", sys_flag: int = 0, **more: str
) -> NewRecord:
    """A copy as the hand-over of delayed messages makes it."""
    properties = {"UNIQ_KEY": unique, **more}
    return message(unique, topic=topic, queue_id=queue_id, body=body, sys_flag=sys_flag)._replace(
        properties=properties,
        is_copy=True,
        property_bytes=encode_properties(properties),
        body_crc=crc32(body) & BODY_CRC_MASK,
    )


def random_copy(chance: Random, number: int) -> NewRecord:
    extra = chance.choice([{}, {"TAGS": "paid"}, {"KEYS": "a b  c"}, {"KEYS": f"k{number}", "text": "Grüße"}])
    copy = plain(
        f"{chance.getrandbits(80):020X}{number:012X}",
        chance.choice(["Watched", "Watched", "Orders"]),
        chance.randrange(3),
        chance.randbytes(chance.randrange(400)),
        chance.choice([0, 0, 1, TRANSACTION_COMMIT]),
        **extra,
    )
    if chance.random() < 0.1:
        properties = {"TAGS": "without a unique id"}
        copy = copy._replace(properties=properties, property_bytes=encode_properties(properties))
    if chance.random() < 0.5:
        copy = copy._replace(statement=end_of("delivered", 5_000, number, number, 4_000))
    return copy._replace(reconsume_times=chance.randrange(3), prepared_transaction_offset=chance.randrange(99))


def files_of(path: Path) -> dict[str, bytes]:
    folders = ("commitlog", "consumequeue", "index")
    return {
        str(file.relative_to(path)): file.read_bytes()
        for folder in folders
        for file in sorted((path / folder).rglob("*"))
        if file.is_file()
    }


def test_runs_leave_the_bytes_of_single_appends(tmp_path: Path, open_store: Open, clock: Clock) -> None:
    chance = Random(SEED)
    observers = Watcher(), Watcher()
    single = open_store(tmp_path / "single", observers=[observers[0]])
    runs = open_store(tmp_path / "runs", observers=[observers[1]])
    for number in range(150):
        copies = [random_copy(chance, 100 * number + index) for index in range(chance.randrange(1, 20))]
        one_by_one = [single.append(copy._replace(properties=dict(copy.properties))) for copy in copies]
        appended: list[Dispatched] = []
        runs.append_copies([copy._replace(properties=dict(copy.properties)) for copy in copies], appended)
        assert appended == one_by_one
        clock.ms += chance.randrange(2_000)
    assert observers[0].offsets == observers[1].offsets
    single.close()
    runs.close()
    assert files_of(tmp_path / "single") == files_of(tmp_path / "runs")
    assert len(files_of(tmp_path / "runs")) > 50
    assert len(list((tmp_path / "runs" / "index").iterdir())) > 2


BATCH_KINDS = {
    "IPv4": (HOST, 0),
    "IPv6": (bytes(15) + b"\1" + HOST[4:], 0),
    "IPv4, flagged as IPv6": (HOST, HOST_MASK),
    "commit": (HOST, TRANSACTION_COMMIT),
    "half messages": (HOST, TRANSACTION_PREPARED),
}


def random_batch(chance: Random, number: int, host: bytes, sys_flag: int) -> list[NewRecord]:
    batch = []
    for index in range(chance.randrange(1, 12)):
        record = message(
            f"{chance.getrandbits(80):020X}{100 * number + index:012X}",
            queue_id=chance.randrange(2),
            body=chance.randbytes(chance.randrange(400)),
            host=host,
            sys_flag=sys_flag,
            **chance.choice([{}, {"TAGS": "paid"}, {"KEYS": "a b  c"}, {"text": "Grüße"}]),
        )
        if chance.random() < 0.3:
            record = record._replace(topic=TIMER_TOPIC, queue_id=0, statement=first_due(7_000 + index))
        if chance.random() < 0.5:
            record = record._replace(property_bytes=encode_properties(record.properties))
        batch.append(record)
    return batch


@pytest.mark.parametrize("kind", BATCH_KINDS)
def test_batches_leave_the_bytes_of_single_appends(tmp_path: Path, open_store: Open, clock: Clock, kind: str) -> None:
    chance = Random(SEED)
    observers = Watcher(), Watcher()
    single = open_store(tmp_path / "single", observers=[observers[0]])
    batches = open_store(tmp_path / "batches", observers=[observers[1]])
    single.raise_format_version(2)
    batches.raise_format_version(2)
    for number in range(100):
        batch = random_batch(chance, number, *BATCH_KINDS[kind])
        single.make_room(single.check_batch(batch))
        one_by_one = [single.append(record._replace(properties=dict(record.properties))) for record in batch]
        assert batches.append_batch(batch) == one_by_one
        clock.ms += chance.randrange(2_000)
    assert observers[0].offsets == observers[1].offsets
    single.close()
    batches.close()
    assert files_of(tmp_path / "single") == files_of(tmp_path / "batches")


def test_statement_names_the_place_behind_a_full_segment(open_store: Open) -> None:
    store = open_store()
    appended: list[Dispatched] = []
    copies = [plain(f"u{n}", body=bytes(900))._replace(statement=end_of("delivered", 1, n, n, 1)) for n in range(40)]
    store.append_copies(copies, appended)
    assert appended[-1].physical_offset > 2 * 16_384
    for record in appended:
        stored = store.record_at(record.physical_offset)
        assert stored is not None
        assert stored.properties == record.properties
        assert record.properties[MARK].startswith(f"2:{record.physical_offset:020d}:delivered:")


def test_copy_that_fits_no_segment_is_named_and_the_others_are_stored(open_store: Open) -> None:
    store = open_store(observers=[watcher := Watcher()])
    copies = [plain("a"), plain("b", body=bytes(20_000)), plain("c")]
    appended: list[Dispatched] = []
    with pytest.raises(RecordTooLargeError):
        store.append_copies(copies, appended)
    assert [record.properties["UNIQ_KEY"] for record in appended] == ["a"]
    rest: list[Dispatched] = []
    store.append_copies(copies[2:], rest)
    assert watcher.offsets == [record.physical_offset for record in appended + rest]
    assert store.queue_bounds("Watched", 0) == (0, 2)
    assert store.query_index("Watched", "a", 10, 0, 1 << 62) == [0]
    assert store.query_index("Watched", "b", 10, 0, 1 << 62) == []


def test_run_ends_where_the_disk_is_full(open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(observers=[watcher := Watcher()])

    def full(size: int) -> int:
        raise StoreFullError("no space")

    store.append_copies([plain("first")], [])
    appended: list[Dispatched] = []
    copies = [plain(f"u{n}", body=bytes(900)) for n in range(40)]
    with monkeypatch.context() as patched:
        patched.setattr(store._log, "roll", full)
        with pytest.raises(StoreFullError):
            store.append_copies(copies, appended)
    assert 10 < len(appended) < 20
    assert len(watcher.offsets) == 1 + len(appended)
    store.append_copies(copies[len(appended) :], [])
    store.close()
    stored = [record.properties["UNIQ_KEY"] for record in StoreReader(tmp_path / "store").records()]
    assert stored == ["first", *(f"u{n}" for n in range(40))]


def test_failing_observer_hides_no_copy(open_store: Open) -> None:
    class Failing(Watcher):
        def dispatch(self, record: Dispatched) -> None:
            raise RuntimeError("an observer failed")

    store = open_store(observers=[Failing()])
    appended: list[Dispatched] = []
    with pytest.raises(RuntimeError):
        store.append_copies([plain("a"), plain("b")], appended)
    assert len(appended) == 2
    assert store.queue_bounds("Watched", 0) == (0, 2)


def test_closed_store_accepts_no_copies(open_store: Open) -> None:
    store = open_store()
    store.close()
    appended: list[Dispatched] = []
    with pytest.raises(StoreClosedError):
        store.append_copies([plain("a")], appended)
    assert appended == []
