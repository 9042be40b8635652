"""Queue offsets assigned to records: true jumps are accepted, single damaged offsets are not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from delaymq.message.flags import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from delaymq.store.recovery.log_scan import Head
from delaymq.store.recovery.numbering import Numbering
from delaymq.store.recovery.queue_runs import Key, Run, Survey
from delaymq.store.recovery.run_selection import Start

SIZE = 200
BEGINNING = 1_000_000
MAX_GAP = 1_000


FROM_0 = Start(0)


class Log:
    """Records in log order: `number`s of queue A unless said otherwise; what is decided about them."""

    def __init__(self, *, start: Start = FROM_0, deleted: dict[str, int] | None = None) -> None:
        self.survey = Survey(deleted or {})
        self.start = start
        self.records: list[Head] = []
        self.known: dict[tuple[Key, int, int], bool] = {}
        self.named: dict[int, Key] = {}

    def put(self, *numbers: int, queue: str = "A", queue_id: int = 0, sys_flag: int = 0) -> Log:
        for number in numbers:
            at = BEGINNING + len(self.records) * SIZE
            head = Head(at, SIZE, 0, queue_id, number, sys_flag, 0, 0, 0, 0, queue.encode(), b"")
            self.records.append(head)
            self.survey.take(*head)
        return self

    def lose(self, count: int) -> Log:
        """A filler in the place of `count` records."""
        at = BEGINNING + len(self.records) * SIZE
        filler = Head(at, SIZE * count, 0, 0, 0, TRANSACTION_ROLLBACK, 0, 0, 0, 0, b"x", b"")
        self.records += [filler] * count
        self.survey.take(*filler)
        return self

    def confirm(self, index: int, told: bool) -> Log:
        """Something else tells whether the record has the place that it says."""
        head = self.records[index]
        self.known[(head.topic, head.queue_id), head.queue_offset, head.physical_offset] = told
        return self

    def confirms(self, key: Key, number: int, at: int) -> bool | None:
        return self.known.get((key, number, at))

    def name(self, index: int, queue: str, queue_id: int) -> Log:
        """The properties of a record name its queue."""
        self.named[self.records[index].physical_offset] = queue.encode(), queue_id
        return self

    def queue_of(self, at: int) -> Key | None:
        return self.named.get(at)

    def places(self, runs: Sequence[tuple[Key, Run]]) -> list[list[int]]:
        return [
            [
                head.physical_offset
                for head in self.records
                if (head.topic, head.queue_id) == key and run.first_at <= head.physical_offset <= run.last_at
            ]
            for key, run in runs
        ]

    def decided(self) -> dict[int, tuple[str, int, int] | None]:
        """Index of a record → topic, queue and number that it gets instead of its own; None: no entry."""
        places = Numbering(self.survey, lambda key: self.start, self, MAX_GAP).decide()
        return {
            (place.at - BEGINNING) // SIZE: (
                None if place.key is None else (place.key[0].decode(), place.key[1], place.number)
            )
            for place in places
        }


def a(number: int) -> tuple[str, int, int]:
    return "A", 0, number


TRUE_NUMBERS = {
    "in order": Log().put(0, 1, 2, 3),
    "behind a snapshot": Log(start=Start(17)).put(17, 18, 19),
    "retention deleted the beginning": Log(start=Start(None)).put(700, 701, 702),
    "retention left one record": Log(start=Start(None)).put(700),
    "entries below the log are kept": Log(start=Start(700, exact=False)).put(700, 701),
    "kept entries say too much": Log(start=Start(720, exact=False)).put(700, 701),
    "a hole cost three": Log().put(0, 1).lose(3).put(5, 6),
    "a hole cost three, one record follows": Log().put(0, 1).lose(3).put(5),
    "a hole cost all but the last": Log().lose(4).put(4),
    "more are missing than a hole explains, and later records agree": Log().put(0, 1).put(40, 41, 42),
    "another source confirms a jump": Log().put(0, 1).put(40).confirm(2, True),
    "the topic was recreated": Log().put(*range(50)).put(0, 1, 2, 3, 4),
    "the topic was recreated twice": Log().put(*range(9)).put(*range(8)).put(*range(7)),
    "the topic was recreated, and its queue's file confirms it": Log().put(*range(50)).put(0).confirm(50, True),
    "the topic is known to be deleted": Log(deleted={"A": BEGINNING + 5 * SIZE}).put(0, 1, 2, 3, 4).put(0, 1),
    "half messages between": Log().put(0, 1).put(0, 0, sys_flag=TRANSACTION_PREPARED).put(2),
    "queues side by side": Log().put(0).put(0, queue_id=1).put(1).put(0, queue="B").put(1, queue_id=1).put(2),
}


@pytest.mark.parametrize("case", TRUE_NUMBERS)
def test_valid_offsets_are_accepted(case: str) -> None:
    assert TRUE_NUMBERS[case].decided() == {}


DAMAGED_NUMBERS = {
    "too high in the middle": (Log().put(0, 1, 2 + 64, 3, 4), {2: a(2)}),
    "too high by all reason": (Log().put(0, 1, 1 << 62, 3, 4), {2: a(2)}),
    "too low in the middle": (Log().put(0, 1, 2, 3, 0, 5, 6), {4: a(4)}),
    "that of the first": (Log().put(0, 0, 2, 3, 4), {1: a(1)}),
    "negative": (Log().put(0, 1, -(1 << 63) + 2, 3), {2: a(2)}),
    "the first": (Log().put(8, 1, 2, 3), {0: a(0)}),
    "the only one": (Log().put(8), {0: a(0)}),
    "the first, where older log is gone": (Log(start=Start(None)).put(300 + 16, 301, 302), {0: a(300)}),
    "the only one, where older log is gone": (Log(start=Start(None)).put(1 << 40), {0: a(0)}),
    "the last": (Log().put(0, 1, 2, 3 + 8), {3: a(3)}),
    "the last, back to 0": (Log().put(0, 1, 2, 3, 0), {4: a(4)}),
    "the first behind a snapshot": (Log(start=Start(17)).put(17 + 256, 18, 19), {0: a(17)}),
    "two neighbours": (Log().put(0, 1, 2 + 32, 3 + 512, 4, 5), {2: a(2), 3: a(3)}),
    "two neighbours by the same bit": (Log().put(0, 1, 2 + 32, 3 + 32, 4, 5, 6), {2: a(2), 3: a(3)}),
    "two at the end": (Log().put(0, 1, 2 + 32, 3 + 512), {2: a(2), 3: a(3)}),
    "next to a hole": (Log().put(0, 1).lose(1).put(3 + 128).put(4, 5), {3: a(2)}),
}


@pytest.mark.parametrize("case", DAMAGED_NUMBERS)
def test_single_wrong_offset_does_not_move_its_queue(case: str) -> None:
    log, expected = DAMAGED_NUMBERS[case]
    assert log.decided() == expected


def test_record_with_damaged_queue_id_returns_to_the_queue_that_lacks_it() -> None:
    log = Log().put(0, 1, 2).put(0, 1, 2, queue_id=1).put(3).put(3, queue_id=5).put(4).put(4, queue_id=1)
    assert log.decided() == {7: ("A", 1, 3)}


def test_damaged_queue_id_of_another_queue_moves_no_offset_there() -> None:
    # Both queues are at the same number, as with producers that take them in turn: two records claim 3 of queue 0.
    log = Log().put(0, 1, 2).put(0, 1, 2, queue_id=1).put(3).put(3).put(4).put(4, queue_id=1).confirm(7, False)
    assert log.decided() == {7: ("A", 1, 3)}


def test_misplaced_record_does_not_displace_the_newest_one() -> None:
    log = Log().put(0, 1, 2).put(0, 1, 2, queue_id=1).put(3).put(3).confirm(6, False)
    assert log.decided() == {6: ("A", 1, 3)}


def test_misplaced_record_does_not_displace_the_first_one() -> None:
    log = Log().put(0).put(0).put(1, 2).put(1, 2, queue_id=1).confirm(1, False)
    assert log.decided() == {1: ("A", 1, 0)}


def test_newest_record_with_a_damaged_queue_id_returns_to_its_queue() -> None:
    log = Log().put(0, 1, 2).put(0, 1, 2, 3, 4, queue_id=1).put(5).put(3, 4)
    assert log.decided() == {8: ("A", 1, 5)}


def test_damaged_topic_is_corrected_where_an_offset_is_missing() -> None:
    log = Log().put(0, 1, queue="Abc").put(2, queue="Abb").put(3, 4, queue="Abc")
    assert log.decided() == {2: ("Abc", 0, 2)}


def test_first_record_of_a_queue_with_a_damaged_topic_is_corrected() -> None:
    assert Log().put(0, queue="Abb").put(1, 2, queue="Abc").decided() == {0: ("Abc", 0, 0)}
    assert Log().lose(1).put(0, queue="Abb").put(1, queue="Abc").decided() == {}


def test_misplaced_record_does_not_create_a_topic() -> None:
    log = Log().put(0, queue_id=2).put(*range(4), queue_id=2).put(1, 2)
    assert log.confirm(0, False).confirm(1, True).decided() == {0: ("A", 0, 0)}


def test_misplaced_record_does_not_hide_later_ones_behind_a_snapshot() -> None:
    log = Log(start=Start(7)).put(7, 8, queue_id=1).put(6).put(7, 8, 9)
    assert log.decided() == {2: None}


def test_two_ambiguous_single_records_stay() -> None:
    assert Log().put(0).put(1, queue_id=2048).decided() == {}
    assert Log().put(0, 1, queue_id=2).put(0, 1, 2).put(3, queue_id=2).decided() == {}


def test_record_that_names_the_queue_fills_the_gap() -> None:
    def log() -> Log:
        return Log().put(0, queue_id=1).put(0, queue_id=65536).put(1, 2, 3)

    assert log().decided() == {}
    assert log().name(0, "A", 1).decided() == {1: ("A", 0, 0)}
    assert log().name(1, "A", 0).decided() == {1: ("A", 0, 0)}


def test_record_without_a_matching_gap_gets_no_entry() -> None:
    log = Log().put(0, 1, 2, 3, 4, 2, 5, 6)
    assert log.decided() == {5: None}


def test_heavily_damaged_log_is_resolved_in_bounded_time() -> None:
    log = Log()
    for number in range(3_000):
        log.put(number * 7919 % 3_001, queue_id=number % 5)
    assert len(log.decided()) > 1_000
