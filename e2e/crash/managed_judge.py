"""Effects of crashes on groups, pauses and repeating messages, derived from the bytes of the log alone.

The log is replayed record by record: each statement has to be true in the state that the records before it have led to.
The responses to the producers are then compared with the statements that they name.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from crash.managed_load import TOPICS, Change, Request, Sent
from crash.managed_runs import Schedule, problems_of_run, problems_of_skip
from crash.timed_load import body_of
from harness.commitlog import GroupMark, Held, Mark, Record, held_by, mark_of, records

_TOLERANCE_MS = 8
"""A message that is moved to a time at which it was due before is due a millisecond later."""
_OVERDUE_MS = 5_000
"""Permitted lateness of the next run when a schedule is cancelled at the end of the test."""
_KINDS = {
    "cancel": ("cancelled", "groupCancelled"), "move": ("moved", "groupMoved"), "fire": ("fired", "groupFired"),
    "pause": ("paused", "paused"), "resume": ("resumed", "resumed"),
}  # fmt: skip
"""Kinds of the marks that actions write: for a message, and for a group or a topic."""

Target = tuple[str, str, str]


@dataclass(kw_only=True)
class ManagedVerdict:
    """Counts, and violations by unique key, target or physical offset."""

    messages: int = 0
    unacknowledged: int = 0
    """Requests of messages without a response."""
    carried: int = 0
    """Records that carried messages forward."""
    repeating_carried: int = 0
    pauses_carried: int = 0
    runs: int = 0
    runs_late: int = 0
    """Runs that stand for several ones, because the others were missed."""
    skips: int = 0
    """Marks that skipped runs."""
    delivered: int = 0
    marks: dict[str, int]
    """Number of marks of changes and pauses, by kind."""
    changed: dict[str, int]
    """Number of messages that marks of groups and pauses applied to, by kind."""
    unanswered: int = 0
    """Changes that were made although their request was not answered."""
    denied: int = 0
    """Responses that nothing was to be changed."""
    pending_at: tuple[int, ...] = ()
    """Number of pending messages at each crash."""
    paused_at: tuple[int, ...] = ()
    """Number of paused groups and topics at each crash."""
    breaches: dict[str, tuple[str, ...]]
    """Without empty ones."""

    def text(self) -> str:
        """Return counts, then up to three examples of each violation."""
        counts = (
            f"messages {self.messages} (unacknowledged {self.unacknowledged}), delivered {self.delivered},"
            f" carried {self.carried} (repeating {self.repeating_carried}, pauses {self.pauses_carried}),"
            f" runs {self.runs} (in place of missed ones {self.runs_late}), skips {self.skips}, marks {self.marks}"
            f" (unanswered {self.unanswered}), messages of groups and pauses {self.changed}, denied {self.denied},"
            f" pending at the crashes {list(self.pending_at)}, paused {list(self.paused_at)}"
        )
        examples = [f"  {name}: {len(keys)}, {', '.join(keys[:3])}" for name, keys in self.breaches.items()]
        return "\n".join([counts, *(examples or ["  no breach"])])


@dataclass(slots=True)
class _Message:
    """State of a message while the log is read."""

    identity: int
    key: str
    topic: str
    group: str
    stored_ms: int
    first_due_ms: int
    due_ms: int
    schedule: Schedule | None
    runs: int = 0
    end: str = ""
    """Kind of its end; empty while it is pending."""
    decided_ms: int = 0
    """Time of the decision that ended it."""
    ended_ms: int = 0
    """Time of the record that ended it."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A mark of a change or a pause in the log."""

    kind: str
    target: Target
    messages: int
    """Number of messages to which it applied; of a pause, number of pending ones."""
    decided_ms: int
    next_due_ms: int | None
    due_ms: int = 0
    """Due time of the message before."""


class _History:
    """Times at which something began and ceased to be the case."""

    def __init__(self) -> None:
        self._changes: list[tuple[int, bool]] = [(0, False)]

    def note(self, at_ms: int, state: bool) -> None:
        if self._changes[-1][1] != state:
            self._changes.append((at_ms, state))

    def was(self, state: bool, first_ms: int, last_ms: int) -> bool:
        """Whether this was the case at any moment between two times."""
        ends = [at_ms for at_ms, _ in self._changes[1:]] + [1 << 62]
        return any(
            now is state and began_ms <= last_ms and first_ms <= ended_ms
            for (began_ms, now), ended_ms in zip(self._changes, ends, strict=True)
        )


