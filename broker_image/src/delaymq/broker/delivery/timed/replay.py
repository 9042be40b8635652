"""Recovery of the timeline: the index of the snapshot and the log after it, or the whole log.

A record of the timer topic adds a message, and a mark ends one. Copies that RocketMQ 5 made of DelayMQ's records carry
no mark; they and copies with a damaged mark are compared with the pending message when the store is open.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from delaymq.broker.delivery.pause_facts import PauseFacts
from delaymq.broker.delivery.settlement import real_queue_id
from delaymq.broker.delivery.timed.foreign import ForeignTimers
from delaymq.broker.delivery.timed.moved_messages import MovedMessages
from delaymq.broker.delivery.timed.requests import group_in, is_repeating
from delaymq.message import names
from delaymq.message.errors import NewerFormError
from delaymq.message.group_marks import PAUSES, GroupMark, is_group_mark, parse_own_group_mark
from delaymq.message.record import Record
from delaymq.message.timed_marks import (
    RUN,
    TimedDue,
    TimedMark,
    TimedMarkKind,
    corrected,
    parse_own_due,
    parse_own_mark,
    place_of,
    sound_statement,
)
from delaymq.schedule.timeline import Pending, RunFiles, Timeline
from delaymq.schedule.timeline.rebuilding import GroupStatements, Rebuilding, Unmatched
from delaymq.schedule.timeline.runs import Sizes
from delaymq.schedule.timeline.state import empty, restore
from delaymq.store.dispatch import recorded_due_ms
from delaymq.store.errors import StoreOpenError
from delaymq.store.layout import BASE_VERSION, CHANGED_VERSION, MANAGED_VERSION, TIMED_VERSION
from delaymq.store.model import Dispatched

if TYPE_CHECKING:
    from delaymq.broker.delivery.reader import ScheduleReader

FOLDER: Final = "timeline"
"""Folder of the index in delaymq/."""
_MAX_COPIES: Final = 1_000_000
"""Copies without a sound mark that are compared with pending messages. Beyond it, the log is damaged or forged."""
_MAX_UNMATCHED: Final = 100_000
"""Statements that are compared together with all pending messages, because these are due at other times."""
_MARK_BEGINNING: Final = "2:"
_DETAILS: Final = frozenset((RUN,))
"""Details of marks that this program knows."""
_SHOWN: Final = 20
_ELSEWHERE: Final = frozenset({names.SCHEDULE_DLQ_TOPIC, names.MARKS_TOPIC})
"""Topics of records that end a message without being its copy in the real topic."""

_logger = logging.getLogger(__name__)


class AppliesPauses(Protocol):
    """Applies the marks of pauses."""

    def apply(self, mark: GroupMark, account: str = "") -> None: ...


class TimedReplay:
    """Timed messages during the replay of the log."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._folder: RunFiles | None = None
        self.timeline: Timeline | None = None
        """The index; None if the store has no folder for it."""
        self.orphans = 0
        """Number of marks that name no pending message."""
        self.unusable = array("q")
        """Physical offsets of records of the timer topic whose due time is damaged."""
        self.foreign = ForeignTimers()
        """Timers of RocketMQ 5 that it has neither delivered nor recalled."""
        self.pauses = PauseFacts()
        """Pauses of topics and groups, and of all deliveries."""
        self.open_runs = array("q")
        """Physical offsets of copies without a sound mark that may be runs of repeating messages."""
        self.version = BASE_VERSION
        """Format version that the store needs because of its statements of form 2."""

    def use_folder(self, folder: RunFiles, segment_bytes: int) -> None:
        """Use this folder for the files of the index of a log with segments of this size."""
        self._folder = folder
        self._segment_bytes = segment_bytes

    def restore(self, reference: object, pauses: object, *, whole_log: bool, version: int) -> None:
        """Start the replay after a snapshot's state, or before the whole log. ValueError if the state is invalid."""
        assert self._folder is not None
        folder, sizes, segment_bytes = self._folder, self._sizes, self._segment_bytes
        if reference is None:
            self.timeline = empty(folder, sizes, segment_bytes)
        else:
            self.timeline = restore(folder, reference, sizes, segment_bytes)
        self.orphans = 0
        self.unusable = array("q")
        self.foreign = ForeignTimers()
        self.version = version
        self._may_merge = True
        self._groups = GroupStatements()
        self._rebuilding = Rebuilding(self.timeline, self._groups) if whole_log else None
        self._first_place: int | None = None
        self._copies = array("q")
        self.open_runs = array("q")
        self._unmatched = Unmatched()
        self.pauses = PauseFacts.from_json(pauses)
        self._applies_pauses: AppliesPauses = self.pauses
        self._follows = False

    def follow(self, pauses: AppliesPauses) -> None:
        """Continue after `finish` with records that another broker appends; merges are left to the caller."""
        self._follows, self._may_merge = True, False
        self._applies_pauses = pauses

    def require(self, version: int) -> None:
        """Note the format version that a statement needs."""
        self.version = max(self.version, version)

    def see(self, record: Dispatched) -> None:
        """Note where the replay begins."""
        if self._first_place is None:
            self._first_place = record.physical_offset

    def entry(self, record: Dispatched) -> None:
        """Add the message of a record of the timer topic. NewerFormError."""
        text = record.properties.get(names.DUE)
        if text is None:
            self.foreign.add(record)
            return
        due = own_due(text, record.physical_offset)
        if due is None and (place := place_of(text)) is not None:
            self._stored_again(record, text, place)
            return
        due_ms = due.due_ms if due is not None else recorded_due_ms(record.properties, record.physical_offset)
        if due_ms is None:
            self.unusable.append(record.physical_offset)
            return
        self.require(TIMED_VERSION)
        identity = due.identity if due is not None else record.physical_offset
        if identity != record.physical_offset:
            self.foreign.adopted(record, identity)
        entry = entry_of(self._index, record, due_ms, identity)
        with _needing_space():
            if self._rebuilding is not None:
                self._rebuilding.hold(entry)
            else:
                if identity != record.physical_offset and self._index.sweep:
                    self._settle_unmatched()  # it carries on with a due time that the index may not know yet
                self._index.add(entry)
        if due is not None and due.run is not None:
            self.version = MANAGED_VERSION
        if due is not None and (replaced := due.replaced) is not None:
            self.require(CHANGED_VERSION)
            self._change(replaced, record.physical_offset, due.replaced_due_ms, None, [entry.partition])
        self._merge()

    def _stored_again(self, record: Dispatched, text: str, place: int) -> None:
        """Add a record that RocketMQ 5 stored again to let its timer continue, in case it deleted the one at `place`.

        The message keeps its identity.
        """
        due = parse_own_due(text, place)
        if due is None:
            return
        entry = entry_of(self._index, record, due.due_ms, due.identity)
        if self._rebuilding is not None:
            if self._first_place is not None and place < self._first_place:
                with _needing_space():
                    self._rebuilding.hold(entry)
        elif self._index.find(due.due_ms, due.identity, entry.partition) is not None:
            self._index.add(entry)
        self._merge()

    def settle(self, record: Dispatched) -> TimedMark | None:
        """Apply the mark of a record of another topic to its message, if any; return it. NewerFormError.

        A mark that names a queue of the schedule topic is only returned.
        """
        properties = record.properties
        text = properties.get(names.MARK)
        mark = None if text is None else own_mark(text, record.physical_offset)
        if isinstance(mark, GroupMark):
            self._apply_to_group(mark, properties.get(names.BY, ""))
            return None
        if mark is not None:
            is_change = mark.next_due_ms is not None or mark.kind is TimedMarkKind.CANCELLED
            self.require(CHANGED_VERSION if is_change else TIMED_VERSION)
            if mark.run is not None:
                self.require(MANAGED_VERSION)
            if mark.queue is None:
                self._apply(mark, properties.get(names.REAL_TOPIC, ""), record.topic)
        elif names.TIMER_OUT_MS in properties and record.topic == properties.get(names.REAL_TOPIC):
            if text is None and names.DUE not in properties:
                self.foreign.delivered(record)
            elif (text is None or text.startswith(_MARK_BEGINNING)) and len(self._copies) < _MAX_COPIES:
                self._copies.append(record.physical_offset)
        return mark

    def _apply_to_group(self, mark: GroupMark, account: str) -> None:
        """Apply a statement about the messages of a group, or about a pause."""
        self.require(MANAGED_VERSION)
        if mark.kind in PAUSES:
            self._applies_pauses.apply(mark, account)
            return
        with _needing_space():
            self._groups.add(mark.topic, mark.group, mark.place, mark.next_due_ms)
            if self._rebuilding is None:
                self._index.sweep.change(mark.topic, mark.group, mark.next_due_ms)

    def _settle_unmatched(self) -> None:
        """Apply changes of groups to all entries, then the statements that did not match them."""
        self.orphans += self._unmatched.apply(self._index, self._groups)
        self._merge()

    @property
    def _index(self) -> Timeline:
        assert self.timeline is not None
        return self.timeline

    def _apply(self, mark: TimedMark, real_topic: str, topic: str) -> None:
        topics = [real_topic]
        if topic != real_topic and topic not in _ELSEWHERE:
            topics.append(topic)  # no checksum covers either, and one of them is damaged
        partitions = [self._index.partitions.number(each) for each in topics]
        self._change(mark.identity, mark.place, mark.due_ms, mark.next_due_ms, partitions)
        self._merge()

    def _change(
        self, identity: int, place: int, due_ms: int, next_due_ms: int | None, partitions: Sequence[int]
    ) -> None:
        """Apply the statement at `place` that a message was due at `due_ms`, and is due later or has ended."""
        index = self._index
        if self._rebuilding is not None:
            with _needing_space():
                self._rebuilding.change(identity, place, next_due_ms)
            return
        for partition in partitions:
            if next_due_ms is None:
                if index.end(due_ms, identity, partition) is not None:
                    return
            elif (pending := index.find(due_ms, identity, partition)) is not None:
                index.move(pending, next_due_ms)
                return
        # Its group was moved, or an earlier statement about the message is damaged.
        self._unmatched.add(identity, place, next_due_ms)
        if len(self._unmatched) >= _MAX_UNMATCHED:
            with _needing_space():
                self._settle_unmatched()

    def _merge(self) -> None:
        """Merge runs as soon as there are enough, as a running broker does: a long replay adds thousands."""
        index = self._index
        if index.compaction.is_planned or not self._may_merge:
            return
        try:
            while index.maintain():
                pass
        except OSError as error:
            self._may_merge = False
            _logger.warning("runs of the timeline cannot be merged during the start: %s", error)

    def finish(self, reader: ScheduleReader) -> Timeline:
        """Decide the open cases with the help of the store, and return the index. StoreOpenError if it has no space."""
        with _needing_space():
            if self._rebuilding is not None:
                self._rebuilding.finish(self._merge)
                self._rebuilding = None
        self.decide(reader)
        if self.unusable:
            _logger.error(
                "the due times of %d timed messages are damaged, so they are not delivered: their physical offsets are"
                " %s",
                len(self.unusable),
                ", ".join(map(str, self.unusable[:_SHOWN])) + (" and others" if len(self.unusable) > _SHOWN else ""),
            )
        if self.orphans:
            _logger.info("%d marks in the log refer to timed messages that were not pending", self.orphans)
        return self._index

    def decide(self, reader: ScheduleReader) -> None:
        """Decide the cases that were deferred: all changes of groups are applied first. StoreOpenError."""
        with _needing_space():
            self._settle_unmatched()
            moved = MovedMessages(reader, self._index, self._groups)
            for place in self._copies:
                copy = reader.record_at(place)
                if copy is not None:
                    self._end_by_copy(reader, copy, moved)
        self._copies = array("q")
        if self._follows:
            self._groups = GroupStatements()  # all messages and statements so far are in their final state

    def _end_by_copy(self, reader: ScheduleReader, copy: Record, moved: MovedMessages) -> None:
        """End the pending message of which this is a copy without a sound mark."""
        properties = copy.properties
        if names.DELAY_SCHEDULE_ID in properties:
            self.open_runs.append(copy.physical_offset)
            return
        topic = properties.get(names.REAL_TOPIC, "")
        if topic != copy.topic or real_queue_id(properties) != copy.queue_id:
            return
        text = properties.get(names.TIMER_OUT_MS, "")
        partition = self._index.partitions.find(topic)
        if partition is None or not (text.isascii() and text.isdigit() and len(text) <= 18):
            return
        for pending in (*self._index.due_at(int(text), partition), *moved.like(copy, properties)):
            record = reader.timed_record(pending)
            if record is not None and is_copy_of(copy, properties, record):
                if is_schedule(record.properties, record.physical_offset):
                    self.open_runs.append(copy.physical_offset)
                    return
                self._index.end(pending.due_ms, pending.identity, partition)
                return


