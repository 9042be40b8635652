"""The judge of histories finds every kind of violation in synthetic logs, and none in a correct one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from crash.synthetic_log import START_MS, TimedLog
from harness.commitlog import BadLogError, Record, pulled_records, records
from replication.history import TOPIC, Cancel, End, History, Kind, Outcome, Send
from replication.history_judge import HALF_TOPIC, OP_TOPIC, Verdict, judge, without

DELAY_MS = 1_000


class Story:
    """A history and its log, which agree until a test changes one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = TimedLog(folder)
        self.history = History()
        self.now_s = 0.0

    def asked(self, key: str, kind: Kind, **changes: object) -> None:
        self.now_s += 2
        send = Send(
            key=key, kind=kind, queue_id=0, delay_ms=0 if kind in (Kind.PLAIN, Kind.HALF) else DELAY_MS,
            asked_ms=START_MS, asked_s=self.now_s, answered_s=self.now_s + 1, outcome=Outcome.DONE,
        )  # fmt: skip
        self.history.sends.append(replace(send, **changes))  # type: ignore[arg-type]

    def stored(self, key: str, stored_ms: int = START_MS + 5) -> None:
        self.log.append(TOPIC, 0, stored_ms, {"UNIQ_KEY": key}, b"body")

    def plain(self, key: str, queue_offset: int) -> None:
        self.asked(key, Kind.PLAIN, queue_offset=queue_offset)
        self.stored(key)

    def timed(self, key: str) -> int:
        self.asked(key, Kind.TIMED)
        return self.log.timed(str(START_MS + DELAY_MS), UNIQ_KEY=key)

    def delivered(self, key: str, identity: int, late_ms: int = 0) -> None:
        due_ms = START_MS + DELAY_MS
        mark = f"delivered:{START_MS}:{identity}::{due_ms}:::"
        self.log.stated(TOPIC, "__DMQ_MARK", mark, due_ms + late_ms, {"UNIQ_KEY": key}, b"body")

    def cancelled(self, key: str, identity: int) -> None:
        mark = f"cancelled:{START_MS}:{identity}::{START_MS}:::"
        self.log.stated("rmq_sys_delaymq_marks", "__DMQ_MARK", mark, START_MS, {"UNIQ_KEY": key}, b"")

    def transaction(self, key: str, queue_offset: int, *, copies: int) -> None:
        self.asked(key, Kind.HALF)
        self.log.append(HALF_TOPIC, 0, START_MS, {"UNIQ_KEY": key}, b"body")
        self.log.append(OP_TOPIC, 0, START_MS, {}, str(queue_offset).encode())
        for _ in range(copies):
            self.stored(key)

    def judged(self, *, are_read: bool = True) -> Verdict:
        """Judge, by default with consumers that read everything."""
        self.log.write()
        if are_read:
            self.history.seen = {0: self.found()}
        return judge(self.history, self.folder, "1s")

    def found(self) -> list[Record]:
        return [record for record in records(self.folder, with_bodies=True) if record.topic == TOPIC]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """Provide a correct run."""
    story = Story(tmp_path)
    for number in range(30):
        story.plain(f"R{number}", number)
    story.delivered("T1", story.timed("T1"), late_ms=7)
    story.cancelled("T2", story.timed("T2"))
    story.history.cancels.append(Cancel(key="T2", outcome=Outcome.DONE))
    story.transaction("X1", 0, copies=1)
    story.transaction("X3", 1, copies=0)
    story.history.ends += [
        End(key="X1", is_commit=True, outcome=Outcome.DONE), End(key="X3", is_commit=False, outcome=Outcome.DONE)
    ]  # fmt: skip
    return story


def test_correct_run_has_no_violation(story: Story) -> None:
    verdict = story.judged()
    assert not verdict.breaches, verdict.text()
    assert verdict.late_ms(START_MS, START_MS + 2 * DELAY_MS) == 7
    assert verdict.counts["delayed"] == 2


def _repeat(story: Story) -> None:
    story.stored("R7")


def _lose(story: Story) -> None:
    story.asked("R99", Kind.PLAIN)


def _lose_delayed(story: Story) -> None:
    story.timed("T9")


def _lose_half(story: Story) -> None:
    story.asked("X9", Kind.HALF)


def _store_unknown(story: Story) -> None:
    story.stored("R100")


def _store_refused(story: Story) -> None:
    story.asked("R99", Kind.PLAIN, outcome=Outcome.REFUSED)
    story.stored("R99")


def _deliver_early(story: Story) -> None:
    story.delivered("T9", story.timed("T9"), late_ms=-1)


def _deliver_cancelled(story: Story) -> None:
    story.delivered("T2", 0)


def _forget_cancel(story: Story) -> None:
    identity = story.timed("T9")
    story.history.cancels.append(Cancel(key="T9", outcome=Outcome.DONE))
    story.delivered("T9", identity)


def _cancel_unasked(story: Story) -> None:
    story.cancelled("T9", story.timed("T9"))


def _swap(story: Story) -> None:
    story.asked("R41", Kind.PLAIN, queue_offset=33)
    story.asked("R42", Kind.PLAIN, queue_offset=32)
    story.stored("R42")
    story.stored("R41")


