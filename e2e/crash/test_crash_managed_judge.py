"""The judge of groups, pauses and repeating messages finds every planted violation, and none in a correct log."""

from __future__ import annotations

import dataclasses
from base64 import urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

import pytest
from crash.managed_judge import ManagedVerdict, judge_managed
from crash.managed_load import CRON, TOPICS, Change, Request, Sent
from crash.synthetic_log import START_MS, TimedLog
from crash.timed_load import body_of
from harness.commitlog import BadLogError, timed_messages

TOPIC = TOPICS[0]
MARKS = "rmq_sys_delaymq_marks"
LATER_MS = START_MS + 300
Run: TypeAlias = tuple[int, int, int | None, int, int | None]
"""Arguments of `ManagedLog.run`: number, due time, next due time, time of the record, time of the run."""


class ManagedLog(TimedLog):
    """Writes what a broker would, and notes the requests that would lead to it. Times are ms after the start."""

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self.sent = Sent()
        self._store = store
        self._groups: dict[str, str] = {}
        self._schedules: dict[str, dict[str, str]] = {}

    def message(self, key: str, due: int, group: str = "", at: int = 0, /, **schedule: str) -> int:
        """Store a message; return the physical offset of its record, which is its identity."""
        requested = schedule or {"TIMER_DELIVER_MS": str(START_MS + due)}
        properties = {"UNIQ_KEY": key, **requested, **({"DELAY_GROUP": group} if group else {})}
        self.sent.messages[key] = Request(TOPIC, properties, START_MS + at, 0)
        self._groups[key], self._schedules[key] = group, schedule
        statement = f"{START_MS + due}" + ("::run=0" if schedule else "")
        place = self.held(key, statement, at)
        self.sent.places[key] = place
        return place

    def held(self, key: str, statement: str, at: int) -> int:
        properties = {**self.sent.messages[key].properties, "REAL_TOPIC": TOPIC}
        return self.stated("rmq_sys_wheel_timer", "__DMQ_DUE", statement, START_MS + at, properties, body_of(key))

    def carried(self, key: str, due: int, at: int, details: str = "") -> int:
        return self.held(key, f"{START_MS + due}:{self.sent.places[key]}:{details}", at)

    def one(self, kind: str, key: str, due: int, following: int | None, at: int, topic: str = MARKS) -> int:
        """Append a mark of one message that is due at `due` until then."""
        return self._about(topic, kind, key, due, following, at, "", {"UNIQ_KEY": key})

    def handed(self, key: str, due: int, at: int) -> int:
        return self._about(TOPIC, "delivered", key, due, None, at, "", {"UNIQ_KEY": key})

    def run(self, key: str, number: int, due: int, following: int | None, at: int, run: int | None = None) -> int:
        """Append the copy of a run at `run`, by default at `due`."""
        digest = sha256(f"{key}:{self.sent.places[key]}:{number}".encode()).hexdigest().upper()
        properties = {
            "UNIQ_KEY": f"{digest[:20]}00000000{digest[20:24]}", "DELAY_SCHEDULE_ID": key, "DELAY_RUN": str(number),
            "TIMER_OUT_MS": str(START_MS + (due if run is None else run)),
        }  # fmt: skip
        return self._about(TOPIC, "delivered", key, due, following, at, f"run={number}", properties)

    def _about(
        self, topic: str, kind: str, key: str, due: int, following: int | None, at: int, details: str,
        properties: dict[str, str],
    ) -> int:  # fmt: skip
        following_ms = "" if following is None else START_MS + following
        statement = f"{kind}:{START_MS + at}:{self.sent.places[key]}::{START_MS + due}:{following_ms}::{details}"
        if self._groups[key]:
            properties["DELAY_GROUP"] = self._groups[key]
        body = body_of(key) if topic == TOPIC else b""
        return self.stated(topic, "__DMQ_MARK", statement, START_MS + at, properties, body)

    def many(self, kind: str, group: str, at: int, following: int | None = None, decided: int | None = None) -> int:
        """Append a mark of a group or, without a name, of the topic."""
        following_ms = "" if following is None else START_MS + following
        topic_word, group_word = (urlsafe_b64encode(each.encode()).decode().rstrip("=") for each in (TOPIC, group))
        decided_ms = START_MS + (at if decided is None else decided)
        statement = f"{kind}:{decided_ms}:{topic_word}:{group_word}:{following_ms}:"
        return self.stated(MARKS, "__DMQ_MARK", statement, START_MS + at, {}, b"")

    def asked(
        self, action: str, at: int, place: int = 0, *, group: str = "", key: str = "", changed: int = 1,
        due: int | None = None, delay: int | None = None, code: int | None = 0, fate: str = "",
        fate_at: int | None = None, is_final: bool = False,
    ) -> None:  # fmt: skip
        """Note a request and the response to it, both at this time."""
        due_ms = None if due is None else START_MS + due
        fate_ms = None if fate_at is None else START_MS + fate_at
        self.sent.changes.append(
            Change(
                action=action, topic=TOPIC, group=group, key=key, delay_ms=delay, asked_ms=START_MS + at,
                answered_ms=START_MS + at, code=code, place=place, changed=changed, due_ms=due_ms, fate=fate,
                fate_ms=fate_ms, is_final=is_final,
            )
        )  # fmt: skip

    def verdict(self, crashes: tuple[int, ...] = ()) -> ManagedVerdict:
        self.write()
        return judge_managed(self._store, self.sent, [START_MS + at for at in crashes])


