"""Search for the newest entries with given keys in several runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from delaymq.schedule.timeline.cursors import Cursor, Key
from delaymq.schedule.timeline.entries import ENTRY, Row, unpacked
from delaymq.schedule.timeline.merging import Range

_KEYS_AT_ONCE: Final = 64
_DENSE: Final = 16
"""Up to this many entries per wanted key are read instead of searched for."""


def newest_row(cursors: Iterable[Cursor], key: Key) -> Row | None:
    """Return the newest of the entries at the open positions of a partition that have a key. OSError, damage.

    At most one plain run contains the key, and an entry in another run is newer than that in the plain one. Most
    searches therefore read a single run: the plain one whose identities include that of the key.
    """
    identity = key[1]
    changed: list[Cursor] = []
    likely: list[Cursor] = []
    others: list[Cursor] = []
    for cursor in cursors:
        run = cursor.run
        if not run.is_plain:
            if run.identities is None or identity in run.identities:
                changed.append(cursor)
        elif run.lowest <= identity <= run.highest:
            likely.append(cursor)
        else:
            others.append(cursor)
    changed.sort(key=_age, reverse=True)
    for cursor in chain(changed, likely, others):
        run, end = cursor.run, cursor.end
        index = run.find(cursor.head, end, key)
        if index < end:
            row: Row = ENTRY.unpack(run.read(index, 1))
            if row[:2] == key:
                return row
    return None


def _age(cursor: Cursor) -> int:
    return cursor.run.age


def newest_rows(ranges: list[Range], keys: list[Key]) -> Iterator[Row | None]:
    """Yield the newest row of each key that `ranges` contain, and None where the caller may interrupt.

    `keys` are sorted, and `ranges` begin with the newest one.
    """
    for part in ranges:
        if not keys:
            return
        found = set()
        for row in _rows_at(part, keys):
            if row is not None:
                found.add(row[:2])
            yield row
        if found:
            keys = [key for key in keys if key not in found]


def _rows_at(part: Range, keys: list[Key]) -> Iterator[Row | None]:
    """Yield the rows with these sorted keys, and None where the caller may interrupt."""
    run, first, end = part
    first = run.find(first, end, keys[0])
    end = run.find(first, end, (keys[-1][0], keys[-1][1] + 1))
    if first == end:
        return
    for at in range(0, len(keys), _KEYS_AT_ONCE):
        chunk = keys[at : at + _KEYS_AT_ONCE]
        first = run.find(first, end, chunk[0])
        after = run.find(first, end, (chunk[-1][0], chunk[-1][1] + 1))
        if after - first <= _DENSE * len(chunk):
            wanted = set(chunk)
            rows = unpacked(run.read(first, after - first)) if first < after else ()
            yield from (row for row in rows if row[:2] in wanted)
        else:
            for key in chunk:
                first = run.find(first, after, key)
                if first < after and run.key_at(first) == key:
                    yield ENTRY.unpack(run.read(first, 1))
        first = after
        yield None