class _Replay:
    """Applies the records of the log, and collects violations."""

    def __init__(self) -> None:
        self.messages: dict[int, _Message] = {}
        self.by_key: dict[str, _Message] = {}
        self.changes: dict[int, _Change] = {}
        """Changes and pauses by the physical offsets of their marks, without pauses that were carried forward."""
        self.breaches: defaultdict[str, list[str]] = defaultdict(list)
        self.verdict = ManagedVerdict(marks=Counter(), changed=Counter(), breaches={})
        self.pending: defaultdict[tuple[str, str], _History] = defaultdict(_History)
        """Whether groups have pending messages."""
        self.paused: defaultdict[tuple[str, str], _History] = defaultdict(_History)
        self._members: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        """Identities of pending messages by topic and group, and by topic, with an empty group."""
        self._pauses: dict[tuple[str, str], int] = {}
        """Times of the decisions of the pauses that apply, by topic and group."""

    def apply(self, record: Record) -> None:
        if record.is_timed:
            held = held_by(record)
            if held is None:
                self.breaches["unreadable"].append(str(record.physical_offset))
            elif held.identity == record.physical_offset:
                self._stored(record, held)
            else:
                self._carried(record, held)
            return
        mark = mark_of(record)
        if isinstance(mark, GroupMark):
            self._about_many(record, mark)
        elif mark is not None and mark.identity in self.messages:
            self._about_one(record, mark, self.messages[mark.identity])
        elif mark is None and record.topic in TOPICS and _was_due(record):
            self._delivered_at_once(record)
        elif mark is not None or record.topic in TOPICS:
            self.breaches["names no message"].append(str(record.physical_offset))

    def _stored(self, record: Record, held: Held) -> None:
        properties, key = record.properties, record.unique_key
        topic, group = properties["REAL_TOPIC"], properties.get("DELAY_GROUP", "")
        schedule = Schedule.of(properties)
        if (schedule is not None) != (held.details == {"run": "0"}):
            self.breaches["wrong details"].append(key)
        message = _Message(held.identity, key, topic, group, record.stored_ms, held.due_ms, held.due_ms, schedule)
        if key in self.by_key:
            self.breaches["stored twice"].append(key)
        self.messages[held.identity] = self.by_key[key] = message
        for target in {(topic, group), (topic, "")}:
            self._members[target].add(held.identity)
        self.pending[topic, group].note(record.stored_ms, True)

    def _delivered_at_once(self, record: Record) -> None:
        """Note a message whose due time had passed when it arrived: the broker stores it in its topic."""
        key, due_ms = record.unique_key, int(record.properties["TIMER_DELIVER_MS"])
        if key in self.by_key:
            self.breaches["stored twice"].append(key)
        message = _Message(record.physical_offset, key, record.topic, "", record.stored_ms, due_ms, due_ms, None)
        message.end, message.decided_ms, message.ended_ms = "delivered", record.stored_ms, record.stored_ms
        self.messages[message.identity] = self.by_key[key] = message
        self.verdict.delivered += 1

    def _carried(self, record: Record, held: Held) -> None:
        message, place = self.messages.get(held.identity), str(record.physical_offset)
        self.verdict.carried += 1
        if message is None or message.end:
            self.breaches["carried although it has ended"].append(place)
            return
        self.verdict.repeating_carried += message.schedule is not None
        details = {} if message.schedule is None else {"run": str(message.runs)}
        if (held.due_ms, held.details) != (message.due_ms, details):
            self.breaches["carried in another state"].append(place)

    # Statements about one message.

    def _about_one(self, record: Record, mark: Mark, message: _Message) -> None:
        if message.end:
            name = "duplicated" if message.end == mark.kind == "delivered" else f"{mark.kind} after {message.end}"
            self.breaches[name].append(message.key)
            return
        if mark.due_ms != message.due_ms:
            self.breaches["contradicting due time"].append(message.key)
        if mark.kind == "delivered":
            self._delivered(record, mark, message)
        elif mark.kind in ("cancelled", "moved", "fired"):
            target, before_ms = (message.topic, "", message.key), message.due_ms
            self._changed(record, _Change(mark.kind, target, 1, mark.decided_ms, mark.next_due_ms, before_ms))
            if (mark.kind == "cancelled") != (mark.next_due_ms is None):
                self.breaches["contradicting kind"].append(message.key)
        elif mark.kind == "expired" and message.schedule is not None:
            self.verdict.skips += 1
            for problem in problems_of_skip(message.schedule, mark):
                self.breaches[problem].append(f"{message.key} at {record.physical_offset}")
        else:
            self.breaches[f"unexpectedly {mark.kind}"].append(message.key)
        self._continue(record, message, mark.kind, mark.decided_ms, mark.next_due_ms)

    def _delivered(self, record: Record, mark: Mark, message: _Message) -> None:
        self.verdict.delivered += 1
        if record.stored_ms < max(message.due_ms, mark.due_ms):
            self.breaches["early"].append(message.key)
        if self._pauses.keys() & {(message.topic, message.group), (message.topic, "")}:
            self.breaches["delivered while paused"].append(message.key)
        if message.schedule is not None:
            self.verdict.runs += 1
            message.runs += 1
            for problem in problems_of_run(message.schedule, record, mark, message.runs, message.key):
                self.breaches[problem].append(f"{message.key} at {record.physical_offset}")
            self.verdict.runs_late += record.properties.get("TIMER_OUT_MS") != str(mark.due_ms)
        elif mark.next_due_ms is not None or record.unique_key != message.key:
            self.breaches["altered"].append(message.key)
        crc = zlib.crc32(body_of(message.key)) & 0x7FFFFFFF
        if (record.topic, record.properties.get("DELAY_GROUP", ""), record.body_crc) != (
            message.topic, message.group, crc
        ):  # fmt: skip
            self.breaches["altered"].append(message.key)

    def _continue(self, record: Record, message: _Message, kind: str, decided_ms: int, next_due_ms: int | None) -> None:
        """Apply a statement: the message is due at another time, or has ended."""
        if next_due_ms is not None:
            message.due_ms = next_due_ms
            return
        message.end, message.decided_ms, message.ended_ms = kind, decided_ms, record.stored_ms
        target = message.topic, message.group
        for each in {target, (message.topic, "")}:
            self._members[each].discard(message.identity)
        if not self._members[target]:
            self.pending[target].note(record.stored_ms, False)

    def _changed(self, record: Record, change: _Change) -> None:
        self.changes[record.physical_offset] = change
        self.verdict.marks[change.kind] += 1
        if not change.target[2]:
            self.verdict.changed[change.kind] += change.messages

    # Statements about many messages.

    def _about_many(self, record: Record, mark: GroupMark) -> None:
        target = mark.topic, mark.group
        members = self._members[target]
        change = _Change(mark.kind, (*target, ""), len(members), mark.decided_ms, mark.next_due_ms)
        if mark.kind in ("paused", "resumed"):
            self._about_pause(record, mark, change)
            return
        self._changed(record, change)
        if not members:
            self.breaches["change of an empty group"].append(str(record.physical_offset))
        if (mark.kind == "groupCancelled") != (mark.next_due_ms is None):
            self.breaches["contradicting kind"].append(str(record.physical_offset))
        for identity in list(members):
            self._continue(record, self.messages[identity], "cancelled", mark.decided_ms, mark.next_due_ms)

    def _about_pause(self, record: Record, mark: GroupMark, change: _Change) -> None:
        target, place = (mark.topic, mark.group), str(record.physical_offset)
        if mark.kind == "resumed":
            if self._pauses.pop(target, None) is None:
                self.breaches["resumed without a pause"].append(place)
            self._changed(record, change)
        elif target not in self._pauses:
            self._pauses[target] = mark.decided_ms
            self._changed(record, change)
        else:
            self.verdict.pauses_carried += 1
            if self._pauses[target] != mark.decided_ms:
                self.breaches["paused twice"].append(place)
        self.paused[target].note(record.stored_ms, target in self._pauses)


