"""Positions of the schedule after a start: from the snapshot, the log after it, and delayOffset.json, in that order.

The store cannot be read while the log is replayed. Claims about entries that the replay itself has seen are therefore
decided immediately, from two numbers per entry; the others wait until the store is open.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from delaymq.broker.delivery.level_entries import (
    UNKNOWN_TOPIC,
    add_entries,
    add_entry,
    add_missing,
    carried_from,
    end_carried,
    end_entry,
)
from delaymq.broker.delivery.queue_state import QueueState
from delaymq.broker.delivery.reader import ScheduleReader
from delaymq.broker.delivery.settlement import ANYWHERE, Claim, claim_of, fingerprint_of, foreign_key_of
from delaymq.broker.delivery.status import DeliveryCounters, PositionCorrection
from delaymq.broker.delivery.timed.replay import FOLDER, AppliesPauses, TimedReplay
from delaymq.message import names
from delaymq.message.levels import level_of_queue
from delaymq.message.marks import parse_due
from delaymq.message.timed_marks import TimedMark
from delaymq.schedule import Settled
from delaymq.schedule.timeline import RunFiles, Timeline
from delaymq.schedule.timeline.runs import Sizes
from delaymq.store.layout import BASE_VERSION, CHANGED_VERSION, MANAGED_VERSION, TIMED_VERSION
from delaymq.store.model import Dispatched

STATE_VERSION = 1
_TRIM_ENTRIES = 65_536
"""Replay discards its data about settled entries in pieces of this many."""
_MAX_HOLE_ENTRIES = 1_000_000
"""A gap in a queue's offsets (unreadable records) is filled up to this size; after a larger one, the queue restarts."""
_SETTLING = frozenset((names.MARK, names.TIMER_OUT_MS, names.DELAY))
"""Properties of which a record that settles a message has at least one."""
_NO_SOURCE = 0
"""Number of `UNKNOWN_TOPIC` without an account."""

_logger = logging.getLogger(__name__)


def state_of(
    queues: dict[int, QueueState], timeline: dict[str, object], pauses: list[list[object]], version: int
) -> dict[str, object]:
    """Return the state for a snapshot: `{"version": 1, "queues": {"0": {"low": n, "above": […], "foreign": […]}}, …}`.

    `timeline` describes the index of pending messages. `version` is the format version of the store.
    """
    return {
        "version": STATE_VERSION,
        "queues": {str(queue_id): queue.as_json() for queue_id, queue in queues.items()},
        "timeline": timeline,
        "levelsInTimeline": True,
        "statements": version >= TIMED_VERSION,
        "changes": version >= CHANGED_VERSION,
        "groups": version >= MANAGED_VERSION,
        "pauses": pauses,
    }


def queues_from(state: object) -> dict[int, QueueState]:
    """Decode the result of `state_of`. Raises ValueError if it is invalid or of an unknown version."""
    queues = state.get("queues") if isinstance(state, dict) and state.get("version") == STATE_VERSION else None
    if not isinstance(queues, dict):
        raise ValueError(f"the state of the schedule does not have version {STATE_VERSION}")
    return {int(queue_id): QueueState.from_json(queue) for queue_id, queue in queues.items()}


class _Seen:
    """Entries of a queue in the replayed part of the log: physical offset, fingerprint, and number of topic and
    account by offset."""

    __slots__ = ("first", "identities", "physical_offsets", "prints", "sources")

    def __init__(self, first: int) -> None:
        self.first = first
        self.physical_offsets = array("q")
        self.prints = array("q")
        self.sources = array("I")
        self.identities: dict[int, int] = {}
        """Identities of carried messages, by offset."""

    def add(self, offset: int, physical_offset: int, fingerprint: int, source: int) -> None:
        hole = offset - self.first - len(self.prints)
        if not 0 <= hole <= _MAX_HOLE_ENTRIES:
            self.__init__(offset)  # type: ignore[misc]
        elif hole:
            self.physical_offsets.extend([ANYWHERE] * hole)
            self.prints.extend([0] * hole)
            self.sources.extend([_NO_SOURCE] * hole)
        self.physical_offsets.append(physical_offset)
        self.prints.append(fingerprint)
        self.sources.append(source)

    def find(self, offset: int) -> tuple[int, int] | None:
        at = offset - self.first
        if not 0 <= at < len(self.prints) or self.physical_offsets[at] == ANYWHERE:
            return None
        return self.physical_offsets[at], self.prints[at]

    def source(self, offset: int) -> int:
        at = offset - self.first
        return self.sources[at] if 0 <= at < len(self.sources) else _NO_SOURCE

    def trim(self, low: int) -> None:
        count = low - self.first
        if count >= _TRIM_ENTRIES:
            del self.physical_offsets[:count], self.prints[:count], self.sources[:count]
            self.identities = {offset: each for offset, each in self.identities.items() if offset >= low}
            self.first = low


