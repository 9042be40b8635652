"""Hand-over: read a due message, store its copy in its real topic, and settle it, in one step."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TypeAlias

from delaymq.broker.delivery.copying.copies import (
    Due,
    Fate,
    copy_of,
    mark_of_expired,
    mark_of_unreadable,
    mark_of_unreadable_timed,
    timed_copy_of,
)
from delaymq.broker.delivery.copying.plain_copies import plain_copy
from delaymq.broker.delivery.encoded_copies import by_topic, encoded_deliveries
from delaymq.broker.delivery.queue_state import QueueState
from delaymq.broker.delivery.reader import DeliveryStore, ScheduleReader, StoppedError, rejects_all
from delaymq.broker.delivery.repeating.runs import Repeating
from delaymq.broker.delivery.settings.promises import Promises
from delaymq.broker.delivery.status import DeliveryCounters, LatenessHistogram
from delaymq.broker.delivery.tally import Tally, Undelivered
from delaymq.broker.delivery.timed.replay import is_schedule
from delaymq.broker.delivery.timed.requests import expiry_ms
from delaymq.broker.delivery.topic_lateness import TopicLateness
from delaymq.message import names
from delaymq.message.levels import queue_of_level
from delaymq.message.marks import parse_due
from delaymq.message.properties import decode_properties
from delaymq.message.record import IPV4_HOST_BYTES, Record
from delaymq.schedule import Backoff, Entry, RetryQueue, Scheduler, Settled
from delaymq.schedule.timeline import TIMELINE_QUEUE, PacedTimeline, Pending, Timeline
from delaymq.store.model import Dispatched, NewRecord
from delaymq.throttled_log import ThrottledLogger

_UNFLUSHED_WAIT_MS = 10
"""Interval between checks whether a record that carries a message forward is on disk."""
_LONGEST_STEP_S = 0.02
"""Time in s after which a step ends, although its budget is not used up. Repeating messages may take milliseconds."""
_NO_HOST = bytes(IPV4_HOST_BYTES)

_logger = logging.getLogger(__name__)


_Plain: TypeAlias = tuple[int, Pending, str, int, int]
"""A due message whose plain copy is to be appended: index of its entry in the batch, message, topic, delay level, and
offset of its record in the queue."""


class HandOver:
    """Takes due messages from the index and appends their copies.

    The append is the hand-over: once the copy is in the log, the entry is settled, even if a later step fails.
    """

    def __init__(
        self,
        store: DeliveryStore,
        reader: ScheduleReader,
        queues: Mapping[int, QueueState],
        timeline: Timeline,
        counters: DeliveryCounters,
        now_ms: Callable[[], int],
        backoff: Backoff,
        topic_lateness: TopicLateness,
        promises: Promises,
        on_dead_letter: Callable[[str], object] | None,
        on_delivered: Callable[[str, int, int, int], None] | None,
    ) -> None:
        """Create the hand-over; see `Delivery` for the last three arguments."""
        self.lateness: dict[int, LatenessHistogram] = defaultdict(LatenessHistogram)
        """Lateness by queue of the schedule topic; that of timed messages under TIMELINE_QUEUE."""
        self.running = False
        """Whether records that the store currently dispatches were appended by this class."""
        self.retries = RetryQueue(backoff)
        self.paused = False
        """Whether nothing is delivered until someone resumes deliveries, or the broker is restarted."""
        self.is_paused_by_log = False
        """Whether the log states that all deliveries are paused."""
        self.drop_up_to_ms: int | None = None
        """Messages due at or before this time are settled without being delivered."""
        self.spread: PacedTimeline | None = None
        """Overdue messages that are delivered evenly over a period."""
        self._spread_up_to_ms = 0
        self.repeating: Repeating | None = None
        """Decides about repeating messages."""
        self._timeline = timeline
        self._topic_lateness = topic_lateness
        self._promises = promises
        self._undelivered = Undelivered(counters, promises, ThrottledLogger(_logger, now_ms))
        self._delivered: list[int] = []
        """Identities of the messages that the current run has delivered."""
        self._settled: defaultdict[int, list[int]] = defaultdict(list)
        """By delay level: offsets of their entries."""
        self._tally = Tally()
        self._encoded = encoded_deliveries(
            store, timeline, queues, promises, self._delivered, self._settled, self._tally, self._report_late_failure
        )
        self._on_dead_letter = on_dead_letter
        self._on_delivered = on_delivered
        self._store = store
        self._reader = reader
        self._queues = queues
        self._counters = counters
        self._backoff = backoff
        self._now_ms = now_ms
        self._throttled = ThrottledLogger(_logger, now_ms)
        self._scheduler = Scheduler()
        self._scheduler.add(self.retries)
        self._scheduler.add(timeline)
        self._pauses = 0
        self._paused_until_ms = 0

    def begin_spread(self, spread: PacedTimeline, up_to_ms: int) -> None:
        """Add a source that contains all messages due at or before `up_to_ms`."""
        self.spread, self._spread_up_to_ms = spread, up_to_ms
        self._scheduler.add(spread)

    @property
    def spread_left(self) -> int:
        """Number of messages that a spread still contains."""
        return self.spread.left if self.spread else 0

    @property
    def is_spread_over(self) -> bool:
        """Whether a spread contains no message any more. Unlike `spread_left`, it does not count them."""
        return self.spread is None or self.spread.next_due_ms() is None

    def end_spread(self) -> None:
        """Return the rest of a spread to the index."""
        spread, self.spread = self.spread, None
        if spread is not None:
            self._scheduler.remove(spread)
            try:
                spread.end()
            except OSError as error:
                self.stop(error)

    def next_wakeup_ms(self) -> int | None:
        """Return the wall-clock time of the next hand-over, possibly past; None if nothing pending may be delivered."""
        if self.paused or self.is_paused_by_log:
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
        if self.paused or self.is_paused_by_log or self._is_paused(now_ms):
            return 0
        try:
            handed_over, batches = 0, by_topic(self._timeline, self._scheduler.due(now_ms, budget))
        except OSError as error:
            self.stop(error)
            return 0
        self.running = True
        try:
            end_s = perf_counter() + _LONGEST_STEP_S
            for number, batch in enumerate(batches):
                left = batch if self._encoded is None else self._encoded.deliver(batch, now_ms, self.drop_up_to_ms)
                handed_over += len(batch) - len(left)
                try:
                    done = self._hand_over_batch(left, now_ms, end_s)
                except StoppedError as stopped:
                    self._give_back([left[stopped.position :], *batches[number + 1 :]], now_ms)
                    self._pause(stopped.reason, now_ms)
                    return handed_over + stopped.position
                handed_over += done
                if done < len(left):
                    self._give_back([left[done:], *batches[number + 1 :]], now_ms)
                    break
        finally:
            self.running = False
            self._settle_delivered()
        if handed_over:
            self._pauses = self._paused_until_ms = 0
        return handed_over

    def _settle_delivered(self) -> None:
        """End the messages that this run has delivered, and count them."""
        if not self._delivered:
            return
        self._timeline.settle(self._delivered)
        self._delivered.clear()
        for level, offsets in self._settled.items():
            settle = self._queues[queue_of_level(level)].settled.settle
            for offset in sorted(offsets):  # topics are delivered in turn
                settle(offset)
        self._settled.clear()
        delivered = self._counters.delivered
        for topic, level, lateness_ms, messages, size in self._tally.take():
            queue_id = queue_of_level(level)
            self.lateness[queue_id].add(lateness_ms, messages)
            self._promises.count(topic, lateness_ms, messages)
            self._topic_lateness.add(topic, lateness_ms, messages)
            delivered[topic] = delivered.get(topic, 0) + messages
            if self._on_delivered is not None:
                self._on_delivered(topic, queue_id, size, messages)

    def forget(self, identity: int) -> None:
        """Make no further attempt for a message that was taken before, because it has ended or was moved."""
        self.retries.remove(identity)

    def stop(self, error: Exception) -> None:
        """Stop because the index of pending messages cannot be read; a start builds it again from the log."""
        reason = f"the index of pending messages cannot be read ({error}): restart the broker, which builds it again"
        _logger.error(reason)
        self._store.fail(reason)
        self.paused = True

    def _hand_over_batch(self, batch: list[Entry], now_ms: int, end_s: float) -> int:
        """Deliver entries in order, plain copies in runs, until about `end_s`; return their number. StoppedError."""
        waiting: list[_Plain] = []
        copies: list[NewRecord] = []
        taken, key_of, read = self._timeline.taken, self._timeline.partitions.key, self._store.read_bytes
        has_pauses, hold_if_paused = self._timeline.queues.has_pauses, self._timeline.holding.hold_if_paused
        partition, topic, level, settled, is_plain = -1, "", 0, None, False
        drop_up_to_ms = -1 if self.drop_up_to_ms is None else self.drop_up_to_ms
        for position, entry in enumerate(batch):
            pending = taken(entry[2])
            if pending is None:
                continue  # it has ended while it waited for another attempt
            if has_pauses and hold_if_paused(pending):
                continue
            try:
                if pending.partition != partition:
                    topic, _, level = key_of(pending.partition)
                    settled = self._queues[queue_of_level(level)].settled if level else None
                    partition = pending.partition
                    is_plain = not self._promises.decide(topic)
                data = read(pending.record, pending.size) if is_plain and pending.due_ms > drop_up_to_ms else b""
                plain = plain_copy(data, pending, topic, level, now_ms)
            except Exception:
                plain = None  # the long path fails in the same way, and reports it
            if plain is None:
                self._append_plain(batch, waiting, copies, now_ms)
                try:
                    self._hand_over_unusual(entry, pending, now_ms)
                except Exception as error:
                    self._failed(batch, position, error, now_ms)
                if perf_counter() >= end_s:
                    return position + 1
                continue
            copy, queue_offset = plain
            if settled is not None and (queue_offset < settled.low or queue_offset in settled.above):
                self._timeline.settle((pending.identity,))  # it was settled while it was not known to the index
                continue
            copies.append(copy)
            waiting.append((position, pending, topic, level, queue_offset))
        self._append_plain(batch, waiting, copies, now_ms)
        return len(batch)

    def _append_plain(self, batch: list[Entry], waiting: list[_Plain], copies: list[NewRecord], now_ms: int) -> None:
        """Append plain copies and empty both lists. Raises StoppedError."""
        while copies:
            appended: list[Dispatched] = []
            failure = None
            try:
                self._store.append_copies(copies, appended)
            except Exception as error:
                failure = error
            done = len(appended)
            for (_, pending, topic, level, queue_offset), record in zip(waiting, appended, strict=False):
                if level:
                    self._settled[level].append(queue_offset)
                self._delivered.append(pending.identity)
                self._tally.add(topic, level, record.store_timestamp_ms - pending.due_ms, record.size)
            if failure is not None and done == len(copies):
                self._report_late_failure(failure, copies[-1].topic)
            elif failure is not None:
                self._failed(batch, waiting[done][0], failure, now_ms)
                done += 1
            del waiting[:done], copies[:done]

    def _failed(self, batch: list[Entry], position: int, error: Exception, now_ms: int) -> None:
        """Schedule another attempt for an entry that was not delivered. Raises StoppedError."""
        if rejects_all(error):
            raise StoppedError(position, error)
        self._schedule_retry(batch[position], error, now_ms)

    def _hand_over_unusual(self, entry: Entry, pending: Pending, now_ms: int) -> None:
        level = self._timeline.partitions.key(pending.partition).level
        if level and pending.record != pending.identity and self._is_unflushed(pending):
            self.retries.give_back(entry, now_ms + _UNFLUSHED_WAIT_MS)
            return
        due = self._due_of_level(pending, level, now_ms) if level else self._due_timed(entry, pending, now_ms)
        if due is None:
            return
        record, fate, copy, due_ms, is_foreign = due
        if fate is Fate.DEAD and self._on_dead_letter is not None:
            self._on_dead_letter(copy.topic)
        store_timestamp_ms, size = self._append(copy, now_ms, record.size)
        if level:
            self._queues[record.queue_id].settled.settle(record.queue_offset)
        self._delivered.append(pending.identity)
        if fate is Fate.DELIVERED:
            self._tally.add(copy.topic, level, store_timestamp_ms - due_ms, size)
            self._counters.foreign += is_foreign
        else:
            self._undelivered.count(fate, record, copy)
            if fate is Fate.EXPIRED:  # worse than late
                self._promises.count(copy.properties.get(names.REAL_TOPIC, ""), store_timestamp_ms - due_ms, 1)

    def _due_of_level(self, pending: Pending, level: int, now_ms: int) -> Due | None:
        """Return a message with a delay level; None if it is settled, not due yet, or given up."""
        record = self._reader.level_record(pending, level)
        if record is None:
            self._give_up_unreadable(pending, level, now_ms)
            return None
        queue_id, offset = record.queue_id, record.queue_offset
        if offset in self._queues[queue_id].settled:
            self._timeline.settle((pending.identity,))  # it was settled while it was not known to the index
            return None
        properties = decode_properties(record.raw_properties)
        own_due_ms = parse_due(properties.get(names.DUE, ""), queue_id, offset)
        if own_due_ms is not None and own_due_ms > now_ms:
            # The queue entry differs: another broker rebuilt it with its own delay level table. The record is correct.
            self._timeline.give_back([(own_due_ms, TIMELINE_QUEUE, pending.identity, 0)])
            return None
        if own_due_ms is None:
            # A client copied it from another record. In the copy, it would be taken for the due time of this record.
            properties.pop(names.DUE, None)
        if self._timeline.queues.has_pauses and self._timeline.holding.hold_if_paused(
            pending, properties.get(names.REAL_TOPIC, "")
        ):
            return None  # its topic was unknown to the index
        due_ms = pending.due_ms if own_due_ms is None else own_due_ms
        decided = self._decided(properties, pending, due_ms)
        fate, copy = copy_of(record, properties, decided=decided, has_own_due=own_due_ms is not None)
        return Due(record, fate, copy, due_ms, own_due_ms is None)

    def _due_timed(self, entry: Entry, pending: Pending, now_ms: int) -> Due | None:
        """Return a timed message; None if it is given up, or has to wait for the disk."""
        record = self._reader.timed_record(pending)
        if record is None and pending.record != pending.identity:
            record = self._reader.timed_record(pending._replace(record=pending.identity))
        if record is None:
            self._give_up_unreadable_timed(pending, now_ms)
            return None
        properties = decode_properties(record.raw_properties)
        if is_schedule(properties, record.physical_offset):
            self._repeat(record, pending, now_ms)
            return None
        if names.MARK in properties and self._is_unflushed(pending):
            self.retries.give_back(entry, now_ms + _UNFLUSHED_WAIT_MS)
            return None
        expire_ms = expiry_ms(properties)
        if expire_ms is not None and now_ms - pending.due_ms > expire_ms:
            return Due(record, Fate.EXPIRED, mark_of_expired(record, pending, now_ms), pending.due_ms, False)
        decided = self._decided(properties, pending, pending.due_ms)
        fate, copy = timed_copy_of(record, properties, pending, now_ms, decided=decided)
        return Due(record, fate, copy, pending.due_ms, False)

    def _repeat(self, record: Record, pending: Pending, now_ms: int) -> None:
        """Deliver or skip runs of a repeating message, and let it be due at its next run."""
        assert self.repeating is not None
        outcome = self.repeating.outcome(record, pending, now_ms, self._dropped_up_to(pending, pending.due_ms))
        store_timestamp_ms, size = self._append(outcome.copy, now_ms, record.size)
        try:
            self.repeating.done(outcome, pending)
        except OSError as error:
            self.stop(error)  # the log states what happened
        if outcome.run is not None:
            self._tally.add(outcome.copy.topic, 0, store_timestamp_ms - outcome.run_ms, size)
            self._delivered.append(pending.identity)

    def _is_unflushed(self, pending: Pending) -> bool:
        """Whether a power failure could lose the record of a message.

        The record of a message that was carried forward or moved from a delay level proves that an earlier one was
        replaced. A copy of the message does not.
        """
        return pending.record + pending.size > self._store.durable_offset

    def _dropped_up_to(self, pending: Pending, due_ms: int) -> int | None:
        """Return the time up to which messages are dropped; None if one that is due then is delivered."""
        if self.drop_up_to_ms is not None and due_ms <= self.drop_up_to_ms:
            return self.drop_up_to_ms
        topic, held_group, _ = self._timeline.partitions.key(pending.partition)
        return None if held_group else self._promises.dropped_up_to(topic, due_ms)

    def _decided(self, properties: dict[str, str], pending: Pending, due_ms: int) -> Fate | None:
        """Return the outcome of a message if it depends only on settings; None if the message decides."""
        if self._dropped_up_to(pending, due_ms) is not None:
            return Fate.REFUSED
        return self._promises.fate_of_gone(properties.get(names.REAL_TOPIC, ""))

    def _give_up_unreadable(self, pending: Pending, level: int, now_ms: int) -> None:
        queue_id, place = queue_of_level(level), pending.record
        queue = self._queues.get(queue_id)
        settled = Settled() if queue is None else queue.settled
        offset = self._reader.offset_of(queue_id, place)
        if offset is None:
            # The queue begins with the first record that exists.
            self._counters.gone += settled.raise_low(self._store.stored_bounds(names.SCHEDULE_TOPIC, queue_id)[0])
            text = "a message of delay level %d is lost: its segment was deleted (physical offset %d)"
            self._throttled.warning(text, level, place, delayLevel=level, offset=place)
        elif offset not in settled:
            self._append(mark_of_unreadable(queue_id, offset, place, now_ms, _NO_HOST), now_ms)
            settled.settle(offset)
            self._counters.corrupt += 1
            text = "a message of delay level %d (entry %d, physical offset %d) cannot be read and is given up"
            values = level, offset, place
            self._throttled.warning(text, *values, delayLevel=level, queueOffset=offset, offset=place)
        self._timeline.end(pending.due_ms, pending.identity, pending.partition)

    def give_up(self, pending: Pending, now_ms: int) -> None:
        """End a pending message whose record cannot be read. StoreError."""
        running, self.running = self.running, True
        try:
            level = self._timeline.partitions.key(pending.partition).level
            if level:
                self._give_up_unreadable(pending, level, now_ms)
            else:
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

    def _append(self, copy: NewRecord, now_ms: int, about_bytes: int = 0) -> tuple[int, int]:
        """Append the record that settles an entry; return its store time in ms and its size. If it raises, nothing is
        in the log."""
        last_before = self._store.last_offset
        try:
            appended = self._store.append(copy)
            return appended.store_timestamp_ms, appended.size
        except Exception as error:
            if self._store.last_offset != last_before:
                # It is in the log, and only a later step failed: a second attempt would deliver it twice.
                self._report_late_failure(error, copy.topic)
                return max(now_ms, self._store.last_store_timestamp_ms), about_bytes
            raise

    def _report_late_failure(self, error: Exception, topic: str) -> None:
        self._throttled.warning(
            "a delayed message was delivered, but a later step failed: %s", error, error=error, topic=topic
        )

    def _schedule_retry(self, entry: Entry, error: Exception, now_ms: int) -> None:
        self._counters.failed += 1
        wait_ms = self.retries.add_failed(entry, now_ms)
        pending = self._timeline.taken(entry[2])
        key = self._timeline.partitions.key(pending.partition) if pending is not None else None
        self._throttled.warning(
            "a %s (physical offset %d) could not be delivered; the broker retries in %d ms: %s",
            f"message of delay level {key.level}" if key is not None and key.level else "timed message",
            entry[2],
            wait_ms,
            error,
            error=error,
            offset=entry[2],
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
            if fresh:
                paced = self.spread if fresh[0][0] <= self._spread_up_to_ms else None
                (paced or self._timeline).give_back(fresh)
            for entry in batch:
                if entry[3]:
                    self.retries.give_back(entry, now_ms)