@pytest.fixture
def log(tmp_path: Path) -> ManagedLog:
    return ManagedLog(tmp_path)


def correct(log: ManagedLog) -> None:
    """Write a correct history with everything that the judge examines."""
    for key in ("g1", "g2", "g3"):
        log.message(key, 5_000, "G")
    log.message("h1", 3_000, "H")
    log.message("alone", 2_000)
    log.message("every", 1_000, "S", DELAY_EVERY_MS="1000")
    log.message("cron", 2_000 - START_MS % 2_000, DELAY_CRON=CRON, DELAY_RUNS="2", DELAY_MISSED="all")
    log.message("strict", 1_000, DELAY_EVERY_MS="1000", DELAY_MISSED="none", DELAY_EXPIRE_MS="1500")
    log.asked("pause", 100, log.many("paused", "H", 100), group="H")
    log.asked("pause", 110, group="H")
    log.asked("move", 200, log.many("groupMoved", "G", 200, 4_200), group="G", changed=3, delay=4_000, due=4_200)
    log.asked("move", 300, log.one("moved", "alone", 2_000, 1_300, 300), key="alone", delay=1_000, due=1_300)
    log.carried("g1", 4_200, 900)
    log.run("every", 1, 1_000, 2_000, 1_001)
    log.run("strict", 1, 1_000, 2_000, 1_001)
    log.handed("alone", 1_300, 1_302)
    log.asked("cancel", 1_310, key="alone", code=604, fate="delivered", fate_at=1_302)
    log.run("cron", 1, 2_000, 4_000, 2_001)
    log.many("paused", "H", 2_050, decided=100)
    log.carried("every", 2_000, 2_100, "run=1")
    log.asked("cancel", 2_200, log.one("cancelled", "g2", 4_200, None, 2_200), key="g2")
    log.asked("cancel", 2_210, key="g2", changed=0)
    log.asked("fire", 3_500, log.many("groupFired", "G", 3_500, 3_500), group="G", changed=2, due=3_500)
    log.handed("g1", 3_500, 3_500)
    log.asked("cancel", 3_600, log.many("groupCancelled", "G", 3_600), group="G")
    log.asked("cancel", 3_610, group="G", changed=0)
    log.asked("fire", 3_620, key="g3", code=604, fate="cancelled", fate_at=3_600)
    log.asked("fire", 3_630, group="G", code=604, fate="unknown", changed=0)
    log.asked("resume", 4_500, log.many("resumed", "H", 4_500), group="H")
    log.asked("resume", 4_510, group="H", changed=0)
    log.handed("h1", 3_000, 4_501)
    log.run("every", 2, 2_000, 5_000, 4_600, run=4_000)
    log.one("expired", "strict", 2_000, 4_000, 4_700)
    log.run("strict", 2, 4_000, 5_000, 4_701)
    log.run("cron", 2, 4_000, None, 4_702)
    log.asked("fire", 4_710, log.one("fired", "every", 5_000, 4_710, 4_710), key="every", due=4_710)
    log.run("every", 3, 4_710, 5_710, 4_711)
    log.asked("cancel", 4_800, code=None, key="every")
    log.one("cancelled", "every", 5_710, None, 4_800)
    log.asked("cancel", 4_900, log.one("cancelled", "strict", 5_000, None, 4_900), key="strict", is_final=True)