class Replay:
    """Observer `schedule` during the replay of the log; `finish` decides deferred cases."""

    name = "schedule"
    folder_name = FOLDER

    def __init__(self, counters: DeliveryCounters | None = None, sizes: Sizes | None = None) -> None:
        self.counters = counters or DeliveryCounters()
        self.timed = TimedReplay(sizes or Sizes())
        """Timed messages."""
        self._start(None)

    def use_folder(self, folder: RunFiles, segment_bytes: int) -> None:
        """Use this folder for the index of pending messages of a log with segments of this size."""
        self.timed.use_folder(folder, segment_bytes)

    def restore(self, state: object | None) -> None:
        """Start the replay after a snapshot's state. Raises ValueError if it is invalid or of an unknown version."""
        self._start(state)
        stated = state if isinstance(state, dict) else {}
        # Earlier versions saved no index before the first timed message, and no messages of the levels in it.
        reference = stated.get("timeline")
        version = BASE_VERSION
        if reference is not None and stated.get("statements") is not False:
            version = CHANGED_VERSION if stated.get("changes") is True else TIMED_VERSION
            version = MANAGED_VERSION if stated.get("groups") is True else version
        self.timed.restore(reference, stated.get("pauses", []), whole_log=state is None, version=version)
        self._has_levels = reference is not None and stated.get("levelsInTimeline") is True

    def _start(self, state: object | None) -> None:
        self.queues = queues_from(state) if state is not None else {}
        self._whole_log = state is None
        self._first_physical_offset: int | None = None
        self._seen: dict[int, _Seen] = {}
        self._replayed_from: dict[int, int] = {}
        """By queue: offset of the first entry that was replayed. A restored index contains those before it."""
        self._sources = {(UNKNOWN_TOPIC, ""): _NO_SOURCE}
        """Numbers of topics and accounts."""
        # Foreign entries without a known copy, by `foreign_key_of`: one or more of (queue, offset).
        self._foreign: dict[int, list[tuple[int, int]]] = {}
        self._foreign_before = any(queue.foreign for queue in self.queues.values())
        self._waiting: list[Claim] = []
        self._reader: ScheduleReader | None = None
        self._has_levels = False
        self._follows = False

    concerned_topics = (names.SCHEDULE_TOPIC, names.TIMER_TOPIC)
    concerned_properties = _SETTLING

    def state(self) -> dict[str, object]:
        """Raise RuntimeError: there is no state during the replay."""
        raise RuntimeError("the schedule has no state until the replay has ended: create snapshots afterwards")

    def dispatch(self, record: Dispatched) -> None:
        """Process one record of the log, in order."""
        if self._first_physical_offset is None:
            self._first_physical_offset = record.physical_offset
            self.timed.see(record)
        if record.topic == names.SCHEDULE_TOPIC:
            self._entry(record)
        elif record.topic == names.TIMER_TOPIC:
            self.timed.entry(record)
            if names.MARK in record.properties:
                self.timed.require(CHANGED_VERSION)
                self._claim(record)  # it was moved from a delay level
        elif not _SETTLING.isdisjoint(record.properties):
            mark = self.timed.settle(record)
            if mark is not None and mark.queue is not None:
                self.timed.require(CHANGED_VERSION)
                self._settle_named_by(mark, record.properties.get(names.REAL_TOPIC, ""))
            else:
                self._claim(record)

    def follow(self, queues: dict[int, QueueState], reader: ScheduleReader, pauses: AppliesPauses) -> None:
        """Continue, after `finish`, with the records that another broker appends to its log.

        The store can be read, and the index contains all pending messages, so that no case is deferred. `queues` and
        `pauses` are the state of the delivery.
        """
        self.queues, self._reader = queues, reader
        self._follows = self._has_levels = True
        self._whole_log = False
        self._seen.clear()
        self._replayed_from.clear()
        self._read_foreign(reader)
        self.timed.follow(pauses)

    def _claim(self, record: Dispatched) -> None:
        claim = claim_of(record)
        if claim is None:
            return
        if self._follows and self._reader is not None:
            self._decide_open(self._reader, claim)
        elif not self._decide(claim):
            self._waiting.append(claim)

    def _entry(self, record: Dispatched) -> None:
        queue_id, offset, properties = record.queue_id, record.queue_offset, record.properties
        queue = self.queues.get(queue_id)
        if queue is None:
            # If the whole log is known, the entries before the first existing one are permanently lost.
            knows_all = self._whole_log or self._follows
            queue = self.queues[queue_id] = QueueState(Settled(offset if knows_all else 0))
        if self._follows and self.timed.timeline is not None:
            add_entry(self.timed.timeline, queue.settled, record)
        else:
            self._note_entry(record, queue)
        if parse_due(properties.get(names.DUE, ""), queue_id, offset) is None and offset not in queue.settled:
            queue.foreign.add(offset)
            self._foreign.setdefault(foreign_key_of(record, properties), []).append((queue_id, offset))

    def _note_entry(self, record: Dispatched, queue: QueueState) -> None:
        queue_id, offset, properties = record.queue_id, record.queue_offset, record.properties
        seen = self._seen.get(queue_id)
        if seen is None:
            seen = self._seen[queue_id] = _Seen(offset)
        self._replayed_from[queue_id] = min(offset, self._replayed_from.get(queue_id, offset))
        topic = properties.get(names.REAL_TOPIC, "")
        source = topic, properties.get(names.ACCOUNT, "")
        number = self._sources.setdefault(source, len(self._sources))
        seen.add(offset, record.physical_offset, fingerprint_of(record), number)
        if names.MARK in properties and (mark := carried_from(properties, queue_id, record.physical_offset)):
            seen.identities[offset] = mark.identity
            self._settle_named_by(mark, topic)
        seen.trim(queue.settled.low)

    def _settle_named_by(self, mark: TimedMark, topic: str) -> None:
        """Settle the entry that a mark of form 2 names: it was carried forward or cancelled."""
        assert mark.queue is not None
        queue_id, offset = mark.queue
        queue = self.queues.get(queue_id)
        if queue is None:
            if self._whole_log:
                return  # the entry's record was deleted
            queue = self.queues[queue_id] = QueueState()
        queue.settled.settle(offset)
        if (seen := self._seen.get(queue_id)) is not None:
            seen.identities.pop(offset, None)
        if self._is_indexed(queue_id, offset) and self.timed.timeline is not None:
            end_carried(self.timed.timeline, mark, topic, UNKNOWN_TOPIC)

    def _is_indexed(self, queue_id: int, offset: int) -> bool:
        """Whether the restored index contains an entry, if it was pending."""
        return self._has_levels and offset < self._replayed_from.get(queue_id, offset + 1)

    def _decide(self, claim: Claim) -> bool:
        """Settle the entry of `claim` if it is confirmed; return False if only the open store can decide."""
        names_settled = False
        for queue_id, offset, physical_offset in claim.named:
            queue = self.queues.get(queue_id)
            if queue is not None and offset in queue.settled:
                names_settled = True
                continue
            seen = self._seen.get(queue_id)
            found = seen.find(offset) if seen is not None else None
            if found is not None and found[1] == claim.fingerprint and physical_offset in (found[0], ANYWHERE):
                self._settle(queue_id, offset)
                return True
            if (found is None or claim.elsewhere) and not self._is_gone(queue_id, offset, physical_offset):
                return False
        if claim.delay is not None:
            if self._settle_foreign(claim):
                return True
            if self._foreign_before:
                return False
        self.counters.disbelieved += claim.by_mark and not names_settled
        return True

    def _is_gone(self, queue_id: int, offset: int, physical_offset: int) -> bool:
        """Whether a named entry that was not replayed had been deleted from the log, all of which is replayed."""
        if not self._whole_log or self._first_physical_offset is None:
            return False
        if physical_offset != ANYWHERE:
            return physical_offset < self._first_physical_offset
        seen = self._seen.get(queue_id)
        return seen is None or offset < seen.first

    def _settle_foreign(self, claim: Claim) -> bool:
        key = claim.foreign_key
        entries = self._foreign.pop(key, [])
        for position, (queue_id, offset) in enumerate(entries, 1):
            if self._settle(queue_id, offset):
                if position < len(entries):
                    self._foreign[key] = entries[position:]
                return True
        return False

    def finish(self, reader: ScheduleReader) -> None:
        """Decide the deferred cases with the help of the store. Call `finish` of `timed` before. OSError."""
        self._reader = reader
        if self._waiting and self._foreign_before:
            self._read_foreign(reader)
        for claim in self._waiting:
            self._decide_open(reader, claim)
        self._waiting.clear()
        self._foreign.clear()

    def _decide_open(self, reader: ScheduleReader, claim: Claim) -> None:
        """Settle the entry of `claim` if its record in the open store confirms it."""
        if not any(self._settle_named(reader, claim, *named) for named in claim.named) and not (
            claim.delay is not None and self._settle_foreign(claim)
        ):
            self.counters.disbelieved += claim.by_mark

    def add_levels(self, index: Timeline, queue_id: int, end: int) -> None:
        """Add the pending entries of a queue that the index does not contain yet. Call it after `finish`. OSError."""
        assert self._reader is not None
        seen, settled = self._seen.pop(queue_id, None) or _Seen(0), self.queues[queue_id].settled
        first = settled.low
        if self._has_levels:
            first = max(first, self._replayed_from.get(queue_id, end))
        sources = list(self._sources)
        gone = add_entries(
            index, self._reader, queue_id, settled, first, end, lambda at: sources[seen.source(at)], seen.identities
        )
        for offset in gone:
            settled.settle(offset)
        if gone:
            self.counters.gone += len(gone)
            _logger.error(
                "%d messages of delay level %d are lost: their segments were deleted or their records are damaged",
                len(gone),
                level_of_queue(queue_id),
            )
        pending = end - settled.low - settled.above.count
        if index.partitions.of_level(level_of_queue(queue_id)).messages < pending:
            added = add_missing(index, self._reader, queue_id, settled, end)
            text = "%d pending messages of delay level %d were missing in the index, and were added from their queue"
            _logger.error(text, added, level_of_queue(queue_id))

    @property
    def on_settled(self) -> Callable[[int, int], None] | None:
        """Function that removes a settled entry (queue, offset) from the restored index; None if it has no levels."""
        return self._end_if_indexed if self._has_levels else None

    def _settle(self, queue_id: int, offset: int) -> bool:
        if not self.queues.setdefault(queue_id, QueueState()).settled.settle(offset):
            return False
        if self._reader is not None:
            self._end_if_indexed(queue_id, offset)
        return True

    def _end_if_indexed(self, queue_id: int, offset: int) -> None:
        if self._is_indexed(queue_id, offset):
            assert self._reader is not None
            assert self.timed.timeline is not None
            end_entry(self.timed.timeline, self._reader, queue_id, offset)

    def _settle_named(
        self, reader: ScheduleReader, claim: Claim, queue_id: int, offset: int, physical_offset: int
    ) -> bool:
        if not is_settled_by(reader, claim, queue_id, offset, physical_offset):
            return False
        self._settle(queue_id, offset)
        return True

    def _read_foreign(self, reader: ScheduleReader) -> None:
        """Read the records of foreign entries from before the snapshot, because their keys were not saved."""
        for queue_id, queue in self.queues.items():
            for offset in queue.foreign:
                place = reader.place(queue_id, offset) if offset not in queue.settled else None
                record = reader.record(queue_id, offset, place) if place else None
                if record is not None:
                    key = foreign_key_of(record, record.properties)
                    entries = self._foreign.setdefault(key, [])
                    if (queue_id, offset) not in entries:
                        entries.append((queue_id, offset))


