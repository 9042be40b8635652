"""Hand-over: read a due message, store its copy in its real topic, and settle it, in one step."""

from __future__ import annotations

import logging
from collections.abc import Callable

from delaymq.broker.delivery.copies import (
    Fate,
    copy_of,
    mark_of_unreadable,
    mark_of_unreadable_timed,
    timed_copy_of,
)
from delaymq.broker.delivery.pending_topics import PendingTopics
from delaymq.broker.delivery.reader import DeliveryStore, Place, ScheduleReader
from delaymq.broker.delivery.status import DeliveryCounters, LatenessHistogram
from delaymq.broker.delivery.topic_lateness import TopicLateness
from delaymq.message import names
from delaymq.message.levels import level_of_queue
from delaymq.message.marks import parse_due
from delaymq.message.properties import decode_properties
from delaymq.message.record import BLANK_MAGIC, IPV4_HOST_BYTES, SIZE_AND_MAGIC, Record
from delaymq.schedule import Backoff, Entry, LevelQueue, PacedQueue, RetryQueue, Scheduler
from delaymq.schedule.timeline import TIMELINE_QUEUE, PacedTimeline, Pending, Timeline
from delaymq.store.disk.files import is_shortage
from delaymq.store.errors import SegmentCreateError, StoreClosedError, StoreFailedError, StoreFullError
from delaymq.store.model import NewRecord
from delaymq.throttled_log import ThrottledLogger, about_message

_STORE_WIDE = (StoreFullError, StoreClosedError, StoreFailedError, SegmentCreateError, MemoryError)
"""Errors after which no message can be delivered: the whole schedule pauses, and no message counts as failed."""
_NO_HOST = bytes(IPV4_HOST_BYTES)

_logger = logging.getLogger(__name__)