@contextmanager
def _needing_space() -> Iterator[None]:
    """Turn OSError into StoreOpenError."""
    try:
        yield
    except OSError as error:
        raise StoreOpenError(
            f"the index of pending messages cannot be built ({error}): free space, and start again"
        ) from error


def own_due(text: str, place: int) -> TimedDue | None:
    """Return the due time that the record at `place` states; one flipped bit is corrected. NewerFormError."""
    due = parse_own_due(text, place)
    if due is None and (mended := corrected(text, place)) is not None:
        due = parse_own_due(mended, place)
    return due


def own_mark(text: str, place: int) -> TimedMark | GroupMark | None:
    """Return the mark of the record at `place`; one flipped bit is corrected.

    NewerFormError: the mark states something that only a newer program knows, such as another due time.
    """
    sound = sound_statement(text, place)
    if sound is None:
        return None
    if is_group_mark(sound):
        return parse_own_group_mark(sound, place)
    mark = parse_own_mark(sound, place)
    if mark is not None and (
        not _DETAILS.issuperset(mark.details) or (mark.queue is not None and mark.next_due_ms is not None)
    ):
        raise NewerFormError(f"{text!r} has a form that this program does not know: use the version that wrote it")
    return mark


def is_schedule(properties: Mapping[str, str], place: int) -> bool:
    """Return whether the record of the timer topic at `place`, with these properties, holds a repeating message.

    Its due time states this, because earlier versions stored the same properties without a meaning. If the due time is
    damaged, the properties decide.
    """
    if not is_repeating(properties):
        return False
    try:
        due = own_due(properties.get(names.DUE, ""), place)
    except NewerFormError:
        return False
    return due is None or due.run is not None