def test_correct_history_has_no_violation(log: ManagedLog) -> None:
    correct(log)
    verdict = log.verdict(crashes=(150, 4_000, 5_000))
    assert verdict.breaches == {}
    assert (verdict.messages, verdict.delivered, verdict.runs, verdict.skips, verdict.runs_late) == (8, 10, 7, 1, 1)
    assert (verdict.carried, verdict.repeating_carried, verdict.pauses_carried) == (2, 1, 1)
    assert (verdict.unanswered, verdict.denied) == (1, 3)
    assert (verdict.pending_at, verdict.paused_at) == ((8, 4, 0), (1, 1, 0))
    assert verdict.changed == {"paused": 1, "groupMoved": 3, "groupFired": 2, "groupCancelled": 1, "resumed": 1}
    assert verdict.text().endswith("no breach")


def lost(log: ManagedLog) -> None:
    log.message("m", 10)
    log.handed("m", 10, 11)
    log.sent.places["gone"] = 77


def pending(log: ManagedLog) -> None:
    log.message("m", 10)


def duplicated(log: ManagedLog) -> None:
    log.message("m", 10)
    log.handed("m", 10, 11)
    log.handed("m", 10, 11)


def early(log: ManagedLog) -> None:
    log.message("m", 10)
    log.handed("m", 10, 9)


def delivered_after_a_cancel(log: ManagedLog) -> None:
    log.message("m", 10)
    log.asked("cancel", 5, log.one("cancelled", "m", 10, None, 5), key="m")
    log.handed("m", 10, 11)


def delivered_after_the_cancel_of_its_group(log: ManagedLog) -> None:
    log.message("m", 10, "G")
    log.asked("cancel", 5, log.many("groupCancelled", "G", 5), group="G")
    log.handed("m", 10, 11)


def cancelled_after_its_delivery(log: ManagedLog) -> None:
    log.message("m", 10)
    log.handed("m", 10, 11)
    log.one("cancelled", "m", 10, None, 12)


def paused_group(log: ManagedLog) -> None:
    log.message("m", 10, "G")
    log.asked("pause", 5, log.many("paused", "G", 5), group="G")
    log.handed("m", 10, 11)


def paused_topic(log: ManagedLog) -> None:
    log.message("m", 10)
    log.asked("pause", 5, log.many("paused", "", 5))
    log.handed("m", 10, 11)


def ignored_move_of_a_group(log: ManagedLog) -> None:
    log.message("m", 10, "G")
    log.asked("move", 5, log.many("groupMoved", "G", 5, 105), group="G", delay=100, due=105)
    log.handed("m", 10, 11)


def move_of_a_group_for_a_later_message(log: ManagedLog) -> None:
    log.message("n", 10, "G")
    log.asked("move", 5, log.many("groupMoved", "G", 5, 105), group="G", delay=100, due=105)
    log.handed("n", 105, 105)
    log.message("m", 10, "G", 6)
    log.handed("m", 105, 105)


def carried_after_its_end(log: ManagedLog) -> None:
    log.message("m", 10)
    log.handed("m", 10, 11)
    log.carried("m", 10, 12)


def carried_with_an_earlier_due_time(log: ManagedLog) -> None:
    log.message("m", 10)
    log.asked("move", 5, log.one("moved", "m", 10, 105, 5), key="m", delay=100, due=105)
    log.carried("m", 10, 6)
    log.handed("m", 105, 105)


def carried_with_another_number(log: ManagedLog) -> None:
    log.message("m", 1_000, DELAY_EVERY_MS="1000", DELAY_RUNS="1")
    log.carried("m", 1_000, 6, "run=1")
    log.run("m", 1, 1_000, None, 1_000)


def stored_twice(log: ManagedLog) -> None:
    place = log.message("m", 10)
    log.handed("m", 10, 11)
    log.message("m", 10)
    log.handed("m", 10, 11)
    log.sent.places["m"] = place


def wrong_due_time(log: ManagedLog) -> None:
    log.message("m", 10)
    log.sent.messages["m"].properties["TIMER_DELIVER_MS"] = str(START_MS + 11)
    log.handed("m", 10, 11)


def unknown_message(log: ManagedLog) -> None:
    log.message("m", 10)
    log.handed("m", 10, 11)
    del log.sent.messages["m"], log.sent.places["m"]


