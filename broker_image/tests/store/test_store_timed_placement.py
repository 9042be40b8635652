"""Damaged queue ids, queue offsets and topics of timed messages: the statements of form 2 say where records belong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest
from delaymq.message.levels import DelayLevels
from delaymq.message.marks import format_due
from delaymq.message.names import DUE, MARK, SCHEDULE_TOPIC
from delaymq.message.record import QUEUE_ID_AT, QUEUE_OFFSET_AT
from delaymq.message.timed_marks import TimedDue, TimedMark, TimedMarkKind
from delaymq.store.disk.aside import AsideFolder
from delaymq.store.message_store import MessageStore
from delaymq.store.recovery.placement import Placing
from delaymq_testing.store.plain_reader import Found, read_log, read_queues
from delaymq_testing.store.recording import QuietFiles
from delaymq_testing.store.small_stores import SMALL, Clock, message
from delaymq_testing.store.timed_records import TimedStore

DLQ, MARKS, TIMER = "%DLQ%SCHEDULE_CONSUMER", "rmq_sys_delaymq_marks", "rmq_sys_wheel_timer"


def reopened(path: Path) -> MessageStore:
    return MessageStore.open(path, SMALL, now_ms=Clock(), levels=DelayLevels.parse(), files=QuietFiles())


@pytest.fixture
def base(tmp_path: Path) -> dict[str, bytes]:
    """A killed store with several records of each kind: pending, delivered, dead letters, marks, and plain ones."""
    logging.disable(logging.CRITICAL)
    store = reopened(tmp_path / "made")
    timed = TimedStore(store)
    pending = [timed.schedule(f"u{number}", 1_700_000_100_000 + number, queue_id=number % 2) for number in range(12)]
    for number in range(3):
        timed.deliver(pending[number])
        store.append(message(f"plain{number}", queue_id=1))
        timed.drop(pending[3 + number])
        timed.mark(pending[6 + number], TimedMarkKind.CANCELLED)
        timed.mark(pending[11], TimedMarkKind.DELIVERED, 1_700_000_300_000 + number, run=number + 1)
    timed.schedule("last", 1_700_000_200_000)
    timed.deliver(pending[9])
    timed.drop(pending[10])
    store.abandon()
    return {
        str(path.relative_to(tmp_path / "made")): path.read_bytes()
        for path in (tmp_path / "made").rglob("*")
        if path.is_file() and path.name != "lock"
    }


@pytest.fixture(autouse=True)
def _loud() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)


class Case:
    """A copy of the store with one damaged record."""

    def __init__(self, folder: Path, base: dict[str, bytes]) -> None:
        self.folder = folder
        self.base = base
        self.lay()
        self.sound = read_log(folder)

    def lay(self) -> None:
        for name, data in self.base.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def flip(self, at: int, bit: int) -> None:
        path = self.folder / "commitlog" / f"{at // SMALL.commit_log_file_bytes * SMALL.commit_log_file_bytes:020d}"
        data = bytearray(path.read_bytes())
        data[at % SMALL.commit_log_file_bytes] ^= 1 << bit
        path.write_bytes(data)

    def misplaced(self, positions: list[tuple[int, int]]) -> list[str]:
        """Return the records that, after a start on the damaged store, are not where they were stored."""
        for path in self.folder.rglob("*"):
            if path.is_file():
                path.unlink()
        self.lay()
        for at, bit in positions:
            self.flip(at, bit)
        reopened(self.folder).close()
        queues = read_queues(self.folder)
        return [
            f"{record.topic}/{record.queue_id} {record.number} after {positions}"
            for record in self.sound
            if record.number not in (queue := queues.get((record.topic, record.queue_id))).places  # type: ignore[union-attr]
            or queue.places[record.number] != record.at  # type: ignore[union-attr]
        ] + [f"blanks after {positions}" for queue in queues.values() if queue.blanks]


@pytest.fixture
def case(tmp_path: Path, base: dict[str, bytes]) -> Case:
    return Case(tmp_path / "case", base)


def topic_at(record: Found) -> int:
    properties = sum(len(f"{name}\x01{text}\x02".encode()) for name, text in record.properties.items()) - 1
    return record.at + record.size - properties - 2 - len(record.topic)


def of_topic(case: Case, topic: str) -> list[Found]:
    found = [record for record in case.sound if record.topic == topic]
    assert len(found) >= 3
    return found


PICKS: dict[str, Callable[[list[Found]], Found]] = {
    "first": lambda found: found[0],
    "middle": lambda found: found[1],
    "newest": lambda found: found[-1],
}


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("topic", [TIMER, "Orders", DLQ, MARKS])
def test_record_with_a_flipped_bit_returns_to_the_queue_of_its_statement(case: Case, topic: str, pick: str) -> None:
    """Not for the first record of a real topic: nothing shows that a queue of one message is not its own."""
    record = PICKS[pick](of_topic(case, topic))
    queue_id_bits = [(record.at + QUEUE_ID_AT + byte, bit) for byte in range(4) for bit in range(8)]
    offset_bits = [(record.at + QUEUE_OFFSET_AT + byte, bit) for byte in range(8) for bit in range(8)]
    topic_bits = [(topic_at(record) + byte, bit) for byte in range(len(topic)) for bit in range(7)]
    problems = []
    for position in [*queue_id_bits, *offset_bits, *topic_bits]:
        problems += case.misplaced([position])
    assert problems == []


def test_damage_of_other_records_moves_no_record_with_a_statement(case: Case) -> None:
    plain = [record for record in case.sound if "__DMQ_MARK" not in record.properties and record.topic == "Orders"]
    problems = []
    for record in plain:
        for byte in range(4):
            for bit in range(8):
                problems += case.misplaced([(record.at + QUEUE_ID_AT + byte, bit)])
    assert [problem for problem in problems if not problem.startswith("Orders/1")] == []


@pytest.mark.parametrize("topic", [TIMER, "Orders", DLQ])
def test_flipped_bit_in_the_name_of_a_statement_is_corrected_in_the_log(case: Case, topic: str) -> None:
    record = of_topic(case, topic)[1]
    name = "__DMQ_DUE" if topic == TIMER else "__DMQ_MARK"
    log = (case.folder / "commitlog" / f"{0:020d}").read_bytes()
    name_at = log.index(f"{name}\x01".encode(), record.at)
    wrong = []
    for at in range(name_at - 1, name_at + len(name) + 1):
        for bit in range(8):
            case.misplaced([(at, bit)])
            found = next(each for each in read_log(case.folder) if each.at == record.at)
            if found.properties != record.properties:
                wrong.append((at - name_at, bit, found.properties))
    assert wrong == []


def test_two_flipped_bits_in_the_name_of_a_statement_are_left(case: Case) -> None:
    record = of_topic(case, TIMER)[1]
    log = (case.folder / "commitlog" / f"{0:020d}").read_bytes()
    name_at = log.index(b"__DMQ_DUE\x01", record.at)
    case.misplaced([(name_at, 0), (name_at + 1, 0)])
    found = next(each for each in read_log(case.folder) if each.at == record.at)
    assert DUE not in found.properties


COPIED = {"REAL_TOPIC": "Orders", "REAL_QID": "2"}
FORM_1 = {"delivered": "delivered:0:5:1234", "dropped": "dropped:0:5:1234"}
OTHER_PLACE = 12_345
MARK_2 = TimedMark(
    place=OTHER_PLACE, kind=TimedMarkKind.DELIVERED, decided_ms=1, identity=0, record=0, due_ms=1
)  # fmt: skip
NEWER = "3:00000000000000000000:anything"
NAMED = {
    "delivered copy": ("Orders", 2, COPIED | {MARK: FORM_1["delivered"]}, ("Orders", 2)),
    "delivered copy, other queue id": ("Orders", 3, COPIED | {MARK: FORM_1["delivered"]}, ("Orders", 2)),
    "dead letter": (DLQ, 0, COPIED | {MARK: FORM_1["dropped"]}, (DLQ, 0)),
    "dead letter, other queue id": (DLQ, 64, COPIED | {MARK: FORM_1["dropped"]}, (DLQ, 0)),
    "mark alone, other topic": (MARKS.replace("d", "e"), 0, {MARK: FORM_1["dropped"]}, (MARKS, 0)),
    "pending": (SCHEDULE_TOPIC, 3, COPIED | {DUE: format_due(9, 3, 0)}, (SCHEDULE_TOPIC, 3)),
    "dead letter of a group": ("%DLQ%readers", 0, COPIED | {MARK: FORM_1["delivered"]}, None),
    "retry with a copied mark": (SCHEDULE_TOPIC, 3, COPIED | {MARK: FORM_1["delivered"]}, None),
    "mark of another place": ("Orders", 2, COPIED | {MARK: str(MARK_2)}, None),
    "due time of another place": (TIMER, 0, COPIED | {DUE: str(TimedDue(OTHER_PLACE, 9, OTHER_PLACE))}, None),
    "mark of a newer form": ("Orders", 2, COPIED | {MARK: f"{NEWER}:{crc32(NEWER.encode()):08x}"}, None),
    "queue id that is no number": ("Orders", 2, COPIED | {MARK: FORM_1["delivered"], "REAL_QID": "9" * 5_000}, None),
}


@pytest.mark.parametrize("name", NAMED)
def test_properties_assign_a_record_to_its_own_queue_only(tmp_path: Path, name: str) -> None:
    topic, queue_id, properties, expected = NAMED[name]
    store = reopened(tmp_path / "store")
    store.append(message("u", topic=topic, queue_id=queue_id)._replace(properties=properties))
    placing = Placing(QuietFiles(), AsideFolder(QuietFiles(), str(tmp_path)), store._log, store._queues)
    found = placing.queue_of(0)
    store.abandon()
    assert (None if found is None else (found[0].decode(), found[1])) == expected
