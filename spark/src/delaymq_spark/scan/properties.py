"""Vectorised parsing of properties (docs/formats/store.md, record field 17)."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delaymq_spark.scan.frames import gather

_NAME_END: Final = 1
_PAIR_END: Final = 2
_MARK: Final = (
    "^(?P<kind>delivered|carried|cancelled|rescheduled|dropped):(?P<queue>[0-9]{1,4}):0*(?P<offset>[0-9]{1,18})"
    ":[0-9]{1,20}$"
)
"""The pattern of delaymq.message.marks, limited to offsets that fit 64 bits."""
_MAX_DIGITS: Final = 18
"""Every number with at most this many digits fits 64 bits."""
_MAX_NAME_BITS: Final = 48
"""Maximum number of names of a window for which sums of their bits, over all pairs of a record, fit 64 bits."""


class Properties:
    """Name and value of every pair of `count` records, as positions in one array of bytes."""

    def __init__(self, raw: pa.BinaryArray) -> None:
        self.count = len(raw)
        offsets = np.frombuffer(raw.buffers()[1], np.int32)[: self.count + 1].astype(np.int64)
        total = int(offsets[-1]) if self.count else 0
        self.buffer = raw.buffers()[2] or pa.py_buffer(b"")
        """Bytes to which all positions refer."""
        data = np.frombuffer(self.buffer, np.uint8)[:total]
        begins = np.zeros(total + 1, np.bool_)
        begins[1:][data == _PAIR_END] = True
        begins[offsets[:-1]] = True
        starts = np.flatnonzero(begins[:total])
        if not len(starts):
            self.record = self.name_at = self.value_at = self.name_bytes = self.value_bytes = starts
            self._data = data
            return
        nexts = np.append(starts[1:], total)
        ends = nexts - (data[nexts - 1] == _PAIR_END)
        middles = np.flatnonzero(data == _NAME_END)
        if len(middles) != len(starts) or np.any(middles < starts) or np.any(middles >= ends):
            # A pair without a value, or a value that contains the separator: the first separator counts.
            found = np.searchsorted(middles, starts)
            middles = np.append(middles, total)[found]
        first_pair = np.searchsorted(starts, offsets[:-1])
        pairs_of_record = np.diff(np.append(first_pair, len(starts)))
        # A record without properties has the position of the next one.
        pairs_of_record[offsets[1:] == offsets[:-1]] = 0
        record = np.repeat(np.arange(self.count), pairs_of_record)
        kept = (middles > starts) & (middles < ends - 1)
        if not kept.all():
            starts, middles, ends, record = starts[kept], middles[kept], ends[kept], record[kept]
        self.record = record
        """Index of the record of each pair, ascending."""
        self.name_at, self.name_bytes = starts, middles - starts
        self.value_at, self.value_bytes = middles + 1, ends - middles - 1
        self._data = data

    def pairs_of(self, name: str) -> npt.NDArray[np.int64]:
        """Return, for each record, the index of its (last) pair with this name; -1: none."""
        result = np.full(self.count, -1, np.int64)
        wanted = name.encode()
        if not len(self.record):
            return result
        pairs = np.flatnonzero(self.name_bytes == len(wanted))
        if len(pairs):
            shape = (len(self._data) - len(wanted) + 1,)
            words = np.ndarray(shape, f"S{len(wanted)}", self._data, strides=(1,))
            pairs = pairs[words[self.name_at[pairs]] == wanted]
        result[self.record[pairs]] = pairs
        return result

    def bytes_at(self, at: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.uint8]:
        """Return `count` bytes from each position, one row each."""
        taken: npt.NDArray[np.uint8] = self._data[at[:, np.newaxis] + np.arange(count)]
        return taken

    def values(self, name: str) -> pa.StringArray:
        """Return the value of this property for each record, null without one."""
        pairs = self.pairs_of(name)
        there = pairs >= 0
        if there.all() and len(pairs):
            return text(gather(self.buffer, self.value_at[pairs], self.value_bytes[pairs]))
        present = pairs[there]
        found = text(gather(self.buffer, self.value_at[present], self.value_bytes[present]))
        rows = np.cumsum(there, dtype=np.int64) - 1
        return found.take(pa.array(rows, mask=~there))

    def maps(self) -> pa.MapArray:
        """Return a map of all pairs for each record."""
        kept = self._without_repeated()
        names = text(gather(self.buffer, self.name_at[kept], self.name_bytes[kept]))
        values = text(gather(self.buffer, self.value_at[kept], self.value_bytes[kept]))
        offsets = np.searchsorted(self.record[kept], np.arange(self.count + 1)).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), names, values)

    def _without_repeated(self) -> npt.NDArray[np.int64] | slice:
        """Return pairs without those whose name is repeated later in the same record."""
        if not len(self.record):
            return slice(None)
        names = gather(self.buffer, self.name_at, self.name_bytes).dictionary_encode()
        code = names.indices.to_numpy().astype(np.int64)
        firsts = np.flatnonzero(np.diff(self.record, prepend=-1))
        if len(names.dictionary) <= _MAX_NAME_BITS:
            bits = np.left_shift(np.int64(1), code)
            if np.array_equal(np.add.reduceat(bits, firsts), np.bitwise_or.reduceat(bits, firsts)):
                return slice(None)
        key = self.record * len(names.dictionary) + code
        _, last = np.unique(key[::-1], return_index=True)
        return np.sort(len(key) - 1 - last)


def text(array: pa.BinaryArray) -> pa.StringArray:
    """Return strings; invalid UTF-8 is replaced by U+FFFD."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if v is None else v.decode("utf-8", "replace") for v in array.to_pylist()], pa.string())


def numbers(values: pa.StringArray, *, bits: int, whole: bool = False) -> pa.Array:
    """Return each text as a number, null if it is invalid or out of range; distinct texts are parsed once.

    `whole`: only canonical numbers ("7", not "07" or "+7").
    """
    encoded = values.dictionary_encode()
    limit = 1 << (bits - 1)
    parsed = [_number(word, limit, whole) for word in encoded.dictionary.to_pylist()]
    return pa.array(parsed, pa.int32() if bits == 32 else pa.int64()).take(encoded.indices)


def digits(values: pa.StringArray) -> pa.Int64Array:
    """Return each text of 1 to 18 ASCII digits as a number, others as null."""
    is_number = pc.and_(pc.ascii_is_decimal(values), pc.less_equal(pc.binary_length(values), _MAX_DIGITS))
    return pc.if_else(is_number, values, None).cast(pa.int64())


def _number(word: str, limit: int, whole: bool) -> int | None:
    if len(word) > 20:
        return None
    try:
        number = int(word)
    except ValueError:
        return None
    if not -limit <= number < limit or (whole and str(number) != word):
        return None
    return number


def mark_parts(values: pa.StringArray) -> tuple[pa.StringArray, pa.Int32Array, pa.Int64Array]:
    """Return kind, queue id and queue offset of each `__DMQ_MARK`; nulls if it is missing or invalid."""
    found = pc.extract_regex(values, _MARK)
    kind = pc.struct_field(found, "kind")
    queue = pc.cast(pc.struct_field(found, "queue"), pa.int32())
    return kind, queue, pc.cast(pc.struct_field(found, "offset"), pa.int64())