def is_settled_by(reader: ScheduleReader, claim: Claim, queue_id: int, offset: int, physical_offset: int) -> bool:
    """Whether the entry that `claim` names exists and matches it."""
    place = reader.place(queue_id, offset)
    if place is None or physical_offset not in (place.physical_offset, ANYWHERE):
        return False
    # A record can only settle an older one.
    if place.physical_offset >= claim.physical_offset:
        return False
    record = reader.record(queue_id, offset, place)
    if record is None:
        # Only DelayMQ's mark alone states that an entry was given up because it was unreadable.
        return claim.topic == names.MARKS_TOPIC and claim.by_mark
    return claim.matches(record)


@dataclass(frozen=True, kw_only=True)
class StatedOffsets:
    """Content of delayOffset.json."""

    table: dict[int, int]
    problem: str | None
    """`missing` or `corrupt` if the file cannot be used."""


def start_positions(
    queues: dict[int, QueueState],
    bounds: Iterator[tuple[int, int, int]],
    stated: StatedOffsets,
    counters: DeliveryCounters,
    on_settled: Callable[[int, int], None] | None = None,
) -> list[PositionCorrection]:
    """Reconcile the settled entries of each queue with the queue and with delayOffset.json; return the corrections.

    `bounds` are (queue, first existing offset, end). A stated offset within the queue settles the foreign entries below
    it, since a foreign broker leaves no proof in the log; `on_settled` is called with queue and offset of each. For
    entries with DelayMQ's due time, the log alone decides
    (docs/decisions/0004-use-delay-offsets-for-foreign-entries-only.md).
    """
    corrections = []
    for queue_id, first, end in bounds:
        queue = queues.setdefault(queue_id, QueueState())
        settled = queue.settled
        settled.cut(end)
        level = level_of_queue(queue_id)
        position = stated.table.get(level)
        believed = position is not None and first <= position <= end
        known_from = queue.known_from
        if position is not None and 0 <= position <= end:
            known_from = max(known_from or 0, position)
        if believed and position is not None:
            _settle_foreign_below(queue, position, None if on_settled is None else partial(on_settled, queue_id))
        if known_from is not None and known_from < first:
            settled.raise_low(known_from)
            if lost := settled.raise_low(first):
                counters.gone += lost
                _logger.error("%d messages of delay level %d are lost: their segments were deleted", lost, level)
        settled.raise_low(first)
        if settled.low != (position or 0):
            ahead = believed and position is not None and settled.low < position
            reason = stated.problem or _difference(position, believed=believed, ahead=ahead)
            corrections.append(
                PositionCorrection(level=level, stated=position or 0, position=settled.low, reason=reason)
            )
            counters.corrected[reason] = counters.corrected.get(reason, 0) + 1
            # The file is written every few seconds, so after a kill it is expected to be behind the log.
            said = logging.INFO if reason == "stale" else logging.WARNING
            text = "delay level %d continues at %d; delayOffset.json states %s (%s)"
            _logger.log(said, text, level, settled.low, position, reason)
            if ahead and position is not None:
                _logger.warning(
                    "delayOffset.json marks %d messages of delay level %d as delivered, but the log contains no copies"
                    " of them: they are delivered now. The log may be older than the file, as in a plain copy of a live"
                    " store",
                    _pending_below(settled, position),
                    level,
                )
    return corrections


def _difference(position: int | None, *, believed: bool, ahead: bool) -> str:
    if ahead:
        return "ahead"
    return "stale" if position is None or believed else "out-of-range"


def _pending_below(settled: Settled, offset: int) -> int:
    return max(offset - settled.low - settled.above.count_below(offset), 0)


def _settle_foreign_below(queue: QueueState, position: int, on_settled: Callable[[int], None] | None) -> None:
    """Settle the foreign entries below `position`."""
    settled = queue.settled
    below = [(max(first, settled.low), min(end, position)) for first, end in queue.foreign.pairs() if first < position]
    unsettled = sum(end - first - settled.above.count_between(first, end) for first, end in below if first < end)
    if on_settled is not None:
        for first, end in below:
            for offset in range(first, end):
                if offset not in settled:
                    on_settled(offset)
    if unsettled == _pending_below(settled, position):
        settled.raise_low(position)
        return
    for first, end in below:
        for offset in range(first, end):
            settled.settle(offset)
