"""Runs whose copies do not state what follows: the mark is damaged, or RocketMQ 5 delivered the message.

Such a copy proves a run, which must not be delivered again. When the message is due, the broker computes what follows,
and states it in a mark of its own, so that the log is complete again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from delaymq.broker.delivery.repeating.history import Records, newest_run, run_in, stated_run
from delaymq.broker.delivery.timed.replay import is_copy_of
from delaymq.message import names
from delaymq.message.record import Record
from delaymq.message.timed_marks import TimedMark
from delaymq.schedule.timeline import Pending


class Statements(Records, Protocol):
    """Records by key, and marks."""

    def newest_mark(self, identity: int) -> TimedMark | None:
        """Return the newest mark without a copy about a message. KeysUnknownError."""

    def is_group_changed(self, holder: Record, after: int) -> bool:
        """Return whether the group of a message was changed after an offset. KeysUnknownError."""


class OpenRuns:
    """Copies that a start has found, by the unique id of the repeating message."""

    def __init__(self, places: Iterable[int], record_at: Callable[[int], Record | None], lookup: Statements) -> None:
        self._record_at = record_at
        self._lookup = lookup
        self._places: dict[str, list[int]] = {}
        for place in places:
            copy = record_at(place)
            if copy is not None:
                properties = copy.properties
                unique_id = properties.get(names.DELAY_SCHEDULE_ID, properties.get(names.UNIQUE_KEY, ""))
                self._places.setdefault(unique_id, []).append(place)

    def newest(self, holder: Record, pending: Pending) -> tuple[int, int] | None:
        """Return number and time in ms of the newest run of a message, if no later statement states what follows it.

        KeysUnknownError.
        """
        places = self._places.get(holder.properties.get(names.UNIQUE_KEY, "")) if self._places else None
        for place in reversed(places or ()):
            copy = self._record_at(place)
            if copy is not None:
                number = self._number(copy, holder, pending)
                if number is not None:
                    return number, int(copy.properties[names.TIMER_OUT_MS])
        return None

    def _number(self, copy: Record, holder: Record, pending: Pending) -> int | None:
        place, identity = copy.physical_offset, pending.identity
        mark = self._lookup.newest_mark(identity)
        if holder.physical_offset > place or (mark is not None and mark.place > place):
            return None
        last = newest_run(self._lookup, holder, identity)
        if (last is not None and last.copy.physical_offset > place) or self._lookup.is_group_changed(holder, place):
            return None
        run = run_in(copy, holder.properties.get(names.UNIQUE_KEY, ""), identity)
        if run is not None:
            return run.number if run.mark is None else None
        if names.DELAY_SCHEDULE_ID in copy.properties or copy.properties.get(names.TIMER_OUT_MS) != str(pending.due_ms):
            return None
        # RocketMQ 5 does not number runs.
        is_copy = is_copy_of(copy, copy.properties, holder)
        return (stated_run(holder) if last is None else last.number) if is_copy else None