def judge_managed(log_path: Path, sent: Sent, crashes_ms: list[int]) -> ManagedVerdict:
    """Compare the log since the first record with the responses to the producers. BadLogError if the log is invalid."""
    replay = _Replay()
    for record in records(log_path):
        replay.apply(record)
    _judge_messages(replay, sent)
    for change in sent.changes:
        if change.code is not None:
            _judge_response(replay, change)
    _judge_requested(replay, sent.changes)
    verdict, messages = replay.verdict, replay.messages.values()
    verdict.messages = len(messages)
    verdict.unacknowledged = len(sent.messages) - len(sent.places)
    verdict.denied = sum(bool(change.code) for change in sent.changes)
    verdict.pending_at = tuple(
        sum(each.stored_ms <= at_ms and (not each.end or each.ended_ms > at_ms) for each in messages)
        for at_ms in crashes_ms
    )
    verdict.paused_at = tuple(
        sum(each.was(True, at_ms, at_ms) for each in replay.paused.values()) for at_ms in crashes_ms
    )
    verdict.breaches = {name: tuple(found) for name, found in replay.breaches.items() if found}
    return verdict


def _judge_messages(replay: _Replay, sent: Sent) -> None:
    breaches = replay.breaches
    for key, place in sent.places.items():
        message = replay.by_key.get(key)
        if message is None:
            breaches["lost"].append(key)
        elif message.identity != place:
            breaches["wrong place"].append(key)
    for message in replay.messages.values():
        request = sent.messages.get(message.key)
        if request is None:
            breaches["never sent"].append(message.key)
        elif not _is_due_as_requested(request, message):
            breaches["wrong due time"].append(message.key)
        if not message.end:
            breaches["pending"].append(message.key)


