"""Dispatch of live and replayed records to queues, index and observers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from delaymq.message.errors import IllegalMessageError
from delaymq.message.flags import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_ROLLBACK
from delaymq.message.hashing import tags_code
from delaymq.message.levels import DelayLevels
from delaymq.message.marks import parse_due
from delaymq.message.names import DELAY, DUE, SCHEDULE_TOPIC, TAGS, TIMER_OUT_MS, TIMER_TOPIC
from delaymq.message.timed_marks import corrected, parse_own_due
from delaymq.store.consume_queue import ENTRY, ConsumeQueues
from delaymq.store.index.key_index import KeyIndex
from delaymq.store.model import Dispatched, DispatchObserver, LiveObserver
from delaymq.store.plain_runs import PlainRun, ReceivesRuns, Stretch

DELAYED_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})
"""Topics of pending messages, whose queue entries contain due times."""
_MAX_TIME_DIGITS = 18
_new = tuple.__new__


def due_or_tags_code(
    topic: str,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    properties: dict[str, str],
    store_timestamp_ms: int,
    levels: DelayLevels,
) -> int:
    """Return the tags code of a record's queue entry: the due time in ms of a delayed record, else its tags' hash.

    NewerFormError: the record states its due time in a form that only a newer program knows.
    """
    if topic == SCHEDULE_TOPIC:
        level = recorded_level(properties)
        if level > 0:
            due_text = properties.get(DUE)
            due_ms = parse_due(due_text, queue_id, queue_offset) if due_text is not None else None
            return due_ms if due_ms is not None else store_timestamp_ms + levels.delay_ms(level)
    elif topic == TIMER_TOPIC:
        due_ms = recorded_due_ms(properties, physical_offset)
        if due_ms is not None:
            return due_ms
    tags = properties.get(TAGS)
    return tags_code(tags) if tags else 0


def recorded_due_ms(properties: dict[str, str], physical_offset: int) -> int | None:
    """Return the due time in ms that a record of the timer topic states; None if it states none.

    A statement with one flipped bit is corrected. TIMER_OUT_MS replaces one that is damaged further, and applies to
    records of RocketMQ's broker. NewerFormError: the statement has a form that only a newer program knows.
    """
    text = properties.get(DUE)
    if text is not None:
        due = parse_own_due(text, physical_offset)
        if due is None and (mended := corrected(text, physical_offset)) is not None:
            due = parse_own_due(mended, physical_offset)
        if due is not None:
            return due.due_ms
    text = properties.get(TIMER_OUT_MS, "")
    return int(text) if len(text) <= _MAX_TIME_DIGITS and text.isascii() and text.isdigit() else None


def recorded_level(properties: dict[str, str]) -> int:
    """Return the delay level in a record of the log; 0 if it has none or its value is not a number.

    Never raises: recovery may find records that another broker wrote or that are damaged.
    """
    text = properties.get(DELAY)
    if text is None or len(text) > 10:
        return 0
    try:
        return int(text)
    except ValueError:
        return 0


class Dispatcher:
    """Dispatcher of records, in log order."""

    def __init__(
        self, queues: ConsumeQueues, index: KeyIndex | None, observers: Sequence[DispatchObserver], levels: DelayLevels
    ) -> None:
        self._queues = queues
        self._index = index
        self._watch: Callable[[], object] | None = None
        self.observers: Sequence[LiveObserver] = ()
        self.observed_by(observers)
        self.levels = levels
        self.deleted_topics: dict[str, int] = {}
        """Topic → log end at its deletion; older records get no queue entry."""
        self.refused_entries = 0
        """Number of records without a queue entry because of an illegal topic or queue, or an implausible offset."""

    def observed_by(self, observers: Sequence[LiveObserver]) -> None:
        """Replace the observers."""
        self.observers = observers
        self._observing: list[Callable[[Dispatched], object]] = [observer.dispatch for observer in observers]
        if (watch := self._watch) is not None:
            self._observing.append(lambda record: watch())
        index = [] if self._index is None else [self._index.put]
        self.receivers: list[Callable[[Dispatched], object]] = [*index, *self._observing]
        """Functions that receive each record whose queue entry exists: the key index and the observers, in order."""
        self._receiving_runs = [each.dispatch_run for each in observers if isinstance(each, ReceivesRuns)]
        self._receiving_each: list[Callable[[Dispatched], object]] = [
            each.dispatch for each in observers if not isinstance(each, ReceivesRuns)
        ]

    def watch(self, function: Callable[[], object] | None) -> None:
        """Set a function to call after the observers have received a record or a run, without state; None: none."""
        self._watch = function
        self.observed_by(self.observers)

    def dispatch(self, record: Dispatched) -> None:
        """Add a record's queue entry and its keys, then pass it to each observer."""
        transaction = record.sys_flag & TRANSACTION_MASK
        if transaction == TRANSACTION_ROLLBACK:
            return  # a filler that recovery wrote over damage
        if transaction == 0 or transaction == TRANSACTION_COMMIT:
            queues = self._queues
            queue = queues.table.get((record.topic, record.queue_id))
            if queue is not None and record.queue_offset == queue.max_number:
                queues.put(queue, record.queue_offset, record.physical_offset, record.size, record.tags_code)
            else:
                self._put_out_of_order(
                    record.topic,
                    record.queue_id,
                    record.queue_offset,
                    record.physical_offset,
                    record.size,
                    record.tags_code,
                )
        for receive in self.receivers:
            receive(record)

    def observe(self, record: Dispatched) -> None:
        """Index a record whose queue entry exists and pass it to each observer."""
        if record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            return
        for receive in self.receivers:
            receive(record)

    def observe_run(self, records: Sequence[Dispatched]) -> None:
        """Index records of one store time, in log order, and pass each to every observer.

        There must be at least one, and none that recovery wrote.
        """
        if self._index is not None:
            self._index.put_all(records)
        for receive in self._observing:
            for record in records:
                receive(record)

    def observe_plain(self, run: PlainRun) -> None:
        """Index the records of a run whose queue entries exist, and pass them to every observer."""
        if self._index is not None:
            self._index.put_run(run)
        for receive_run in self._receiving_runs:
            receive_run(run)
        if self._receiving_each:
            records = run.dispatched()
            for receive in self._receiving_each:
                for record in records:
                    receive(record)
        if self._watch is not None:
            self._watch()

    def accepts_stretches(self, store_timestamp_ms: int) -> bool:
        """Return whether `receive_plain` may be used for records with this store time."""
        if self._receiving_each:
            return False
        return self._index is None or 0 <= store_timestamp_ms <= self._index.latest_ms

    def receive_plain(self, stretches: Sequence[Stretch], keys: bytes, data: memoryview, physical_offset: int) -> None:
        """Add the queue entries and keys of plain records, or copies, and pass them to observers that receive runs.

        `data`, which begins at the physical offset, contains the records. The others must ignore plain records.
        """
        for stretch in stretches:
            self.put_stretch(stretch, -1)
            topic, queue_id, queue_offset, records, _, _, entries = stretch
            fields = topic, queue_id, queue_offset, physical_offset, 0, records, data, entries, b"", ""
            run = _new(PlainRun, fields)  # faster than PlainRun(…)
            for receive_run in self._receiving_runs:
                receive_run(run)
        if self._index is not None:
            self._index.put_keys(keys)
        if self._watch is not None:
            self._watch()

    def put_stretch(self, stretch: Stretch, known_until: int) -> None:
        """Add the queue entries of plain records, except those up to a physical offset, which exist."""
        topic, queue_id, number = stretch.topic, stretch.queue_id, stretch.queue_offset
        queues = self._queues
        queue = queues.table.get((topic, queue_id))
        if queue is not None and queue.max_number == number and stretch.first_at > known_until:
            queues.put_entries(queue, stretch.entries)
            return
        for queue_offset, (offset, size, code) in enumerate(ENTRY.iter_unpack(stretch.entries), number):
            if offset <= known_until:
                continue
            queue = queues.table.get((topic, queue_id))
            if queue is not None and queue.max_number == queue_offset:
                queues.put(queue, queue_offset, offset, size, code)
            else:
                self._put_out_of_order(topic, queue_id, queue_offset, offset, size, code)

    def _put_out_of_order(
        self, topic: str, queue_id: int, queue_offset: int, physical_offset: int, size: int, code: int
    ) -> None:
        """Add an entry that is the queue's first, a duplicate, after a gap, or of a topic deleted since."""
        if self.deleted_topics and physical_offset < self.deleted_topics.get(topic, 0):
            return
        try:
            queue = self._queues.get_or_make(topic, queue_id)
        except IllegalMessageError:
            self.refused_entries += 1
            return
        known = queue_offset < queue.max_number
        if not self._queues.put(queue, queue_offset, physical_offset, size, code) and not known:
            self.refused_entries += 1
