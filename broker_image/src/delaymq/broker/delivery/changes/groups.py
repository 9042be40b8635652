"""Changes of all pending messages of a group: one record in the log each, whatever the number of messages."""

from __future__ import annotations

from collections.abc import Callable

from delaymq.broker.delivery.changes.appending import append_statement
from delaymq.broker.delivery.changes.changes import Changed, ChangeSettings, Requester
from delaymq.broker.delivery.changes.group_records import group_record
from delaymq.broker.delivery.reader import DeliveryStore
from delaymq.broker.delivery.status import DeliveryCounters
from delaymq.broker.delivery.timed.requests import TimeRequest
from delaymq.message.group_marks import GroupMark
from delaymq.message.timed_marks import GroupMarkKind, TimedMarkKind
from delaymq.schedule.timeline import Timeline
from delaymq.store.layout import MANAGED_VERSION

_OF_MESSAGES = {
    GroupMarkKind.CANCELLED: TimedMarkKind.CANCELLED,
    GroupMarkKind.MOVED: TimedMarkKind.MOVED,
    GroupMarkKind.FIRED: TimedMarkKind.FIRED,
}


class GroupChanges:
    """Makes changes. Methods raise StoreError, OSError and TimelineDamagedError, and return None without messages."""

    def __init__(
        self,
        store: DeliveryStore,
        timeline: Timeline,
        settings: ChangeSettings,
        counters: DeliveryCounters,
        now_ms: Callable[[], int],
        *,
        forget: Callable[[int], None],
        announce: Callable[[int], None],
        check_delay: Callable[[str, int], None],
    ) -> None:
        """The last three arguments are those of `Changes`."""
        self.settings = settings
        self._store = store
        self._timeline = timeline
        self._counters = counters
        self._now_ms = now_ms
        self._forget = forget
        self._announce = announce
        self._check_delay = check_delay

    def cancel(self, topic: str, group: str, requester: Requester) -> Changed | None:
        """End the messages."""
        return self._change(GroupMarkKind.CANCELLED, topic, group, None, requester)

    def move(self, topic: str, group: str, request: TimeRequest, requester: Requester) -> Changed | None:
        """Let the messages be due at another time; a time that has passed means now. IllegalMessageError if too
        late."""
        now_ms = self._now_ms()
        request.check(now_ms, self.settings.timer_max_delay_sec * 1_000)
        self._check_delay(topic, request.due_ms(now_ms) - now_ms)
        return self._change(GroupMarkKind.MOVED, topic, group, max(request.due_ms(now_ms), now_ms), requester)

    def fire(self, topic: str, group: str, requester: Requester) -> Changed | None:
        """Let the messages be due now."""
        return self._change(GroupMarkKind.FIRED, topic, group, self._now_ms(), requester)

    def _change(
        self, kind: GroupMarkKind, topic: str, group: str, due_ms: int | None, requester: Requester
    ) -> Changed | None:
        if not self._timeline.partitions.has_group(topic, group):
            return None
        now_ms = self._now_ms()
        mark = GroupMark(place=0, kind=kind, decided_ms=now_ms, topic=topic, group=group, next_due_ms=due_ms)
        stated = append_statement(self._store, group_record(mark, now_ms, requester), MANAGED_VERSION)
        totals, forgotten = self._timeline.sweep.change(topic, group, due_ms)
        for identity in forgotten:
            self._forget(identity)
        if due_ms is not None:
            self._announce(due_ms)
        of_messages = _OF_MESSAGES[kind]
        self._counters.changed[of_messages] = self._counters.changed.get(of_messages, 0) + totals.messages
        return Changed(of_messages, None, due_ms, stated.place, stated.end, totals.messages)