def _was_due(record: Record) -> bool:
    """Whether the requested due time had passed when the message was stored."""
    return int(record.properties.get("TIMER_DELIVER_MS", 1 << 62)) <= record.stored_ms


def _is_due_as_requested(request: Request, message: _Message) -> bool:
    """Whether the first due time is the requested one; a delay counts from a time between birth and storage.

    A due time that had passed when the message arrived becomes the time of arrival.
    """
    properties = request.properties
    if "TIMER_DELIVER_MS" in properties:
        requested_ms = int(properties["TIMER_DELIVER_MS"])
        return message.first_due_ms == requested_ms or requested_ms < message.first_due_ms <= message.stored_ms
    if message.schedule is not None:
        earliest_ms, latest_ms = map(message.schedule.following, (request.born_ms, message.stored_ms))
    else:
        earliest_ms, latest_ms = (
            at_ms + int(properties["TIMER_DELAY_MS"]) for at_ms in (request.born_ms, message.stored_ms)
        )
    return earliest_ms <= message.first_due_ms <= latest_ms


def _judge_response(replay: _Replay, change: Change) -> None:
    if change.code:
        problem = _problem_of_denial(replay, change)
    elif change.place in replay.changes:
        problem = _problem_of_change(replay.changes[change.place], change)
    elif change.place:
        problem = "names another record"
    else:
        problem = _problem_of_repetition(replay, change)
    if problem:
        replay.breaches[problem].append(f"{change.action} of {':'.join(change.target)} at {change.asked_ms}")


def _problem_of_change(made: _Change, change: Change) -> str:
    """Compare a response with the mark that it names."""
    if made.target != change.target or made.kind != _KINDS[change.action][not change.key]:
        return "names another change"
    if made.messages != change.changed:
        return "wrong number of messages"
    if made.next_due_ms != change.due_ms:
        return "wrong new due time"
    if made.next_due_ms is not None:
        delay_ms = change.delay_ms or 0
        if not change.asked_ms + delay_ms <= made.next_due_ms <= change.answered_ms + delay_ms + _TOLERANCE_MS:
            return "not due as requested"
    if not change.asked_ms <= made.decided_ms <= change.answered_ms:
        return "decided at another time"
    if change.is_final and made.decided_ms - made.due_ms > _OVERDUE_MS:
        return "overdue at the end"
    return ""


def _problem_of_repetition(replay: _Replay, change: Change) -> str:
    """Judge a response that what was requested was the case already."""
    target = change.topic, change.group
    if change.action in ("pause", "resume"):
        is_true = replay.paused[target].was(change.action == "pause", change.asked_ms, change.answered_ms)
    elif change.action != "cancel" or change.changed:
        is_true = False
    elif change.key:
        message = replay.by_key[change.key]
        is_true = message.end == "cancelled" and message.ended_ms <= change.answered_ms
    else:
        cancelled = (each for each in replay.changes.values() if each.target == change.target)
        is_true = replay.pending[target].was(False, change.asked_ms, change.answered_ms) and any(
            each.kind == "groupCancelled" and each.decided_ms <= change.answered_ms for each in cancelled
        )
    return "" if is_true else "untrue repetition"


def _problem_of_denial(replay: _Replay, change: Change) -> str:
    """Judge a response that nothing is pending."""
    if not change.key:
        is_true = replay.pending[change.topic, change.group].was(False, change.asked_ms, change.answered_ms)
        return "" if is_true and change.fate == "unknown" else "denied"
    message = replay.by_key[change.key]
    if not message.end or message.ended_ms > change.answered_ms:
        return "denied"
    at_ms = message.ended_ms if message.end == "delivered" else message.decided_ms
    # What happened is unknown when the records of the message have been deleted.
    return "" if change.fate == "unknown" or (change.fate, change.fate_ms) == (message.end, at_ms) else "wrong end"


def _judge_requested(replay: _Replay, changes: list[Change]) -> None:
    """Find marks that no request explains: neither one whose response names the mark, nor one without a response."""
    named = {change.place for change in changes if change.code == 0}
    unanswered = Counter(
        (_KINDS[change.action][not change.key], change.target) for change in changes if change.code is None
    )
    for place, made in replay.changes.items():
        if place in named:
            continue
        replay.verdict.unanswered += 1
        if unanswered[made.kind, made.target] <= 0:
            replay.breaches["never requested"].append(f"{made.kind} at {place}")
        unanswered[made.kind, made.target] -= 1