class HandOver:
    """Takes due entries from the sources and appends their copies.

    The append is the hand-over: once the copy is in the log, the entry is settled, even if a later step fails.
    """

    def __init__(
        self,
        store: DeliveryStore,
        reader: ScheduleReader,
        sources: dict[int, LevelQueue],
        timeline: Timeline,
        topics: PendingTopics,
        counters: DeliveryCounters,
        now_ms: Callable[[], int],
        backoff: Backoff,
        topic_lateness: TopicLateness,
        on_dead_letter: Callable[[str], object] | None,
        on_delivered: Callable[[str, int, int], None] | None,
    ) -> None:
        """Create the hand-over; see `Delivery` for the last three arguments."""
        self.lateness: dict[int, LatenessHistogram] = {TIMELINE_QUEUE: LatenessHistogram()}
        """Lateness by queue of the schedule topic; that of timed messages under TIMELINE_QUEUE."""
        self.running = False
        """Whether records that the store currently dispatches were appended by this class."""
        self.copy_seen = False
        """Whether the store has dispatched the copy that is being appended."""
        self.retries = RetryQueue(backoff)
        self.paused = False
        """Whether nothing is delivered until someone resumes deliveries."""
        self.drop_up_to_ms: int | None = None
        """Messages due at or before this time are settled without being delivered."""
        self.spread: PacedQueue | None = None
        """Overdue messages of the delay levels that are delivered evenly over a period."""
        self.timed_spread: PacedTimeline | None = None
        """Overdue timed messages that are delivered evenly over the same period."""
        self._spread_up_to_ms = 0
        self._timeline = timeline
        self._topic_lateness = topic_lateness
        self._on_dead_letter = on_dead_letter
        self._on_delivered = on_delivered
        self._store = store
        self._reader = reader
        self._sources = sources
        self._topics = topics
        self._counters = counters
        self._backoff = backoff
        self._now_ms = now_ms
        self._throttled = ThrottledLogger(_logger, now_ms)
        self._scheduler = Scheduler()
        self._scheduler.add(self.retries)
        self._scheduler.add(timeline)
        self._pauses = 0
        self._paused_until_ms = 0

    def add_source(self, source: LevelQueue) -> None:
        """Add a source of due messages."""
        self.lateness[source.queue_id] = LatenessHistogram()
        self._scheduler.add(source)

    def begin_spread(self, spread: PacedQueue, timed: PacedTimeline, up_to_ms: int) -> None:
        """Add sources that contain all messages due at or before `up_to_ms`."""
        self.spread, self.timed_spread, self._spread_up_to_ms = spread, timed, up_to_ms
        self._scheduler.add(spread)
        self._scheduler.add(timed)

    @property
    def spread_left(self) -> int:
        """Number of messages that a spread still contains."""
        return (self.spread.left if self.spread else 0) + (self.timed_spread.left if self.timed_spread else 0)

    @property
    def is_spread_over(self) -> bool:
        """Whether a spread contains no message any more. Unlike `spread_left`, it does not count them."""
        return all(each is None or each.next_due_ms() is None for each in (self.spread, self.timed_spread))

    def end_spread(self) -> None:
        """Put the rest of a spread back into its queues."""
        timed, self.timed_spread = self.timed_spread, None
        if timed is not None:
            self._scheduler.remove(timed)
            try:
                timed.end()
            except OSError as error:
                self.stop_timed(error)
        spread, self.spread = self.spread, None
        if spread is not None:
            self._scheduler.remove(spread)
            runs, returned = spread.rest()
            for queue_id, run in runs:
                self._sources[queue_id].put_back(run)
            for queue_id in {entry[1] for entry in returned}:
                self._sources[queue_id].give_back([entry for entry in returned if entry[1] == queue_id])

    def next_wakeup_ms(self) -> int | None:
        """Return the wall-clock time of the next hand-over, possibly in the past; None if nothing is pending or
        deliveries are paused."""
        if self.paused:
            return None
        wakeup_ms = self._scheduler.next_wakeup_ms()
        if wakeup_ms is not None and self._is_paused(self._now_ms()):
            wakeup_ms = max(wakeup_ms, self._paused_until_ms)
        return wakeup_ms

    def _is_paused(self, now_ms: int) -> bool:
        # The first comparison prevents a clock that was set back from prolonging the pause.
        return self._paused_until_ms - self._backoff.longest_ms <= now_ms < self._paused_until_ms

    def run(self, now_ms: int, budget: int) -> int:
        """Deliver at most `budget` messages that are due by the wall clock; return the number of processed ones.

        While the result is not 0, call it again as soon as other work has run; otherwise, at `next_wakeup_ms`.
        """
        if self.paused or self._is_paused(now_ms):
            return 0
        handed_over = 0
        try:
            batches = self._scheduler.due(now_ms, budget)
        except OSError as error:
            self.stop_timed(error)
            return 0
        self.running = True
        try:
            for number, batch in enumerate(batches):
                for position, entry in enumerate(batch):
                    try:
                        self._hand_over_one(entry, now_ms)
                    except Exception as error:
                        if isinstance(error, _STORE_WIDE) or is_shortage(error):
                            self._give_back([batch[position:], *batches[number + 1 :]], now_ms)
                            self._pause(error, now_ms)
                            return handed_over
                        self._schedule_retry(entry, error, now_ms)
                    handed_over += 1
        finally:
            self.running = False
        if handed_over:
            self._pauses = self._paused_until_ms = 0
        return handed_over

    def _hand_over_one(self, entry: Entry, now_ms: int) -> None:
        due_ms, queue_id, offset, failures = entry
        if queue_id == TIMELINE_QUEUE:
            self._hand_over_timed(offset, now_ms)
            return
        source = self._sources[queue_id]
        if failures and offset in source.settled:
            return
        place = self._reader.place(queue_id, offset)
        if place is None:
            self._counters.gone += 1
            level = level_of_queue(queue_id)
            text = "a message of delay level %d is lost: its segment was deleted or its record is damaged"
            self._throttled.warning(text, level, delayLevel=level, queueOffset=offset)
            self._settle(source, offset)
            return
        record = self._reader.record(queue_id, offset, place)
        if record is None:
            self._give_up_unreadable(entry, place, now_ms)
            return
        properties = decode_properties(record.raw_properties)
        own_due_ms = parse_due(properties.get(names.DUE, ""), queue_id, offset)
        if own_due_ms is not None and own_due_ms > now_ms:
            # The queue entry differs: another broker rebuilt it with its own delay level table. The record is correct.
            source.give_back([(own_due_ms, queue_id, offset, 0)])
            return
        if own_due_ms is None:
            # A client copied it from another record. In the copy, it would be taken for the due time of this record.
            properties.pop(names.DUE, None)
        known_due_ms = due_ms if own_due_ms is None else own_due_ms
        refused = self.drop_up_to_ms is not None and known_due_ms <= self.drop_up_to_ms
        fate, copy = copy_of(record, properties, refused=refused, has_own_due=own_due_ms is not None)
        if fate is Fate.DEAD and self._on_dead_letter is not None:
            self._on_dead_letter(copy.topic)
        store_timestamp_ms, size = self._append(copy, now_ms, record.size)
        self._settle(source, offset)
        if fate is Fate.DELIVERED:
            lateness_ms = store_timestamp_ms - known_due_ms
            self.lateness[queue_id].add(lateness_ms)
            self._topic_lateness.add(copy.topic, lateness_ms)
            if self._on_delivered is not None:
                self._on_delivered(copy.topic, queue_id, size)
        self._count(fate, record, copy, is_foreign=own_due_ms is None)

    def stop_timed(self, error: Exception) -> None:
        """Stop because the index of timed messages cannot be read; a start builds it again from the log."""
        reason = f"the index of timed messages cannot be read ({error}): restart the broker, which builds it again"
        _logger.error(reason)
        self._store.fail(reason)
        self.paused = True

    def _hand_over_timed(self, identity: int, now_ms: int) -> None:
        pending = self._timeline.taken(identity)
        if pending is None:
            return  # it has ended while it waited for another attempt
        record = self._reader.timed_record(pending)
        if record is None and pending.record != identity:
            record = self._reader.timed_record(pending._replace(record=identity))
        if record is None:
            self._give_up_unreadable_timed(pending, now_ms)
            return
        properties = decode_properties(record.raw_properties)
        refused = self.drop_up_to_ms is not None and pending.due_ms <= self.drop_up_to_ms
        fate, copy = timed_copy_of(record, properties, pending, now_ms, refused=refused)
        if fate is Fate.DEAD and self._on_dead_letter is not None:
            self._on_dead_letter(copy.topic)
        store_timestamp_ms, size = self._append(copy, now_ms, record.size)
        self._timeline.settle(identity)
        if fate is Fate.DELIVERED:
            lateness_ms = store_timestamp_ms - pending.due_ms
            self.lateness[TIMELINE_QUEUE].add(lateness_ms)
            self._topic_lateness.add(copy.topic, lateness_ms)
            if self._on_delivered is not None:
                self._on_delivered(copy.topic, TIMELINE_QUEUE, size)
        self._count(fate, record, copy, is_foreign=False)

    def give_up_unreadable_timed(self, pending: Pending, now_ms: int) -> None:
        """End a pending timed message whose record cannot be read. StoreError."""
        running, self.running = self.running, True
        try:
            self._give_up_unreadable_timed(pending, now_ms)
        finally:
            self.running = running

    def _give_up_unreadable_timed(self, pending: Pending, now_ms: int) -> None:
        topic = self._timeline.partitions.key(pending.partition).topic
        self._append(mark_of_unreadable_timed(pending, topic, now_ms, _NO_HOST), now_ms)
        self._timeline.end(pending.due_ms, pending.identity, pending.partition)
        self._counters.corrupt += 1
        self._throttled.warning(
            "a timed message for topic %s (physical offset %d) cannot be read and is given up",
            topic,
            pending.record,
            topic=topic,
            offset=pending.record,
        )

    def _settle(self, source: LevelQueue, offset: int) -> None:
        settled = source.settled
        if settled.settle(offset):
            self._topics.queue(source.queue_id).settle(offset, settled.low)

    def _append(self, copy: NewRecord, now_ms: int, about_bytes: int = 0) -> tuple[int, int]:
        """Append the record that settles an entry; return its store time in ms and its size. If it raises, nothing is
        in the log."""
        end_before = self._store.end_offset
        self.copy_seen = False
        try:
            appended = self._store.append(copy)
            return appended.store_timestamp_ms, appended.size
        except Exception as error:
            if self.copy_seen or self._is_stored_at(end_before, copy):
                # It is in the log, and only a later step failed: a second attempt would deliver it twice.
                self._throttled.warning(
                    "a delayed message was delivered, but a later step failed: %s", error, error=error, topic=copy.topic
                )
                return max(now_ms, self._store.last_store_timestamp_ms), about_bytes
            raise

    def _is_stored_at(self, physical_offset: int, copy: NewRecord) -> bool:
        """Whether `copy` was appended at this physical offset, the former end of the log, or after a blank record
        there."""
        if self._store.end_offset <= physical_offset:
            return False
        head = self._store.read_bytes(physical_offset, SIZE_AND_MAGIC.size)
        if len(head) < SIZE_AND_MAGIC.size:
            return False
        size, magic = SIZE_AND_MAGIC.unpack(head)
        if magic == BLANK_MAGIC:
            physical_offset += size
        if self._store.end_offset <= physical_offset:
            return False
        record = self._store.record_at(physical_offset)
        return record is not None and record.topic == copy.topic and record.properties == copy.properties

    def _schedule_retry(self, entry: Entry, error: Exception, now_ms: int) -> None:
        self._counters.failed += 1
        wait_ms = self.retries.add_failed(entry, now_ms)
        if entry[1] == TIMELINE_QUEUE:
            self._throttled.warning(
                "a timed message (physical offset %d) could not be delivered; the broker retries in %d ms: %s",
                entry[2],
                wait_ms,
                error,
                error=error,
                offset=entry[2],
            )
            return
        self._throttled.warning(
            "entry %d of delay level %d could not be delivered; the broker retries in %d ms: %s",
            entry[2],
            level_of_queue(entry[1]),
            wait_ms,
            error,
            error=error,
            delayLevel=level_of_queue(entry[1]),
            queueOffset=entry[2],
        )

    def _pause(self, error: Exception, now_ms: int) -> None:
        self._pauses += 1
        wait_ms = self._backoff.wait_ms(self._pauses)
        self._paused_until_ms = now_ms + wait_ms
        self._counters.failed += 1
        self._throttled.warning(
            "delivery of delayed messages paused for %d ms: the store rejects writes: %s", wait_ms, error
        )

    def _give_back(self, batches: list[list[Entry]], now_ms: int) -> None:
        for batch in batches:
            fresh = [entry for entry in batch if entry[3] == 0]
            is_paced = bool(fresh) and fresh[0][0] <= self._spread_up_to_ms
            if fresh and fresh[0][1] == TIMELINE_QUEUE:
                paced = self.timed_spread if is_paced else None
                (paced or self._timeline).give_back(fresh)
            elif fresh and self.spread is not None and is_paced:
                self.spread.give_back(fresh)
            elif fresh:
                self._sources[fresh[0][1]].give_back(fresh)
            for entry in batch:
                if entry[3]:
                    self.retries.give_back(entry, now_ms)

    def _give_up_unreadable(self, entry: Entry, place: Place, now_ms: int) -> None:
        _, queue_id, offset, _ = entry
        mark = mark_of_unreadable(queue_id, offset, place.physical_offset, now_ms, _NO_HOST)
        self._append(mark, now_ms)
        self._settle(self._sources[queue_id], offset)
        self._counters.corrupt += 1
        self._throttled.warning(
            "a message of delay level %d (entry %d, physical offset %d) cannot be read and is given up",
            level_of_queue(queue_id),
            offset,
            place.physical_offset,
            delayLevel=level_of_queue(queue_id),
            queueOffset=offset,
            offset=place.physical_offset,
        )

    def _count(self, fate: Fate, record: Record, copy: NewRecord, *, is_foreign: bool) -> None:
        counters = self._counters
        if fate is Fate.DELIVERED:
            counters.delivered[copy.topic] = counters.delivered.get(copy.topic, 0) + 1
            counters.foreign += is_foreign
        elif fate is Fate.DEAD:
            counters.dead += 1
            self._throttled.warning(
                "a delayed message (physical offset %d) names no valid topic for its delivery and was moved to topic"
                " %s",
                record.physical_offset,
                copy.topic,
                **about_message(decode_properties(record.raw_properties)),
                offset=record.physical_offset,
            )
        elif fate is Fate.REFUSED:
            counters.refused += 1
        else:
            counters.dropped += 1
