"""Delivery of delayed messages when they are due: once, never early, even after crashes.

A hand-over is one append: the copy carries a mark that names the entry which it settles. The copies in the log are
therefore the position of the schedule. No other file takes precedence: at a start, the position is read from the marks
(recovery). Everything here runs on the thread that owns the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from delaymq.broker.delivery.changes.changes import Changes
from delaymq.broker.delivery.changes.groups import GroupChanges
from delaymq.broker.delivery.changes.lookup import Lookup
from delaymq.broker.delivery.changes.pauses import Pauses
from delaymq.broker.delivery.control import DeliveryControl
from delaymq.broker.delivery.delay_rewrite import DelayIngress, DelaySettings
from delaymq.broker.delivery.hand_over import HandOver
from delaymq.broker.delivery.level_entries import UNKNOWN_TOPIC, add_entry, add_sent, end_entry, is_pending
from delaymq.broker.delivery.offsets import OffsetsFile, SaveTask, read_offsets
from delaymq.broker.delivery.pin import DeliveryPin
from delaymq.broker.delivery.queue_state import QueueState
from delaymq.broker.delivery.reader import DeliveryStore, ScheduleReader
from delaymq.broker.delivery.recovery import Replay, is_settled_by, start_positions, state_of
from delaymq.broker.delivery.repeating.open_runs import OpenRuns
from delaymq.broker.delivery.repeating.runs import Repeating
from delaymq.broker.delivery.settings.limits import DelayLimits
from delaymq.broker.delivery.settings.promises import Promises
from delaymq.broker.delivery.settings.table import DelaySettingsTable
from delaymq.broker.delivery.settlement import claim_of
from delaymq.broker.delivery.status import LatenessHistogram, status_of
from delaymq.broker.delivery.timed.carrying import Carrier
from delaymq.broker.delivery.timed.replay import entry_of, own_due
from delaymq.broker.delivery.topic_lateness import TopicLateness
from delaymq.broker.delivery.upkeep import Upkeep
from delaymq.message import names
from delaymq.message.levels import MAX_LEVELS, DelayLevels, level_of_queue, queue_of_level
from delaymq.message.record import Record
from delaymq.message.timed_marks import TimedDue
from delaymq.schedule import Backoff
from delaymq.schedule.timeline.inspection import next_due_by_level
from delaymq.schedule.timeline.state import Capture
from delaymq.store.errors import StoreOpenError
from delaymq.store.model import Dispatched, StateFiles
from delaymq.store.plain_runs import SentDelay
from delaymq.throttled_log import ThrottledLogger

_NEVER_MS = 1 << 62
_MS_PER_HOUR = 3_600_000
_COLONS_OF_FIRST = str(TimedDue(0, 0, 0)).count(":")
"""Colons in the statement of the first record of a message."""

_logger = logging.getLogger(__name__)


class Delivery:
    """Delivery of a broker, and after the replay the observer `schedule` of its store."""

    name = Replay.name

    def __init__(
        self,
        store: DeliveryStore,
        replay: Replay,
        settings: DelaySettings,
        levels: DelayLevels,
        now_ms: Callable[[], int],
        backoff: Backoff | None = None,
        *,
        topic_label: Callable[[str], str] = lambda topic: "",
        on_dead_letter: Callable[[str], object] | None = None,
        on_delivered: Callable[[str, int, int, int], None] | None = None,
        promises: Promises | None = None,
    ) -> None:
        """Take over the schedule of an open store, and decide the cases that `replay` left open.

        `topic_label` returns the label under which a topic's lateness is counted. `on_dead_letter` is called with the
        dead-letter topic before it is written to, so that it can be made readable. `on_delivered` is called with real
        topic, queue of the schedule topic, bytes of the copies and their number.
        """
        self.settings = settings
        self.levels = levels
        self.counters = replay.counters
        self.on_wakeup_earlier: Callable[[], None] | None = None
        """Called when a new message is due before the last result of `next_wakeup_ms`. It must only record this."""
        self.on_dead_letter = on_dead_letter
        self.topic_lateness = TopicLateness(topic_label)
        """Lateness of messages by real topic."""
        self._store = store
        self._now_ms = now_ms
        self._throttled = ThrottledLogger(_logger, now_ms)
        self.reader = ScheduleReader(store)
        self._queues: dict[int, QueueState] = {}
        self._announced_ms = _NEVER_MS
        self.ingress = DelayIngress(settings, levels, now_ms, self.counters, self._throttled, store)
        """Redirects delayed messages to the schedule topic."""
        self.timeline = replay.timed.finish(self.reader)
        """Pending messages: timed ones, and those of the delay levels."""
        self._saving: Capture | None = None
        self.is_following = False
        """Whether another broker delivers, and this one only follows its log."""
        self.promises = promises or Promises(DelaySettingsTable(), lambda topic: True)
        """Lateness objectives, and the treatment of messages whose topic was deleted."""
        self._hand_over = self._make_hand_over(backoff or Backoff(), on_delivered)
        self._upkeep = Upkeep(self.timeline, self._hand_over, self._announce, now_ms)
        self.lookup = Lookup(store, self.reader, self.timeline, self.is_settled)
        """Finds messages by unique id and DELAY_KEY."""
        self._complete_ingress()
        self._repeating = self._hand_over.repeating = self._make_repeating(replay)
        self.limits = DelayLimits(self.promises.settings, self.timeline, self.ingress, self.counters, now_ms)
        """Limits of topics and accounts."""
        self.changes = self._make_changes()
        """Changes pending messages on request."""
        self.group_changes = self._make_group_changes()
        """Changes all messages of a group on request."""
        self.pauses = Pauses(store, self.timeline, self._hand_over, replay.timed.pauses, now_ms)
        """Pauses of topics and groups, and of all deliveries."""
        self._resume(replay)
        self._offsets_file = OffsetsFile(store, self.delay_offsets, self._throttled)
        self.carrier = self._make_carrier()
        """Carries pending messages forward, so that old segments can be deleted."""
        self._pin = DeliveryPin(store, self.timeline, self.pauses)
        self.control = DeliveryControl(store, self.timeline, self._hand_over, self.pauses, self.promises, now_ms)
        """Delivery policy. A caller that changes it must call `wake`."""
        self.control.load()

    def _complete_ingress(self) -> None:
        self.ingress.with_key = self.lookup.pending_with_key
        self.ingress.queues = self.timeline.queues

    def _make_repeating(self, replay: Replay) -> Repeating:
        open_runs = OpenRuns(replay.timed.open_runs, self._store.record_at, self.lookup)
        return Repeating(self.lookup, self.timeline, self.counters, open_runs)

    def _make_hand_over(self, backoff: Backoff, on_delivered: Callable[[str, int, int, int], None] | None) -> HandOver:
        return HandOver(
            self._store,
            self.reader,
            self._queues,
            self.timeline,
            self.counters,
            self._now_ms,
            backoff,
            self.topic_lateness,
            self.promises,
            self.on_dead_letter,
            on_delivered,
        )

    def _make_changes(self) -> Changes:
        return Changes(
            self._store,
            self.timeline,
            self._queues,
            self.settings,
            self.counters,
            self._now_ms,
            is_unchanged=self.lookup.is_unchanged,
            forget=self._hand_over.forget,
            announce=self._announce,
            check_delay=self.limits.check_delay,
        )

    def _make_group_changes(self) -> GroupChanges:
        return GroupChanges(
            self._store,
            self.timeline,
            self.settings,
            self.counters,
            self._now_ms,
            forget=self._hand_over.forget,
            announce=self._announce,
            check_delay=self.limits.check_delay,
        )

    def _make_carrier(self) -> Carrier:
        return Carrier(
            self._store, self.reader, self._queues, self.timeline, self.settings, self._now_ms,
            self._hand_over.give_up, self.lookup.pending_in, self.pauses, self._repeating.last_runs.number,
        )  # fmt: skip

    def _resume(self, replay: Replay) -> None:
        """Determine the positions of the delay levels, and add the pending messages that the index lacks."""
        store = self._store
        try:
            replay.finish(self.reader)
            stated = read_offsets(store)
            there = {queue_id for topic, queue_id in store.queues() if topic == names.SCHEDULE_TOPIC}
            stated_only = {
                queue_of_level(level) for level, offset in stated.table.items() if offset and 0 < level <= MAX_LEVELS
            }
            bounds = (
                (queue_id, *store.stored_bounds(names.SCHEDULE_TOPIC, queue_id))
                for queue_id in sorted(there | stated_only)
            )
            self.corrected = start_positions(replay.queues, bounds, stated, self.counters, replay.on_settled)
            for queue_id in sorted(there):
                queue = self._use_queue(queue_id, replay.queues[queue_id])
                replay.add_levels(self.timeline, queue_id, store.stored_bounds(names.SCHEDULE_TOPIC, queue_id)[1])
                self._report_foreign(queue_id, queue)
        except OSError as error:
            raise StoreOpenError(
                f"the index of pending messages cannot be built ({error}): free space, and start again"
            ) from error

    def _use_queue(self, queue_id: int, queue: QueueState) -> QueueState:
        self._queues[queue_id] = queue
        self._hand_over.lateness[queue_id] = LatenessHistogram()
        return queue

    def _report_foreign(self, queue_id: int, queue: QueueState) -> None:
        queue.foreign.drop_below(queue.settled.low)
        if foreign := sum(offset not in queue.settled for offset in queue.foreign):
            _logger.info(
                "%d pending messages of delay level %d were stored by another broker: those that it has already"
                " delivered are delivered again, unless their copies in the log could be matched to them",
                foreign,
                level_of_queue(queue_id),
            )

    def dispatch(self, record: Dispatched) -> None:
        """Process one record: a new entry, a record that settles an entry, or neither."""
        if record.topic == names.SCHEDULE_TOPIC:
            self._add(record)
        elif record.topic == names.TIMER_TOPIC:
            self._add_timed(record)
        elif not self._hand_over.running and names.MARK in record.properties:
            self._settle_by_mark(record)

    def dispatch_run(self, run: object) -> None:
        """Do nothing: `add_sent` adds pending messages of runs, and the hand-over settles its copies itself."""

    def state(self) -> dict[str, object]:
        """Return the state for a snapshot, which is valid for the current end of the log."""
        self._saving = Capture(self.timeline)
        return state_of(self._queues, self._saving.reference, self.pauses.as_json(), self._store.format_version)

    def state_files(self) -> StateFiles | None:
        """Return the files to which the result of `state` refers."""
        saving, self._saving = self._saving, None
        return saving

    def _add(self, record: Dispatched) -> None:
        queue = self._queues.get(record.queue_id) or self._use_queue(record.queue_id, QueueState())
        if names.DUE not in record.properties:
            queue.foreign.add(record.queue_offset)
        self._announce(add_entry(self.timeline, queue.settled, record).due_ms)

    def _add_timed(self, record: Dispatched) -> None:
        text, identity = record.properties[names.DUE], record.physical_offset
        if text.count(":") > _COLONS_OF_FIRST and (due := own_due(text, identity)) is not None:
            identity = due.identity  # it carries a message forward
            if due.replaced is not None:
                self._replace(due, record)
        self.timeline.add(entry_of(self.timeline, record, record.tags_code, identity))
        self._announce(record.tags_code)

    def add_sent(self, sent: Sequence[SentDelay], account: str = "") -> None:
        """Add delayed messages of an unchecked account, stored without `dispatch`; all even if OSError is raised."""
        for queue_id in {message[1] for message in sent if message[1] >= 0} - self._queues.keys():
            self._use_queue(queue_id, QueueState())
        self._announce(min(message[4] for message in sent))
        add_sent(self.timeline, sent, account)

    def _replace(self, due: TimedDue, record: Dispatched) -> None:
        """End the pending message that a new one with the same DELAY_KEY replaces."""
        partition = self.timeline.partitions.find(record.properties.get(names.REAL_TOPIC, ""))
        if partition is None or due.replaced is None:
            return
        pending = self.timeline.taken(due.replaced) or self.timeline.find(due.replaced_due_ms, due.replaced, partition)
        if pending is not None:
            self.changes.end(pending)

    def _announce(self, due_ms: int) -> None:
        if due_ms < self._announced_ms:
            self._announced_ms = due_ms
            if self.on_wakeup_earlier is not None:
                self.on_wakeup_earlier()

    def _settle_by_mark(self, record: Dispatched) -> None:
        claim = claim_of(record)
        if claim is None or not claim.by_mark:
            return
        queue_id, offset, physical_offset = claim.named[0]
        queue = self._queues.get(queue_id)
        if queue is not None and is_settled_by(self.reader, claim, queue_id, offset, physical_offset):
            if queue.settled.settle(offset):
                end_entry(self.timeline, self.reader, queue_id, offset)
        else:
            self.counters.disbelieved += 1

    # Roles.

    def follow(self, replay: Replay) -> None:
        """Let `replay`, which found the state, apply the records of another broker to it; deliver nothing meanwhile."""
        self.is_following = True
        replay.follow(self._queues, self.reader, self.pauses)

    def lead(self, replay: Replay) -> None:
        """Continue as the only broker that delivers, from the state to which `replay` has brought the schedule."""
        replay.timed.decide(self.reader)
        self._resume(replay)
        self._repeating = self._hand_over.repeating = self._make_repeating(replay)
        self.carrier = self._make_carrier()
        self.is_following = False
        self.wake()

    def fail(self, error: Exception) -> None:
        """Stop because a record could not be applied; a start builds the index of pending messages again."""
        self._hand_over.stop(error)

    # Start and stop.

    def pin(self) -> int | None:
        """Return the oldest physical offset that pending messages, or copies not yet flushed, still need; None without
        one."""
        return self._pin.oldest()

    def reserve_bytes(self) -> int:
        """Return the space that carrying needs on a full disk: a segment, if messages may have to be carried."""
        partitions, longest_ms = self.timeline.partitions, max(self.levels.delays_ms, default=0)
        outlasts = partitions.messages > 0 and longest_ms > self.settings.file_reserved_time * _MS_PER_HOUR
        return self.timeline.holders.segment_bytes if outlasts or partitions.of_level(0).messages else 0

    def delay_offsets(self) -> dict[int, int]:
        """Return level → next offset, as in delayOffset.json and response 45; unused levels are omitted."""
        ends = self._end_offsets()
        return {
            level_of_queue(queue_id): queue.settled.low
            for queue_id, queue in sorted(self._queues.items())
            if ends[queue_id] > 0
        }

    def _end_offsets(self) -> dict[int, int]:
        return {queue_id: self._store.stored_bounds(names.SCHEDULE_TOPIC, queue_id)[1] for queue_id in self._queues}

    def save_task(self) -> SaveTask | None:
        """Return a task that writes delayOffset.json; None if none is due or possible. Cheap: call it after each
        flush."""
        if self.is_following:
            return None
        return self._offsets_file.task(self._now_ms(), self.settings.flush_delay_offset_interval)

    def close(self) -> None:
        """Prepare a clean stop before the store closes: flush the log, write delayOffset.json, and log what it omits.

        Never raises: without the file, the next start derives everything from the log.
        """
        if self.is_following:
            return
        try:
            self._offsets_file.save_now()
        except OSError as error:
            _logger.error(
                "delayOffset.json could not be written at shutdown and is outdated (the next start corrects it"
                " from the log): %s",
                error,
            )
        for queue_id, queue in sorted(self._queues.items()):
            if queue.settled.above:
                above = ", ".join(f"{first}–{end - 1}" for first, end in list(queue.settled.above.pairs())[:20])
                _logger.warning(
                    "delay level %d: delayOffset.json states %d, but %d entries above it are also settled (%s):"
                    " RocketMQ's broker would deliver them again",
                    level_of_queue(queue_id),
                    queue.settled.low,
                    queue.settled.above.count,
                    above,
                )

    # Configuration and status.

    def set_levels(self, levels: DelayLevels) -> None:
        """Apply a new delay level table. Pending messages keep their due times."""
        self.levels = self.ingress.levels = levels
        self._store.levels = levels

    def set_settings(self, settings: DelaySettings) -> None:
        """Apply a changed configuration."""
        self.settings = self.ingress.settings = self.carrier.settings = settings
        self.changes.settings = self.group_changes.settings = settings

    def status(self) -> dict[str, object]:
        """Return the content of `/api/v1/delay`."""
        return status_of(
            as_of_ms=self._now_ms(),
            levels=self.levels,
            queues=self._queues,
            end_offsets=self._end_offsets(),
            timeline=self.timeline,
            carrier=self.carrier,
            next_due_ms=self.next_due_ms(),
            lateness=self.lateness,
            corrected=self.corrected,
            held=self.control.as_json(self._now_ms()),
        )

    def pending(self) -> dict[int, int]:
        """Return the number of pending messages by level, without the timed ones."""
        levels = map(level_of_queue, self._queues)
        return {level: self.timeline.partitions.of_level(level).messages for level in levels}

    @property
    def unknown_topics(self) -> int:
        """Number of pending messages whose topic is unknown, because only their queue entries have been read."""
        return self.timeline.partitions.totals(UNKNOWN_TOPIC).messages

    def pending_of_topic(self, topic: str) -> int | None:
        """Return the number of pending messages of `topic`; None while the topics of some messages are unknown."""
        return None if self.unknown_topics else self.timeline.partitions.totals(topic).messages

    def pending_total(self) -> int:
        """Return the number of pending messages."""
        return self.timeline.partitions.messages

    def maintain(self) -> bool:
        """Apply changes of groups, and merge entries of the timeline, in a short step; return whether there is more."""
        return self._upkeep.step()

    def is_settled(self, queue_id: int, offset: int) -> bool:
        """Whether an entry of the schedule topic is settled: delivered, dropped or given up."""
        queue = self._queues.get(queue_id)
        return queue is not None and offset in queue.settled

    def is_pending(self, record: Record) -> bool:
        """Whether the message of a record of the schedule topic is pending, in this record or in one that carries it
        forward. OSError, TimelineDamagedError."""
        if not self.is_settled(record.queue_id, record.queue_offset):
            return True
        return is_pending(self.timeline, record)

    def next_due_ms(self) -> dict[int, int]:
        """Return the next due time of each queue, and of the timed messages under TIMELINE_QUEUE.

        Messages whose hand-over failed count with their original due times. The times of other messages are missing
        while the index cannot be read.
        """
        timeline = self.timeline
        try:
            next_ms = next_due_by_level(timeline)
        except OSError as error:
            self._throttled.warning("the next due times cannot be read from the index: %s", error)
            next_ms = {}
        for pending in timeline.taken_messages:
            level = timeline.partitions.key(pending.partition).level
            next_ms[level] = min(pending.due_ms, next_ms.get(level, pending.due_ms))
        return {queue_of_level(level): due_ms for level, due_ms in next_ms.items()}

    @property
    def lateness(self) -> dict[int, LatenessHistogram]:
        """Lateness of messages by queue of the schedule topic; that of timed messages under TIMELINE_QUEUE."""
        return self._hand_over.lateness

    def forget_topic(self, topic: str, heir: str | None = None) -> None:
        """Remove the counts of a deleted topic, or add them to those of `heir`."""
        count = self.counters.delivered.pop(topic, 0)
        if heir is not None:
            self.counters.delivered[heir] = self.counters.delivered.get(heir, 0) + count
        self.topic_lateness.forget(topic, heir)

    def clock_skew_ms(self) -> int:
        """Return how far the wall clock is behind the newest record, in ms; deliveries are delayed by this time."""
        return max(0, self._store.last_store_timestamp_ms - self._now_ms())

    # Hand-over.

    def next_wakeup_ms(self) -> int | None:
        """Return the wall-clock time of the next hand-over, possibly in the past; None if nothing is pending."""
        if self.is_following:
            return None
        wakeup_ms, now_ms = self._hand_over.next_wakeup_ms(), self._now_ms()
        if wakeup_ms is not None and self.control.treatments.is_review_due(now_ms):
            wakeup_ms = min(wakeup_ms, now_ms)
        self._announced_ms = _NEVER_MS if wakeup_ms is None else wakeup_ms
        return wakeup_ms

    def hand_over(self, now_ms: int, budget: int) -> int:
        """Deliver at most `budget` messages that are due by the wall clock; return the number of processed ones.

        While the result is not 0, call it again as soon as other work has run; otherwise, at `next_wakeup_ms`.
        """
        if self.is_following:
            return 0
        count = self._hand_over.run(now_ms, budget)
        self.control.review()
        return count

    def carry(self, now_ms: int) -> bool:
        """Carry some pending messages forward if necessary; return whether to continue soon."""
        try:
            return not self.is_following and self.carrier.step(now_ms)
        except OSError as error:
            self._hand_over.stop(error)
            return False

    def wake(self) -> None:
        """Trigger a new check for due messages, for example after a change of the policy."""
        if self.on_wakeup_earlier is not None:
            self.on_wakeup_earlier()
