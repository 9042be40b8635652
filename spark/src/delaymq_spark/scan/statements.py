"""Statements of form 2 about timed messages (docs/formats/store.md).

Statements of the usual shape are parsed as columns; all others, one at a time, by `delaymq.message.timed_marks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Self
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from delaymq.message.errors import NewerFormError
from delaymq.message.group_marks import GroupMark, is_group_mark, parse_own_group_mark
from delaymq.message.marks import DUE_WIDTH
from delaymq.message.names import DUE, MARK
from delaymq.message.timed_marks import (
    MAX_TEXT_BYTES,
    PLACE_DIGITS,
    RUN,
    VERSION,
    TimedMarkKind,
    corrected,
    parse_own_due,
    parse_own_mark,
    place_of,
    sound_statement,
)

from delaymq_spark.scan.frames import gather
from delaymq_spark.scan.properties import Properties, digits, text

KINDS: Final = tuple(str(kind) for kind in TimedMarkKind)
NONE: Final = -1
"""Absent number."""
_CRC_BYTES: Final = 8
_LEAST_BYTES: Final = len(f"{VERSION}:") + PLACE_DIGITS + len("::") + _CRC_BYTES
_FORM_1_COLONS: Final = (16, 21)
"""Positions of the separators in `__DMQ_DUE` of form 1. A statement of form 2 has digits there, of which one flipped
bit changes only one.
"""
_DUE_FIELDS: Final = 4
"""Number of fields in the due time of a first record."""
_MARK_FIELDS: Final = 11
_PLACE, _MARK_KIND, _DECIDED, _IDENTITY, _RECORD, _MARK_DUE, _NEXT, _QUEUE, _DETAILS = range(1, 10)
_DUE: Final = 2
_RUN: Final = f"{RUN}="
"""Beginning of the details of a repeating message."""
_MAX_DIGITS: Final = 18
"""Limit of `digits`: statements with longer numbers are parsed one at a time."""
_MAX_QUEUE_ID: Final = (1 << 31) - 1
_NIBBLES: Final = np.full(256, -1, np.int64)
"""Value of each lower-case hexadecimal digit; -1 for other bytes."""
_HEX_WEIGHTS: Final = 16 ** np.arange(_CRC_BYTES - 1, -1, -1, dtype=np.int64)
_NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DueStatements:
    """`__DMQ_DUE` in form 2 of each record of a window; NONE where there is none."""

    due_ms: Integers
    """Due time that the record itself states."""
    identity: Integers
    """Identity of the message that a sound statement names, even if the statement is that of another record."""
    replaced: Integers
    """Identity of the message that the message of the record replaces."""
    replaced_due_ms: Integers
    """Due time of that message."""
    run: Integers
    """Number of the last run of a repeating message before the record."""

    @classmethod
    def of(cls, properties: Properties, offsets: Integers, readable: Mask) -> Self:
        """Parse the statements of the records at physical offsets `offsets` for which `readable` is true.

        Raises NewerFormError if a record states its due time in an unknown form.
        """
        found = cls(*(np.full(properties.count, NONE, np.int64) for _ in range(5)))
        texts = _Texts.of(properties, DUE, offsets, readable)
        if texts is None:
            return found
        shaped, words = texts.split(_DUE_FIELDS)
        due = _numbers(words[_DUE])
        usual = texts.are_own(shaped, words) & (due != NONE)
        rows = texts.rows[shaped[usual]]
        found.due_ms[rows], found.identity[rows] = due[usual], offsets[rows]
        for row, said in texts.except_for(shaped[usual]):
            (
                found.due_ms[row], found.identity[row], found.replaced[row], found.replaced_due_ms[row], found.run[row],
            ) = _due_of(said, int(offsets[row]))  # fmt: skip
        return found


@dataclass(frozen=True, slots=True)
class MarkStatements:
    """`__DMQ_MARK` in form 2 of each record of a window; NONE where there is none."""

    kind: Integers
    """Index in KINDS."""
    identity: Integers
    """Identity of the message. Without a kind, it is taken from a damaged mark, and only a hint."""
    due_ms: Integers
    """Due time until the statement."""
    next_ms: Integers
    """Due time from then on; NONE if the message has ended."""
    queue_id: Integers
    """Queue id and queue offset of the message's record, if that record is in the schedule topic."""
    queue_offset: Integers
    run: Integers
    """Number of the run of a repeating message."""
    many: list[tuple[int, GroupMark]] = field(default_factory=list, kw_only=True)
    """Statements about many messages, with the index of their record; the numbers above are NONE."""

    @classmethod
    def of(cls, properties: Properties, offsets: Integers, readable: Mask) -> Self:
        """Parse the marks of the records at physical offsets `offsets` for which `readable` is true.

        Raises NewerFormError if a record makes a statement of an unknown form or kind.
        """
        found = cls(*(np.full(properties.count, NONE, np.int64) for _ in range(7)))
        texts = _Texts.of(properties, MARK, offsets, readable)
        if texts is None:
            return found
        shaped, words = texts.split(_MARK_FIELDS)
        kind = pc.fill_null(pc.index_in(words[_MARK_KIND], pa.array(KINDS)), NONE).to_numpy().astype(np.int64)
        decided, identity, due = (_numbers(words[number]) for number in (_DECIDED, _IDENTITY, _MARK_DUE))
        record, following = (_numbers(words[number]) for number in (_RECORD, _NEXT))
        usual = texts.are_own(shaped, words) & (np.minimum.reduce((kind, decided, identity, due)) != NONE)
        usual &= ((record != NONE) | _are_empty(words[_RECORD])) & ((following != NONE) | _are_empty(words[_NEXT]))
        run = _runs(words[_DETAILS])
        usual &= _are_empty(words[_QUEUE]) & (_are_empty(words[_DETAILS]) | (run != NONE))
        rows = texts.rows[shaped[usual]]
        found.kind[rows], found.identity[rows] = kind[usual], identity[usual]
        found.due_ms[rows], found.next_ms[rows], found.run[rows] = due[usual], following[usual], run[usual]
        columns = (
            found.kind, found.identity, found.due_ms, found.next_ms, found.queue_id, found.queue_offset, found.run,
        )  # fmt: skip
        for row, said in texts.except_for(shaped[usual]):
            place = int(offsets[row])
            if (sound := sound_statement(said, place)) is not None and is_group_mark(sound):
                if (of_many := parse_own_group_mark(sound, place)) is not None:
                    found.many.append((row, of_many))
                continue
            for column, number in zip(columns, _mark_of(said, place), strict=True):
                column[row] = number
        return found