def entry_of(index: Timeline, record: Dispatched, due_ms: int, identity: int) -> Pending:
    """Return the message that a record of the timer topic holds."""
    properties = record.properties
    topic, account = properties.get(names.REAL_TOPIC, ""), properties.get(names.ACCOUNT, "")
    partition, owner = index.partitions.number(topic), 0
    if names.DELAY_GROUP in properties and (group := group_in(properties)):
        owner = index.partitions.owner_number(account, topic, group)
    elif account:
        owner = index.partitions.owner_number(account)
    return Pending(due_ms, identity, record.physical_offset, record.size, owner, partition)


def is_copy_of(copy: Record, properties: dict[str, str], record: Record) -> bool:
    """Whether a record outside the timer topic, with these properties, is a copy of a record of the timer topic."""
    original = record.properties
    return (
        record.physical_offset < copy.physical_offset
        and copy.body_crc == record.body_crc
        and copy.born_timestamp_ms == record.born_timestamp_ms
        and copy.reconsume_times == record.reconsume_times
        and properties.get(names.UNIQUE_KEY) == original.get(names.UNIQUE_KEY)
        and properties.get(names.REAL_TOPIC) == original.get(names.REAL_TOPIC)
        and properties.get(names.REAL_QUEUE_ID) == original.get(names.REAL_QUEUE_ID)
    )