def altered_copy(log: ManagedLog) -> None:
    log.message("m", 10)
    log._about("Other", "delivered", "m", 10, None, 11, "", {"UNIQ_KEY": "m"})


def copy_without_a_mark(log: ManagedLog) -> None:
    log.append(TOPIC, 0, START_MS, {"UNIQ_KEY": "m"}, b"")


PLANTED: dict[Callable[[ManagedLog], None], set[str]] = {
    lost: {"lost"},
    pending: {"pending"},
    duplicated: {"duplicated"},
    early: {"early"},
    delivered_after_a_cancel: {"delivered after cancelled"},
    delivered_after_the_cancel_of_its_group: {"delivered after cancelled"},
    cancelled_after_its_delivery: {"cancelled after delivered"},
    paused_group: {"delivered while paused"},
    paused_topic: {"delivered while paused"},
    ignored_move_of_a_group: {"contradicting due time", "early"},
    move_of_a_group_for_a_later_message: {"contradicting due time"},
    carried_after_its_end: {"carried although it has ended"},
    carried_with_an_earlier_due_time: {"carried in another state"},
    carried_with_another_number: {"carried in another state"},
    stored_twice: {"stored twice", "wrong place"},
    wrong_due_time: {"wrong due time"},
    unknown_message: {"never sent"},
    altered_copy: {"altered"},
    copy_without_a_mark: {"names no message"},
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_planted_violation_is_found(log: ManagedLog, plant: Callable[[ManagedLog], None]) -> None:
    plant(log)
    assert log.verdict().breaches.keys() == PLANTED[plant]


@pytest.mark.parametrize(
    ("schedule", "runs", "breaches"),
    [
        ({}, [(1, 1_000, 2_000, 1_001, None), (2, 2_000, None, 2_001, None)], set()),
        ({}, [(1, 1_000, 2_000, 1_001, None), (1, 2_000, None, 2_001, None)], {"wrong number", "wrong id"}),
        ({}, [(2, 1_000, 2_000, 1_001, None), (3, 2_000, None, 2_001, None)], {"wrong number", "wrong id"}),
        ({}, [(1, 1_000, 2_500, 1_001, None), (2, 2_500, None, 2_501, None)], {"wrong next run"}),
        ({}, [(1, 1_000, None, 1_001, None)], {"wrong next run"}),
        ({}, [(1, 1_000, 4_000, 3_999, 3_000), (2, 4_000, None, 4_001, None)], set()),
        ({}, [(1, 1_000, 3_000, 3_999, 2_000), (2, 3_000, None, 4_001, 4_000)], {"wrong run"}),
        ({}, [(1, 1_000, 2_000, 999, None), (2, 2_000, None, 2_001, None)], {"early"}),
        ({"DELAY_MISSED": "all"}, [(1, 1_000, 2_000, 3_999, None), (2, 2_000, None, 3_999, None)], set()),
        ({"DELAY_MISSED": "all"}, [(1, 1_000, 4_000, 3_999, 3_000), (2, 4_000, None, 4_001, None)], {"wrong run"}),
        (
            {"DELAY_MISSED": "none", "DELAY_EXPIRE_MS": "1500"},
            [(1, 1_000, 2_000, 3_999, None), (2, 2_000, None, 3_999, None)],
            {"wrong run"},
        ),
        ({"DELAY_EVERY_MS": "", "DELAY_CRON": CRON}, [(1, 2_000, 3_000, 2_000, None)], {"wrong next run", "pending"}),
    ],
)
def test_runs_follow_the_rule(
    log: ManagedLog,
    schedule: dict[str, str],
    runs: list[tuple[int, int, int | None, int, int | None]],
    breaches: set[str],
) -> None:
    requested = {name: value for name, value in {"DELAY_EVERY_MS": "1000", **schedule}.items() if value}
    log.message("m", runs[0][1], **requested, DELAY_RUNS="2")
    for number, due, following, at, run in runs:
        log.run("m", number, due, following, at, run)
    found = log.verdict().breaches
    assert {name.removesuffix(" of a run") for name in found} == breaches


@pytest.mark.parametrize(
    ("missed", "following", "at", "breach"),
    [("none", 3_000, 4_000, ""), ("none", 2_000, 2_500, "skipped in time"), ("none", 4_000, 4_000, "wrong next run"),
     ("all", 3_000, 4_000, "skipped in time")],
)  # fmt: skip
def test_runs_are_skipped_only_if_they_are_too_late(
    log: ManagedLog, missed: str, following: int, at: int, breach: str
) -> None:
    expire = {"DELAY_EXPIRE_MS": "1500"} if missed == "none" else {}
    log.message("m", 1_000, DELAY_EVERY_MS="1000", DELAY_RUNS="1", DELAY_MISSED=missed, **expire)
    log.one("expired", "m", 1_000, following, at)
    log.run("m", 1, following, None, following + 1_000)
    assert set(log.verdict().breaches) == ({breach} if breach else set())


@pytest.mark.parametrize(
    ("altered", "breach"),
    [
        ({"place": 1}, "names another record"),
        ({"group": "H"}, "names another change"),
        ({"action": "fire"}, "names another change"),
        ({"changed": 1}, "wrong number of messages"),
        ({"due_ms": START_MS + 106}, "wrong new due time"),
        ({"delay_ms": 200}, "not due as requested"),
        ({"answered_ms": START_MS + 4}, "decided at another time"),
        ({"action": "cancel", "place": 0}, "untrue repetition"),
        ({"code": 604, "fate": "unknown"}, "denied"),
        ({"code": 604, "key": "m", "fate": "delivered", "fate_ms": START_MS}, "denied"),
        (
            {"code": 604, "key": "m", "fate": "cancelled", "fate_ms": START_MS, "answered_ms": START_MS + 300},
            "wrong end",
        ),
        ({"code": 604, "key": "m", "fate": "unknown", "answered_ms": START_MS + 300}, ""),
    ],
)
def test_untrue_response_is_found(log: ManagedLog, altered: dict[str, object], breach: str) -> None:
    for key in ("m", "n"):
        log.message(key, 10, "G")
    log.asked("move", 5, log.many("groupMoved", "G", 5, 105), group="G", changed=2, delay=100, due=105)
    for key in ("m", "n"):
        log.handed(key, 105, 106)
    [change] = log.sent.changes
    log.sent.changes.append(dataclasses.replace(change, **altered))  # type: ignore[arg-type]
    assert list(log.verdict().breaches) == ([breach] if breach else [])


def test_unrequested_and_contradicting_marks_are_found(log: ManagedLog) -> None:
    log.message("m", 10, "G")
    log.many("paused", "G", 1)
    log.many("paused", "G", 3, decided=2)
    log.many("resumed", "G", 4)
    log.many("resumed", "G", 5)
    log.many("groupFired", "empty", 6, 6)
    log.one("cancelled", "m", 10, 20, 7)
    log.one("dropped", "m", 20, None, 8)
    found = log.verdict().breaches
    assert set(found) == {
        "never requested", "paused twice", "resumed without a pause", "change of an empty group", "contradicting kind",
        "unexpectedly dropped",
    }  # fmt: skip
    assert len(found["never requested"]) == 5


def test_request_without_response_explains_one_mark(log: ManagedLog) -> None:
    log.message("m", 10, "G")
    log.asked("fire", 1, code=None, group="G")
    for at in (1, 2):
        log.many("groupFired", "G", at, at)
    log.handed("m", 2, 2)
    verdict = log.verdict()
    assert (verdict.unanswered, list(verdict.breaches)) == (2, ["never requested"])


def test_schedule_that_stands_still_is_overdue_at_the_end(log: ManagedLog) -> None:
    log.message("m", 1_000, DELAY_EVERY_MS="1000")
    place = log.one("cancelled", "m", 1_000, None, 6_500)
    log.asked("cancel", 6_500, place, key="m", is_final=True)
    assert list(log.verdict().breaches) == ["overdue at the end"]


def test_statements_about_many_messages_are_not_ignored_elsewhere(log: ManagedLog, tmp_path: Path) -> None:
    log.message("m", 10, "G")
    log.many("groupCancelled", "G", 5)
    log.write()
    with pytest.raises(BadLogError, match="is about many messages"):
        timed_messages(tmp_path)


def test_pauses_change_no_timed_message(log: ManagedLog, tmp_path: Path) -> None:
    log.message("m", 10)
    log.many("paused", "", 5)
    log.many("resumed", "", 20)
    log.write()
    [message] = timed_messages(tmp_path).values()
    assert message.is_pending