def _move(story: Story) -> None:
    story.asked("R41", Kind.PLAIN, queue_offset=99)
    story.stored("R41")


def _move_place(story: Story) -> None:
    story.asked("R41", Kind.PLAIN, queue_offset=32, place=0)
    story.stored("R41")


def _state_no_place(story: Story) -> None:
    story.asked("R41", Kind.PLAIN, queue_offset=32, place=1)
    story.stored("R41")


def _commit_rolled_back(story: Story) -> None:
    story.stored("X3")


def _lose_commit(story: Story) -> None:
    story.transaction("X4", 2, copies=0)
    story.history.ends.append(End(key="X4", is_commit=True, outcome=Outcome.DONE))


def _commit_twice(story: Story) -> None:
    story.stored("X1")


def _settle_not(story: Story) -> None:
    story.asked("X6", Kind.HALF)
    story.log.append(HALF_TOPIC, 0, START_MS, {"UNIQ_KEY": "X6"}, b"body")


@pytest.mark.parametrize(
    ("violate", "expected"),
    [
        (_repeat, "duplicated"),
        (_lose, "lost"),
        (_lose_delayed, "lost"),
        (_lose_half, "lost"),
        (_store_unknown, "phantom"),
        (_store_refused, "refused, but stored"),
        (_deliver_early, "early"),
        (_deliver_cancelled, "delivered after a cancel"),
        (_forget_cancel, "lost cancel"),
        (_cancel_unasked, "cancelled without a request"),
        (_swap, "order"),
        (_move, "another queue offset than acknowledged"),
        (_move_place, "stored elsewhere than acknowledged"),
        (_state_no_place, "stored elsewhere than acknowledged"),
        (_commit_rolled_back, "committed against the producer's will"),
        (_lose_commit, "lost commit"),
        (_commit_twice, "duplicated"),
        (_settle_not, "unsettled"),
    ],
)
def test_violation_is_found(story: Story, violate: Callable[[Story], None], expected: str) -> None:
    violate(story)
    assert expected in story.judged().breaches


def test_message_that_a_consumer_saw_has_to_remain(story: Story) -> None:
    story.judged()
    last = story.history.seen[0][-1]
    gone = replace(last, physical_offset=last.physical_offset + 10_000, queue_offset=last.queue_offset + 1)
    story.history.seen[0].append(gone)
    assert "read, but gone" in judge(story.history, story.folder, "1s").breaches


def test_message_that_a_consumer_saw_must_not_change(story: Story) -> None:
    story.judged()
    story.history.seen[0][3] = replace(story.history.seen[0][3], body=b"other")
    assert "changed after it was read" in judge(story.history, story.folder, "1s").breaches


def test_consumer_has_to_see_each_message_once(story: Story) -> None:
    story.judged()
    seen = story.history.seen[0]
    story.history.seen[0] = [*seen[:5], *seen[6:]]
    breaches = judge(story.history, story.folder, "1s").breaches
    assert "skipped or repeated for the consumer" in breaches
    assert "unread" in breaches


def test_stored_message_that_is_due_later_is_not_lost(story: Story) -> None:
    story.timed("T9")
    story.judged()
    assert not judge(story.history, story.folder, "1s", until_ms=START_MS + DELAY_MS).breaches
    assert judge(story.history, story.folder, "1s", until_ms=START_MS + DELAY_MS + 1).breaches["lost"] == ["T9"]


def test_record_that_carries_a_delay_level_forward_is_no_repetition(story: Story) -> None:
    story.asked("L1", Kind.LEVEL)
    story.log.delayed("L1", 1)
    place = {"UNIQ_KEY": "L1", "DELAY": "1", "REAL_QID": "3"}
    mark = f"carried:{START_MS}:0::{START_MS}:{START_MS}:0.0:"
    story.log.stated("SCHEDULE_TOPIC_XXXX", "__DMQ_MARK", mark, START_MS + 3, place, b"body")
    story.stored("L1", START_MS + 2 * DELAY_MS)
    verdict = story.judged()
    assert not verdict.breaches, verdict.text()


def test_lost_offset_of_a_consumer_is_found(story: Story) -> None:
    story.history.offsets.append("queue 0: 10.77.0.1:10911 states 0, not 7 to 9")
    assert story.judged().breaches["committed offset"]


def test_gap_in_a_queue_is_found(story: Story) -> None:
    story.log._queue_ends[TOPIC, 0] += 1
    story.plain("R50", 33)
    assert "queue offset" in story.judged().breaches


def test_requests_of_which_nothing_is_expected_are_not_lost(story: Story) -> None:
    story.asked("R99", Kind.PLAIN)
    story.judged()
    verdict = judge(without(story.history, lambda each: each.key == "R99"), story.folder, "1s")
    assert not verdict.breaches, verdict.text()
    assert verdict.counts["unknown sends"] == 1


def test_response_to_a_pull_is_parsed_as_in_the_log(story: Story) -> None:
    story.log.write()
    segment = (story.folder / "commitlog" / f"{0:020d}").read_bytes()
    first, second = story.found()[:2]
    assert pulled_records(segment[: first.size + second.size]) == [first, second]
    with pytest.raises(BadLogError, match="not the beginning of a record"):
        pulled_records(segment[: first.size + second.size - 1])
