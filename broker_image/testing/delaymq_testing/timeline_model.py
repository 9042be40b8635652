"""Model of a log with timed messages, to find out whether form 2 of due times and marks suffices (decision 54).

`Model` performs random operations: it schedules, moves, cancels, delivers, repeats and carries messages, deletes old
segments, flushes, and loses power. It states each of them in a simulated log, with the properties that a broker would
write, and records separately which messages are pending then. `fold` derives the pending messages from the log alone.
The model compares the two after each crash, and after the loss of any single statement.

`bugs` plants a mistake (BUGS), which the model has to find.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from zlib import crc32

from delaymq.message.timed_marks import PLACE_DIGITS, TimedDue, TimedMark, TimedMarkKind, parse_own_due, parse_own_mark

BUGS: Final = {
    "trust-damaged": "a statement counts although its checksum differs",
    "trust-copies": "a mark counts in a record to which RocketMQ's broker copied it",
    "trust-rolled": "a due time counts in a record to which RocketMQ's broker copied it",
    "chain-by-due": "a mark counts only if the due time that it states was in effect",
    "record-from-mark": "the record that holds a message is taken from marks",
    "carried-is-new": "a record that carries a message forward stands for another message",
    "carry-first-due": "a message is carried with its first due time instead of the current one",
    "shared-key": "messages that are due at the same time replace each other",
    "order-by-record": "equal due times are delivered in the order of the records that hold the messages",
    "delete-appended": "a segment is deleted although the records carried from it are not flushed",
    "delete-moved": "a segment is deleted although moved messages in it are pending",
    "snapshot-appended": "a snapshot is published before the log that it describes is flushed",
    "snapshot-before-log": "a snapshot is used although the log begins after it",
    "position-covers-later": "the position of a snapshot covers statements that are newer than the snapshot",
}
RECORD_BYTES: Final = 100
SEGMENT_BYTES: Final = 1_500


class Pending(NamedTuple):
    """A pending message; the order of tuples is the order of delivery."""

    due_ms: int
    identity: int
    record: int
    """Place of the record that holds it."""
    version: int
    """Place of the newest statement about it."""


@dataclass(slots=True)
class Item:
    """A record of the simulated log."""

    place: int
    due: str = ""
    mark: str = ""


@dataclass(slots=True)
class Snapshot:
    """Saved state: all messages up to `log_end`, of which those up to `position` and the `ended` ones have ended."""

    log_end: int
    position: tuple[int, int]
    known: dict[int, Pending]
    ended: frozenset[int]


class _Fact(NamedTuple):
    """A statement about one message, recorded apart from the log."""

    place: int
    due_ms: int | None
    """None: the message has ended."""
    holds: bool
    """Whether the record holds the message."""


@dataclass(slots=True)
class _Truth:
    """Pending messages, and all statements about each message, by identity."""

    due_ms: dict[int, int] = field(default_factory=dict)
    facts: dict[int, tuple[_Fact, ...]] = field(default_factory=dict)

    def copy(self) -> _Truth:
        return _Truth(dict(self.due_ms), dict(self.facts))

    def state(self, identity: int, fact: _Fact) -> None:
        self.facts[identity] = (*self.facts.get(identity, ()), fact)
        if fact.due_ms is None:
            del self.due_ms[identity]
        else:
            self.due_ms[identity] = fact.due_ms

    def without(self, identity: int, place: int, start: int) -> tuple[int, int] | None:
        """Return due time and holder of a message if the statement at `place`, and all before `start`, are missing."""
        facts = [fact for fact in self.facts[identity] if fact.place != place and fact.place >= start]
        held = [fact.place for fact in facts if fact.holds]
        due_ms = facts[-1].due_ms if held else None
        return None if due_ms is None else (due_ms, held[-1])


class ModelError(AssertionError):
    """The log does not lead to the pending messages that the operations left."""


def fold(items: list[Item], bugs: frozenset[str] = frozenset(), saved: Snapshot | None = None) -> dict[int, Pending]:
    """Return the pending messages by identity: the newest statement about each decides, and an end is final."""
    states: dict[int, Pending] = {}
    ended: set[int] = set()
    if saved is not None:
        ended |= saved.ended
        states |= {identity: state for identity, state in saved.known.items() if identity not in ended}
    for item in items:
        place = item.place
        if saved is not None and place < saved.log_end:
            continue
        if item.due:
            due = _due_of(item, bugs)
            if due is not None and due.identity not in ended:
                identity = place if "carried-is-new" in bugs else due.identity
                states[identity] = Pending(due.due_ms, identity, place, place)
        elif item.mark:
            mark = _mark_of(item, bugs)
            if mark is not None:
                _apply(mark, states, ended, bugs)
    if "shared-key" in bugs:
        states = {state.identity: state for state in {state.due_ms: state for state in states.values()}.values()}
    if saved is None:
        return states
    return {identity: state for identity, state in states.items() if not _is_covered(state, saved, bugs)}


def _due_of(item: Item, bugs: frozenset[str]) -> TimedDue | None:
    text = _resealed(item.due) if "trust-damaged" in bugs else item.due
    place = int(text.split(":")[1]) if "trust-rolled" in bugs else item.place
    return parse_own_due(text, place)


def _mark_of(item: Item, bugs: frozenset[str]) -> TimedMark | None:
    text = _resealed(item.mark) if "trust-damaged" in bugs else item.mark
    place = int(text.split(":")[1]) if "trust-copies" in bugs else item.place
    return parse_own_mark(text, place)


def _apply(mark: TimedMark, states: dict[int, Pending], ended: set[int], bugs: frozenset[str]) -> None:
    known = states.get(mark.identity)
    if mark.identity in ended or ("chain-by-due" in bugs and known is not None and known.due_ms != mark.due_ms):
        return
    if mark.next_due_ms is None:
        states.pop(mark.identity, None)
        ended.add(mark.identity)
    elif known is not None:
        record = mark.record if "record-from-mark" in bugs else known.record
        states[mark.identity] = Pending(mark.next_due_ms, mark.identity, record, mark.place)


def _is_covered(state: Pending, saved: Snapshot, bugs: frozenset[str]) -> bool:
    older = state.version < saved.log_end or "position-covers-later" in bugs
    return older and (state.due_ms, state.identity) <= saved.position


def _resealed(text: str) -> str:
    """Return the statement with the checksum of its text."""
    body = text.rpartition(":")[0]
    return f"{body}:{crc32(body.encode()):08x}"


class Model:
    """A broker with a log of fixed-size records; `step` performs one random operation and checks the result."""

    def __init__(self, seed: int, bugs: frozenset[str] = frozenset()) -> None:
        self._random = random.Random(seed)
        self._bugs = bugs
        self._now_ms = 1_000_000
        self._items: list[Item] = []
        self._start = 0
        self._end = 0
        self._flushed = 0
        self._states: dict[int, Pending] = {}
        self._known: dict[int, Pending] = {}
        """Newest state of messages that may have ended, as the files of an index would contain it."""
        self._taken: Snapshot | None = None
        self._published: Snapshot | None = None
        self._truth = _Truth()
        self._history: list[tuple[int, _Truth]] = [(0, _Truth())]
        """Truth at each end of the log that a crash can lead to."""
        self.counts: dict[str, int] = {}
        """Number of performed operations by name."""

    def step(self) -> None:
        """Perform one operation. Raises ModelError if the log leads to other pending messages."""
        operations = {
            self._send: 30, self._deliver: 40, self._move: 10, self._cancel: 6, self._copy: 8, self._carry: 8,
            self._delete: 8, self._flush: 15, self._snapshot: 6, self._tick: 20, self._kill: 2, self._lose_power: 3,
            self._damage: 6,
        }  # fmt: skip
        (operation,) = self._random.choices(list(operations), list(operations.values()))
        if operation():
            name = operation.__name__.lstrip("_")
            self.counts[name] = self.counts.get(name, 0) + 1

    # Statements

    def _append(self, *, due: str = "", mark: str = "") -> None:
        """Append a record, after the truth contains its statement."""
        self._items.append(Item(self._end, due, mark))
        self._end += RECORD_BYTES
        self._history.append((self._end, self._truth.copy()))

    def _state(self, state: Pending) -> None:
        self._states[state.identity] = self._known[state.identity] = state
        self._truth.state(state.identity, _Fact(state.version, state.due_ms, state.version == state.record))

    def _hold(self, due_ms: int, identity: int, stated_ms: int) -> None:
        """Append a record that holds a message and states `stated_ms`, which differs from `due_ms` only by mistake."""
        self._state(Pending(due_ms, identity, self._end, self._end))
        self._append(due=str(TimedDue(self._end, stated_ms, identity)))

    def _mark(self, state: Pending, kind: TimedMarkKind, next_due_ms: int | None = None) -> None:
        if next_due_ms is not None:
            self._state(Pending(next_due_ms, state.identity, state.record, self._end))
        else:
            del self._states[state.identity]
            self._truth.state(state.identity, _Fact(self._end, None, False))
        mark = TimedMark(
            place=self._end,
            kind=kind,
            decided_ms=self._now_ms,
            identity=state.identity,
            record=state.record,
            due_ms=state.due_ms,
            next_due_ms=next_due_ms,
        )
        self._append(mark=str(mark))

    def _any_pending(self) -> Pending | None:
        return self._random.choice(list(self._states.values())) if self._states else None

    def _later(self) -> int:
        return self._now_ms + self._random.randint(-20, 100)

    def _send(self) -> bool:
        if len(self._states) > 40:
            return False
        due_ms = self._later()
        self._hold(due_ms, self._end, due_ms)
        return True

    def _move(self) -> bool:
        state = self._any_pending()
        if state is not None:
            kind = self._random.choice((TimedMarkKind.MOVED, TimedMarkKind.FIRED))
            self._mark(state, kind, self._now_ms if kind is TimedMarkKind.FIRED else self._later())
        return state is not None

    def _cancel(self) -> bool:
        state = self._any_pending()
        if state is not None:
            self._mark(state, self._random.choice((TimedMarkKind.CANCELLED, TimedMarkKind.EXPIRED)))
        return state is not None

    def _deliver(self) -> bool:
        due = sorted(state for state in self._states.values() if state.due_ms <= self._now_ms)
        if "order-by-record" in self._bugs:
            due.sort(key=lambda state: (state.due_ms, state.record))
        if not due:
            return False
        fails = self._random.random() < 0.1
        state = due[self._random.randrange(len(due))] if fails else due[0]
        earliest = min((due_ms, identity) for identity, due_ms in self._truth.due_ms.items())
        if not fails and (state.due_ms, state.identity) != earliest:
            raise ModelError(f"{state} is delivered before {earliest}")
        repeats = self._random.random() < 0.2
        self._mark(state, TimedMarkKind.DELIVERED, self._later() if repeats else None)
        return True

    def _copy(self) -> bool:
        """Let RocketMQ's broker store a record again, with its properties."""
        if not self._items:
            return False
        copied = self._random.choice(self._items)
        self._append(due=copied.due, mark=copied.mark)
        return True

    # Retention

    def _oldest(self) -> int:
        """Return the end of the oldest segment."""
        return self._items[0].place // SEGMENT_BYTES * SEGMENT_BYTES + SEGMENT_BYTES if self._items else 0

    def _carry(self) -> bool:
        limit = self._oldest()
        held = [state for state in self._states.values() if state.record < limit]
        if not held or limit > self._flushed:
            return False
        for state in sorted(held, key=lambda each: each.record):
            stated_ms = state.due_ms
            if "carry-first-due" in self._bugs:
                (stated_ms,) = (int(item.due.split(":")[2]) for item in self._items if item.place == state.record)
            self._hold(state.due_ms, state.identity, stated_ms)
            self._check("carrying")
        return True

    def _delete(self) -> bool:
        limit = self._oldest()
        end = self._end if "delete-appended" in self._bugs else self._flushed
        if not self._items or limit > self._flushed:
            return False
        states = fold([item for item in self._items if item.place < end])
        held = [state for state in states.values() if state.record < limit]
        if "delete-moved" in self._bugs:
            held = [state for state in held if state.version == state.record]
        if held:
            return False
        self._items = [item for item in self._items if item.place >= limit]
        self._start = limit
        self._check("deleting a segment")
        return True

    # Durability

    def _flush(self) -> bool:
        self._flushed = self._end
        self._history = [entry for entry in self._history if entry[0] >= self._flushed]
        self._publish()
        return True

    def _publish(self) -> None:
        if self._taken is not None and (self._taken.log_end <= self._flushed or "snapshot-appended" in self._bugs):
            self._published, self._taken = self._taken, None

    def _snapshot(self) -> bool:
        pending = self._states
        first = min(((state.due_ms, state.identity) for state in pending.values()), default=(1 << 62, 0))
        position = (first[0], first[1] - 1)
        ended = frozenset(
            identity
            for identity, state in self._known.items()
            if identity not in pending and (state.due_ms, identity) > position
        )
        self._taken = Snapshot(self._end, position, dict(self._known), ended)
        self._known = dict(pending) if self._random.random() < 0.3 else self._known
        self._publish()
        return True

    def _tick(self) -> bool:
        self._now_ms += self._random.randint(1, 40)
        return True

    def _kill(self) -> bool:
        """Kill the process: the log remains complete."""
        self._recover("a kill")
        return True

    def _lose_power(self) -> bool:
        """Lose the end of the log, but nothing that was flushed."""
        self._end, truth = self._random.choice(self._history)
        self._truth = truth.copy()
        self._items = [item for item in self._items if item.place < self._end]
        self._history = [entry for entry in self._history if entry[0] <= self._end]
        self._taken = None
        self._recover("a power loss")
        self._flushed = self._end
        self._history = self._history[-1:]
        return True

    def _recover(self, cause: str) -> None:
        self._taken = None
        states = self._check(cause)
        published = self._published
        # If the log begins after a snapshot, statements between the two are missing.
        if published is not None and (published.log_end >= self._start or "snapshot-before-log" in self._bugs):
            saved = fold(self._items, self._bugs, published)
            self.counts["snapshot used"] = self.counts.get("snapshot used", 0) + 1
            if saved != states:
                raise ModelError(f"after {cause}, the snapshot leads to {saved}, and the log to {states}")
        self._states = states
        # The files of the index are rebuilt.
        self._known = dict(states)
        if self._random.random() < 0.5:
            self._published = None

    # Checks

    def _check(self, cause: str) -> dict[int, Pending]:
        states = fold(self._items, self._bugs)
        held = {item.place for item in self._items if item.due and self._own(item) is not None}
        found = {identity: state.due_ms for identity, state in states.items()}
        if found != self._truth.due_ms or not held.issuperset(state.record for state in states.values()):
            raise ModelError(f"after {cause}, the log leads to {found}; pending are {self._truth.due_ms}")
        return states

    def _damage(self) -> bool:
        """Change a digit in one statement, and check that the other statements about its message decide."""
        stated = [index for index, item in enumerate(self._items) if self._own(item) is not None]
        if not stated:
            return False
        index = self._random.choice(stated)
        victim = self._items[index]
        identity = self._own(victim)
        assert identity is not None
        items = list(self._items)
        text = victim.due or victim.mark
        digits = [at for at, letter in enumerate(text) if letter.isdigit() and at > PLACE_DIGITS + 2]
        at = self._random.choice(digits)
        text = text[:at] + str((int(text[at]) + self._random.randint(1, 9)) % 10) + text[at + 1 :]
        items[index] = Item(victim.place, due=text) if victim.due else Item(victim.place, mark=text)
        found = {each: (state.due_ms, state.record) for each, state in fold(items, self._bugs).items()}
        expected = {each: (state.due_ms, state.record) for each, state in self._states.items() if each != identity}
        remaining = self._truth.without(identity, victim.place, self._start)
        if remaining is not None:
            expected[identity] = remaining
        if found != expected:
            raise ModelError(f"without {victim}, the log leads to {found}; the other statements to {expected}")
        return True

    @staticmethod
    def _own(item: Item) -> int | None:
        """Return the identity of the message about which a record makes a statement of its own."""
        if item.due:
            due = parse_own_due(item.due, item.place)
            return None if due is None else due.identity
        mark = parse_own_mark(item.mark, item.place) if item.mark else None
        return None if mark is None else mark.identity
