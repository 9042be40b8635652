"""Form 2 of `__DMQ_DUE` and `__DMQ_MARK`: statements about one scheduled message, complete and with a checksum.

Both begin with `VERSION:PLACE:` and end with `:CRC`, in this and every later version, so that a program can verify the
statements of all versions:

- VERSION is 2. A statement of any version consists of at most 1,024 printable ASCII characters.
- PLACE is the physical offset of the record that has the property, in 20 digits. It tells a statement from the copies
  that RocketMQ's broker makes when it stores a message again. Its width is fixed because it is known only after the
  record's size.
- CRC is the CRC32 of everything before the last colon, in 8 lower-case hexadecimal digits.

`__DMQ_DUE` is `2:PLACE:DUE:CRC` on the first record of a message, and `2:PLACE:DUE:IDENTITY:DETAILS:CRC` on a record
that carries the message forward. IDENTITY is the place of the first record and never changes. DETAILS takes over what
marks stated before, such as the number of a run. A first record with details has the second form, with an empty
IDENTITY; the detail `replaces` ends another message.

`__DMQ_MARK` is `2:PLACE:KIND:DECIDED:IDENTITY:RECORD:DUE:NEXT:QUEUE:DETAILS:CRC`. A statement is complete: the newest
one about an identity, in the order of the log, decides, so a damaged one costs only itself. With NEXT, the message is
pending and due then; without NEXT, it has ended, for good. Format: docs/formats/store.md; reasons: docs/decisions/0054.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple
from zlib import crc32

from delaymq.message.errors import IllegalMessageError, NewerFormError
from delaymq.message.names import DUE, MARK

VERSION: Final = 2
PLACE_DIGITS: Final = 20
"""Also in `Statement.at`, which spells out both widths for speed, as does _CRC_DIGITS."""
MAX_NUMBER: Final = (1 << 63) - 1
"""Limit of physical offsets, queue offsets and times, which are signed numbers of 8 bytes."""
MAX_TEXT_BYTES: Final = 1_024
"""Limit of a statement, in all versions."""
_CRC_DIGITS: Final = 8
_SEALED = re.compile(rf"(\d{{1,9}}):(\d{{{PLACE_DIGITS}}}):(.*):([0-9a-f]{{{_CRC_DIGITS}}})\Z", re.ASCII)
_REPLACES: Final = "replaces"
"""Detail of a first record: identity and due time of the pending message that it ends, separated by a full stop."""
RUN: Final = "run"
"""Detail of a repeating message: in a mark, the number of the run; in a due time, that of the last run before it."""
_MAX_RUN_DIGITS: Final = 18
_DETAIL = re.compile(r"([a-z][A-Za-z]*)=([A-Za-z0-9_.-]*)\Z", re.ASCII)


class TimedMarkKind(StrEnum):
    """Reason of a change. Whether the message is pending afterwards depends only on `next_due_ms`."""

    DELIVERED = "delivered"
    """Stored in its real topic; with a next due time, one run of a repeating message."""
    DROPPED = "dropped"
    """Stored in a dead-letter topic, or given up."""
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    MOVED = "moved"
    FIRED = "fired"
    """Due immediately, on request."""
    CARRIED = "carried"
    """Stored again in the schedule topic, by the record with the mark. Records of the timer topic state this in their
    due time."""


_KINDS: Final = {str(kind): kind for kind in TimedMarkKind}


class GroupMarkKind(StrEnum):
    """Statements about many messages (`group_marks`)."""

    CANCELLED = "groupCancelled"
    MOVED = "groupMoved"
    FIRED = "groupFired"
    """Due immediately, on request."""
    PAUSED = "paused"
    RESUMED = "resumed"


_GROUP_KINDS: Final = frozenset(map(str, GroupMarkKind))


class Statement(NamedTuple):
    """A statement without its place, which the store adds when it appends the record."""

    name: str
    """Name of the property."""
    body: str
    due_ms: int | None = None
    """Due time that the statement of a record of the timer topic contains; None for a mark."""

    @property
    def property_bytes(self) -> int:
        """Size in the record's properties: name, statement, and a separator of each kind."""
        return len(self.name) + len(self.body) + _FRAME_BYTES

    def at(self, place: int) -> str:
        """Return the statement of the record at `place`."""
        text = f"{VERSION}:{str(place).zfill(20)}:{self.body}"
        return f"{text}:{crc32(text.encode()):08x}"


_FRAME_BYTES: Final = 2 + len(f"{VERSION}:") + PLACE_DIGITS + len(":") + len(":") + _CRC_DIGITS