@dataclass(frozen=True, slots=True)
class _Texts:
    """Values of a property that may be statements of form 2, with the records that have them."""

    properties: Properties
    rows: Integers
    """Index of each record in the window."""
    offsets: Integers
    """Physical offset of each record."""
    pairs: Integers

    @classmethod
    def of(cls, properties: Properties, name: str, offsets: Integers, readable: Mask) -> Self | None:
        """Return the values of `name` that do not have form 1; None if there are none."""
        pairs = properties.pairs_of(name)
        rows = np.flatnonzero((pairs >= 0) & readable)
        count = properties.value_bytes[pairs[rows]]
        rows = rows[(count >= _LEAST_BYTES) & (count <= MAX_TEXT_BYTES)]
        if len(rows):
            has_form_1 = _due_has_form_1 if name == DUE else _mark_has_form_1
            rows = rows[~has_form_1(properties, pairs[rows])]
        return cls(properties, rows, offsets[rows], pairs[rows]) if len(rows) else None

    def split(self, count: int) -> tuple[Integers, list[pa.StringArray]]:
        """Return the indexes of the texts with `count` fields, and their fields as columns."""
        values = text(gather(self.properties.buffer, self._at, self._bytes))
        fields = pc.split_pattern(values, ":")
        shaped = np.flatnonzero(pc.equal(pc.list_value_length(fields), count).to_numpy(zero_copy_only=False))
        words = pc.list_flatten(fields.take(pa.array(shaped)))
        return shaped, [words.take(pa.array(np.arange(number, len(words), count))) for number in range(count)]

    def are_own(self, shaped: Integers, words: Sequence[pa.StringArray]) -> Mask:
        """Return whether the texts `shaped` are sound, of this version, and name the place of their record."""
        place = words[_PLACE]
        # Zeros at the beginning: physical offsets have at most 18 digits, unless the log exceeds 10^18 bytes.
        short = pc.utf8_slice_codeunits(place, PLACE_DIGITS - _MAX_DIGITS)
        own: Mask = _numbers(short) == self.offsets[shaped]
        own &= _true(pc.starts_with(place, "0" * (PLACE_DIGITS - _MAX_DIGITS)))
        own &= _true(pc.equal(pc.binary_length(place), PLACE_DIGITS)) & _true(pc.equal(words[0], str(VERSION)))
        at, count = self._at[shaped], self._bytes[shaped] - _CRC_BYTES
        stated = _NIBBLES[self.properties.bytes_at(at + count, _CRC_BYTES)]
        data = memoryview(self.properties.buffer)
        ends = (at + count - 1).tolist()
        computed = [crc32(data[begin:end]) for begin, end in zip(at.tolist(), ends, strict=True)]
        own &= (stated >= 0).all(axis=1)
        own &= stated @ _HEX_WEIGHTS == np.array(computed, np.int64)
        return own

    def except_for(self, usual: Integers) -> Iterator[tuple[int, str]]:
        """Yield index and value of each record whose text is not among the texts `usual`."""
        others = np.ones(len(self.rows), np.bool_)
        others[usual] = False
        at, count = self._at[others], self._bytes[others]
        data = memoryview(self.properties.buffer)
        for row, begin, size in zip(self.rows[others].tolist(), at.tolist(), count.tolist(), strict=True):
            yield row, str(data[begin : begin + size], "utf-8", "surrogateescape")

    @property
    def _at(self) -> Integers:
        return self.properties.value_at[self.pairs]

    @property
    def _bytes(self) -> Integers:
        return self.properties.value_bytes[self.pairs]


