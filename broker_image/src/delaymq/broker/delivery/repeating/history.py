"""The newest run of a repeating message, found by the key index: each copy is indexed by the schedule's unique id."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from delaymq.broker.delivery.timed.replay import own_due, own_mark
from delaymq.message import names
from delaymq.message.errors import KeysUnknownError, NewerFormError
from delaymq.message.record import Record
from delaymq.message.run_ids import run_id
from delaymq.message.timed_marks import TimedMark

_REMEMBERED: Final = 4_096
"""Messages whose last run is kept in memory."""
_OTHERS_WITH_ID: Final = 32
"""Messages that may have the unique id of the schedule as a key, such as runs of schedules with the same id, before the
newest run is found by a bisection: 0.5 ms."""
_OTHERS_WITH_RUN_IDS: Final = 1_024
"""Messages that may have the unique ids of runs as keys: 10 ms. No application knows these ids in advance."""


class Records(Protocol):
    """Records of a topic by key."""

    def records(self, topic: str, key: str) -> Iterator[Record]:
        """Yield the records of a topic that may have a key, the newest first. KeysUnknownError."""


class Run(NamedTuple):
    """A run that took place."""

    number: int
    copy: Record
    mark: TimedMark | None
    """None: the mark of the copy is damaged."""


def newest_run(records: Records, holder: Record, identity: int) -> Run | None:
    """Return the newest run after the record `holder` of a repeating message was stored. KeysUnknownError."""
    original = holder.properties
    schedule_id, topic = original.get(names.UNIQUE_KEY), original.get(names.REAL_TOPIC, "")
    if schedule_id is None:
        return None
    for others, copy in enumerate(records.records(topic, schedule_id)):
        if copy.physical_offset < holder.physical_offset:
            return None  # the holder states its number
        run = run_in(copy, schedule_id, identity)
        if run is not None:
            return run
        if others >= _OTHERS_WITH_ID:
            return _newest_by_id(records, topic, schedule_id, identity, stated_run(holder))
    return None


def _newest_by_id(records: Records, topic: str, schedule_id: str, identity: int, stated: int) -> Run | None:
    """Return the newest run after number `stated`, by the unique ids of runs. The log contains all of these runs.

    KeysUnknownError, also if many other messages have the ids of runs as keys.
    """
    others = 0

    def with_number(number: int) -> Run | None:
        nonlocal others
        for copy in records.records(topic, run_id(schedule_id, identity, number)):
            run = run_in(copy, schedule_id, identity)
            if run is not None and run.number == number:
                return run
            others += 1
            if others > _OTHERS_WITH_RUN_IDS:
                raise KeysUnknownError(
                    f"more than {_OTHERS_WITH_RUN_IDS} messages have the ids of the runs of {schedule_id} as keys:"
                    " send the repeating message again, with another unique id"
                )
        return None

    newest, low, step = None, stated, 1
    while (run := with_number(low + step)) is not None:
        newest, low, step = run, low + step, 2 * step
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        run = with_number(middle)
        if run is None:
            high = middle
        else:
            newest, low = run, middle
    return newest


def run_in(copy: Record, schedule_id: str, identity: int) -> Run | None:
    """Return the run that a record delivers; None if it is no copy of this message.

    A copy whose mark is damaged is recognised by its unique id.
    """
    properties = copy.properties
    if properties.get(names.DELAY_SCHEDULE_ID) != schedule_id or names.MARK not in properties:
        return None
    mark = _mark_in(properties, copy.physical_offset)
    if mark is not None:
        return Run(mark.run, copy, mark) if mark.identity == identity and mark.run is not None else None
    number, time = properties.get(names.DELAY_RUN, ""), properties.get(names.TIMER_OUT_MS, "")
    if not (_is_number(number) and _is_number(time)):
        return None
    is_copy = properties.get(names.UNIQUE_KEY) == run_id(schedule_id, identity, int(number))
    return Run(int(number), copy, None) if is_copy else None


def stated_run(holder: Record) -> int:
    """Return the number of the last run before a record of a repeating message was stored; 0 if it states none."""
    try:
        due = own_due(holder.properties.get(names.DUE, ""), holder.physical_offset)
    except NewerFormError:
        return 0
    return 0 if due is None else due.run or 0


def _mark_in(properties: Mapping[str, str], place: int) -> TimedMark | None:
    try:
        mark = own_mark(properties[names.MARK], place)
    except NewerFormError:
        return None
    return mark if isinstance(mark, TimedMark) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


class LastRuns:
    """Numbers of the last runs, the latest ones of which are kept in memory."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._known: OrderedDict[int, int] = OrderedDict()
        """By identity."""

    def number(self, holder: Record, identity: int) -> int:
        """Return the number of the last run of a message that a record holds, 0 before the first. KeysUnknownError."""
        known = self._known.get(identity)
        if known is not None:
            return known
        run = newest_run(self._records, holder, identity)
        return stated_run(holder) if run is None else run.number

    def note(self, identity: int, number: int) -> None:
        """Note that a run took place."""
        self._known[identity] = number
        self._known.move_to_end(identity)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def forget(self, identity: int) -> None:
        """Forget a message that has ended."""
        self._known.pop(identity, None)