@dataclass(frozen=True, slots=True)
class TimedDue:
    """Statement of a record that holds a scheduled message: the message is due at `due_ms`."""

    place: int
    due_ms: int
    identity: int
    """Place of the first record of the message; in that record, equal to `place`."""
    details: Mapping[str, str] = field(default_factory=dict)
    """As in `TimedMark`."""

    def statement(self) -> Statement:
        """Return the statement without its place."""
        if self.identity == self.place and not self.details:
            return checked_statement(DUE, str(self.due_ms), self.place, self.due_ms)
        return carried_due(self.due_ms, None if self.identity == self.place else self.identity, self.details)

    @property
    def replaced(self) -> int | None:
        """Identity of the pending message that this one replaces; None without one."""
        identity = self.details.get(_REPLACES, "").partition(".")[0]
        return int(identity) if identity.isdigit() and len(identity) < PLACE_DIGITS else None

    @property
    def run(self) -> int | None:
        """Number of the last run before this record; None if the message does not repeat."""
        return _run(self.details)

    @property
    def replaced_due_ms(self) -> int:
        """Due time of the replaced message."""
        due_ms = self.details.get(_REPLACES, "").partition(".")[2]
        return int(due_ms) if due_ms.isdigit() and len(due_ms) < PLACE_DIGITS else 0

    def __str__(self) -> str:
        return self.statement().at(self.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedMark:
    """Statement of a record that ends a pending message or changes its due time."""

    place: int
    kind: TimedMarkKind
    decided_ms: int
    """Time of the decision, by the broker's clock."""
    identity: int
    record: int
    """Place of the record that held the message at that time."""
    due_ms: int
    """Due time until then."""
    next_due_ms: int | None = None
    """Due time from then on; None: the message has ended."""
    queue: tuple[int, int] | None = None
    """Queue id and queue offset of `record` in the schedule topic; None for a record of the timeline's topic."""
    details: Mapping[str, str] = field(default_factory=dict)
    """Further facts, such as the number of a run. Keys are words in camel case, values match `[A-Za-z0-9_.-]*`."""

    @property
    def run(self) -> int | None:
        """Number of the run of a repeating message; None if the mark is of no run."""
        return _run(self.details)

    def statement(self) -> Statement:
        """Return the statement without its place. IllegalMessageError."""
        return mark_of(
            self.kind,
            self.decided_ms,
            self.identity,
            self.record,
            self.due_ms,
            self.next_due_ms,
            self.queue,
            self.details,
        )

    def __str__(self) -> str:
        return self.statement().at(self.place)


def place_of(text: str) -> int | None:
    """Return the place that a statement of any version names; None if `text` is none, or its checksum differs."""
    opened = _opened(text)
    return None if opened is None else opened[1]


def parse_own_due(text: str, place: int) -> TimedDue | None:
    """Return the due time that the record at `place` states; None if the text is damaged or another record's.

    Raises NewerFormError if it is sound, the record's own, and of an unknown form: ignoring it could deliver early.
    """
    body = own_body(text, place)
    if body is None:
        return None
    words = body.split(":")
    if len(words) == 1:
        return TimedDue(place, stated_number(body, text), place)
    if len(words) != 3:
        raise newer_form(text)
    due, identity, details = words
    return TimedDue(
        place, stated_number(due, text), stated_number(identity, text) if identity else place, _details(details, text)
    )


def parse_own_mark(text: str, place: int) -> TimedMark | None:
    """Return the mark of the record at `place`; None if the text is damaged, another record's, or about many messages.

    Raises NewerFormError if it is sound, the record's own, and of an unknown form or kind: it must not be ignored.
    """
    body = own_body(text, place)
    if body is None:
        return None
    words = body.split(":")
    if words[0] in _GROUP_KINDS:
        return None
    kind = _KINDS.get(words[0])
    if len(words) != 8 or kind is None:
        raise newer_form(text)
    decided, identity, record, due, next_due, queue, details = words[1:]
    queue_id, _, queue_offset = queue.partition(".")
    return TimedMark(
        place=place,
        kind=kind,
        decided_ms=stated_number(decided, text),
        identity=stated_number(identity, text),
        record=stated_number(record or identity, text),
        due_ms=stated_number(due, text),
        next_due_ms=stated_number(next_due, text) if next_due else None,
        queue=(stated_number(queue_id, text), stated_number(queue_offset, text)) if queue else None,
        details=_details(details, text),
    )


def sound_statement(text: str, place: int) -> str | None:
    """Return the statement of the record at `place`, with one flipped bit corrected; None if it is damaged or another
    record's."""
    if place_of(text) == place:
        return text
    return None if place_of(text) is not None else corrected(text, place)


def corrected(text: str, place: int) -> str | None:
    """Return the statement of the record at `place` from which `text` differs by one flipped bit; None without one.

    There is at most one, because CRC32 detects every error of two bits. A flip that makes a separator of properties
    out of a letter is not corrected: the property has then lost its end. Statements of later versions are not
    corrected.
    """
    raw = bytearray(text.encode("utf-8", "surrogateescape"))
    if len(raw) > MAX_TEXT_BYTES:
        return None
    # Statements of other records, and texts of clients, differ from the known beginning in more than one bit.
    beginning = f"{VERSION}:{place:0{PLACE_DIGITS}d}:".encode()
    flipped = [one ^ other for one, other in zip(raw, beginning, strict=False) if one != other]
    if len(raw) < len(beginning) or len(flipped) > 1 or (flipped and flipped[0].bit_count() > 1):
        return None
    if flipped:
        candidate = (beginning + raw[len(beginning) :]).decode("ascii", "replace")
        return candidate if place_of(candidate) == place else None
    for index in range(len(beginning), len(raw)):
        for bit in range(8):
            raw[index] ^= 1 << bit
            candidate = raw.decode("ascii", "replace")
            raw[index] ^= 1 << bit
            if place_of(candidate) == place:
                return candidate
    return None


def end_of(kind: str, decided_ms: int, identity: int, record: int, due_ms: int) -> Statement:
    """Return the mark that ends a message of the timeline: `TimedMark` without further facts, for the hot path."""
    body = f"{kind}:{decided_ms}:{identity}:{'' if record == identity else record}:{due_ms}:::"
    return tuple.__new__(Statement, (MARK, body, None))  # faster than Statement(…)


def mark_of(
    kind: str,
    decided_ms: int,
    identity: int,
    record: int,
    due_ms: int,
    next_due_ms: int | None = None,
    queue: tuple[int, int] | None = None,
    details: Mapping[str, str] = MappingProxyType({}),
) -> Statement:
    """Return the mark of a message: `TimedMark` without its place. IllegalMessageError."""
    stated_record = "" if record == identity else record
    next_due = "" if next_due_ms is None else next_due_ms
    stated_queue = "" if queue is None else f"{queue[0]}.{queue[1]}"
    body = f"{kind}:{decided_ms}:{identity}:{stated_record}:{due_ms}:{next_due}:{stated_queue}:{_joined(details)}"
    return checked_statement(MARK, body, decided_ms, identity, record, due_ms, next_due_ms or 0, *(queue or ()))


def carried_due(due_ms: int, identity: int | None, details: Mapping[str, str] = MappingProxyType({})) -> Statement:
    """Return the statement of a record that carries a message forward; without an identity, of a first record.

    IllegalMessageError.
    """
    stated = "" if identity is None else identity
    return checked_statement(DUE, f"{due_ms}:{stated}:{_joined(details)}", due_ms, identity or 0)._replace(
        due_ms=due_ms
    )


def checked_statement(name: str, body: str, *numbers: int) -> Statement:
    """Return a statement whose body contains `numbers`; raise IllegalMessageError if it could not be read back."""
    if min(numbers) < 0 or max(numbers) > MAX_NUMBER:
        raise IllegalMessageError(f"{body!r} contains a number outside 0 to {MAX_NUMBER}")
    statement = Statement(name, body)
    if statement.property_bytes - len(name) - 2 > MAX_TEXT_BYTES:
        raise IllegalMessageError(f"a statement has {len(body)} characters: use fewer or shorter details")
    return statement


MAX_FIRST_DUE_BYTES: Final = Statement(DUE, str(MAX_NUMBER)).property_bytes
"""Maximum size of the result of `first_due` in a record's properties."""


def first_due(due_ms: int) -> Statement:
    """Return the statement of the first record of a message that is due at `due_ms`."""
    return Statement(DUE, str(due_ms), due_ms)


def replacing_due(
    due_ms: int, identity: int, replaced_due_ms: int, details: Mapping[str, str] = MappingProxyType({})
) -> Statement:
    """Return the statement of the first record of a message that ends the one with this identity and due time."""
    return carried_due(due_ms, None, {_REPLACES: f"{identity}.{replaced_due_ms}", **details})


def _run(details: Mapping[str, str]) -> int | None:
    text = details.get(RUN, "")
    return int(text) if text.isdigit() and len(text) <= _MAX_RUN_DIGITS else None


def _joined(details: Mapping[str, str]) -> str:
    words = [f"{key}={value}" for key, value in details.items()]
    for word in words:
        if _DETAIL.match(word) is None:
            raise IllegalMessageError(f"{word!r} is not a detail: use a word in camel case and [A-Za-z0-9_.-]")
    return ",".join(words)


def _opened(text: str) -> tuple[int, int, str] | None:
    """Return version, place and body of a sound statement."""
    match = _SEALED.match(text) if len(text) <= MAX_TEXT_BYTES and text.isascii() else None
    if match is None or crc32(text[: match.end(3)].encode("ascii")) != int(match[4], 16):
        return None
    return int(match[1]), int(match[2]), match[3]


def own_body(text: str, place: int) -> str | None:
    """Return what the sound statement of the record at `place` says between its place and its checksum; None if the
    text is damaged or another record's. NewerFormError."""
    opened = _opened(text)
    if opened is None or opened[1] != place:
        return None
    if opened[0] != VERSION:
        raise newer_form(text)
    return opened[2]


def newer_form(text: str) -> NewerFormError:
    """Return the error for a sound statement that only a newer program knows."""
    return NewerFormError(f"{text!r} has a form that this program does not know: use the version that wrote the store")


def stated_number(word: str, text: str) -> int:
    """Return a number that the statement `text` contains. NewerFormError."""
    if word.isdigit() and len(word) <= PLACE_DIGITS and int(word) <= MAX_NUMBER:
        return int(word)
    raise newer_form(text)


def _details(words: str, text: str) -> dict[str, str]:
    details = {}
    for word in words.split(",") if words else ():
        match = _DETAIL.match(word)
        if match is None or match[1] in details:
            raise newer_form(text)
        details[match[1]] = match[2]
    return details