def _due_has_form_1(properties: Properties, pairs: Integers) -> Mask:
    # The texts are longer than _LEAST_BYTES.
    first, second = _FORM_1_COLONS
    data = properties.bytes_at(properties.value_at[pairs], second + 1)
    has_separators: Mask = (data[:, first] == ord(":")) & (data[:, second] == ord(":"))
    has_width: Mask = properties.value_bytes[pairs] == DUE_WIDTH
    return has_separators & has_width


def _mark_has_form_1(properties: Properties, pairs: Integers) -> Mask:
    """Return whether the marks begin with two letters: one flipped bit does not make two letters of form 2."""
    letters = properties.bytes_at(properties.value_at[pairs], 2)
    are_letters: Mask = (letters >= ord("a")) & (letters <= ord("z"))
    return are_letters[:, 0] & are_letters[:, 1]


def _numbers(words: pa.StringArray) -> Integers:
    """Return each word as a number; NONE if it is not one, or has more than _MAX_DIGITS digits."""
    numbers: Integers = pc.fill_null(digits(words), NONE).to_numpy()
    return numbers


def _runs(details: pa.StringArray) -> Integers:
    """Return the number of the run in details that consist of it alone; NONE in others."""
    number = _numbers(pc.utf8_slice_codeunits(details, len(_RUN)))
    return np.where(_true(pc.starts_with(details, _RUN)), number, NONE)


def _are_empty(words: pa.StringArray) -> Mask:
    return _true(pc.equal(words, ""))


def _true(array: pa.BooleanArray) -> Mask:
    mask: Mask = array.to_numpy(zero_copy_only=False)
    return mask


def _due_of(said: str, place: int) -> tuple[int, int, int, int, int]:
    """Return the values of the columns of DueStatements."""
    due = parse_own_due(said, place)
    if due is None and (mended := corrected(said, place)) is not None:
        due = parse_own_due(mended, place)
    if due is not None:
        run = NONE if due.run is None else due.run
        replaced = (NONE, NONE) if due.replaced is None else (due.replaced, due.replaced_due_ms)
        return due.due_ms, due.identity, *replaced, run
    elsewhere = place_of(said)
    if elsewhere is None:
        return (NONE,) * 5
    try:
        due = parse_own_due(said, elsewhere)
    except NewerFormError:
        # Only a record's own statement counts.
        due = None
    return NONE, NONE if due is None else due.identity, NONE, NONE, NONE


def _mark_of(said: str, place: int) -> tuple[int, int, int, int, int, int, int]:
    """Return the values of the columns of MarkStatements."""
    mark = parse_own_mark(said, place)
    if mark is None and (mended := corrected(said, place)) is not None:
        mark = parse_own_mark(mended, place)
    if mark is not None:
        queue_id, queue_offset = (NONE, NONE) if mark.queue is None else mark.queue
        # The column has 32 bits. No queue has such an id.
        queue_id = min(queue_id, _MAX_QUEUE_ID)
        following = NONE if mark.next_due_ms is None else mark.next_due_ms
        run = NONE if mark.run is None else mark.run
        return KINDS.index(mark.kind), mark.identity, mark.due_ms, following, queue_id, queue_offset, run
    words = said.split(":")
    if place_of(said) is not None or len(words) != _MARK_FIELDS:
        return (NONE,) * 7
    hint = words[_IDENTITY]
    is_number = hint.isascii() and hint.isdigit() and len(hint) <= _MAX_DIGITS
    return NONE, int(hint) if is_number else NONE, NONE, NONE, NONE, NONE, NONE
