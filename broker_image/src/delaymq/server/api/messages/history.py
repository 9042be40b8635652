"""GET /api/v1/messages/{id}: one message with its body and its history, derived from the log.

Stored, due and delivered are records with times. Consumption by a group is known only from its offset, without a time.
Retries and dead letters are found by the unique id, which clients keep.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from delaymq.api_types.messages import Event, LifeEvent, MessageDetails, MessageRow
from delaymq.broker.delivery.changes.fates import FateKind, fate_of, who
from delaymq.broker.delivery.changes.lookup import mark_in
from delaymq.broker.delivery.pause_facts import ALL
from delaymq.broker.delivery.timed.requests import group_in
from delaymq.broker.filters import tag_matcher
from delaymq.clock import utc_time
from delaymq.message import names
from delaymq.message.errors import KeysUnknownError
from delaymq.message.group_marks import GroupMark
from delaymq.message.hashing import tags_code
from delaymq.message.properties import decode_properties
from delaymq.message.record import Record
from delaymq.message.timed_marks import GroupMarkKind, TimedMark, TimedMarkKind
from delaymq.schedule.timeline import TIMELINE_QUEUE
from delaymq.server.api.messages.body import body_of
from delaymq.server.api.messages.index_search import search_index
from delaymq.server.api.messages.search import (
    MAX_FOUND,
    PENDING_TOPICS,
    find,
    not_found,
    place_of,
    real_topic,
    row_of,
    rows_of,
)
from delaymq.server.api.messages.timed import reading_index
from delaymq.server.api.routing import Api, Name, Query
from delaymq.server.api.topics import groups_of
from delaymq.server.log_reader import ReadRecord, clean_text
from delaymq.server.time_slices import TimeSlices

if TYPE_CHECKING:
    from delaymq.broker.broker import Broker

MAX_GROUPS: Final = 64
"""Maximum groups whose progress is shown for one message."""


_SKIPPING: Final[dict[TimedMarkKind | None, Event]] = {
    TimedMarkKind.EXPIRED: "expired",
    TimedMarkKind.DROPPED: "dropped",
}
"""Events of marks that skip runs of a repeating message."""
_RANKS: Final[dict[Event, int]] = {"stored": 0, "retried": 0, "due": 1}
"""Order of events of the same time."""


class MessageQuery(Query):
    """An offset message id, or with `topic` a unique id."""

    id: Name
    topic: Name = ""


async def message(api: Api, query: MessageQuery) -> MessageDetails:
    """Return one message with its body and history; raise ApiError 404 if it is not found."""
    broker = api.broker
    read = await find(api, query.id, query.topic)
    topic = real_topic(read.record.topic, decode_properties(read.record.raw_properties))
    if not api.caller.may_view(topic):
        raise not_found(query.id, query.topic)  # as if it did not exist, because ids can be guessed
    row = (await rows_of(api, read.record.topic, [read]))[0]
    body = await body_of(api, read)
    related = await _related(api, read)
    life = _History(broker)
    for each in related:
        life.add_record(each)
    events = [each for each in life.in_order() if each.group is None or api.caller.sees_group(each.group)]
    return MessageDetails(
        as_of_ms=broker.now_ms(),
        body=body,
        life=events,
        **{field: getattr(row, field) for field in MessageRow.__struct_fields__},
    )


async def _related(api: Api, read: ReadRecord) -> list[ReadRecord]:
    """Return all records of the message, including `read`, in log order."""
    broker, slices = api.broker, TimeSlices()
    properties = decode_properties(read.record.raw_properties)
    unique_id = properties.get(names.UNIQUE_KEY)
    if unique_id is None:
        return [read]
    topic = _origin_topic(read.record.topic, properties)
    groups = (await groups_of(broker, topic, slices))[:MAX_GROUPS]
    groups += [name for name in (_group_of(real_topic(read.record.topic, properties)),) if name]
    topics = [*PENDING_TOPICS, topic, names.SCHEDULE_DLQ_TOPIC, names.MARKS_TOPIC]
    for name in dict.fromkeys(groups):
        topics += [names.retry_topic(name), names.dead_letter_topic(name)]
    offsets = {read.record.physical_offset}
    for each in topics:
        offsets.update(await search_index(broker.store, each, unique_id, MAX_FOUND, slices))
    async with api.reading():
        found = await api.in_thread(api.log_files().records, sorted(offsets))
    return [each for each in found if each is not None and _is_of(each, unique_id, topic)]


def _is_of(read: ReadRecord, unique_id: str, topic: str) -> bool:
    properties = decode_properties(read.record.raw_properties)
    is_named = unique_id in (properties.get(names.UNIQUE_KEY), properties.get(names.DELAY_SCHEDULE_ID))
    return is_named and _origin_topic(read.record.topic, properties) == topic


def _group_of(topic: str) -> str | None:
    """Return the group of a retry or dead-letter topic; None for other topics."""
    for prefix in (names.RETRY_PREFIX, names.DLQ_PREFIX):
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return None


def _origin_topic(topic: str, properties: dict[str, str]) -> str:
    """Return the topic to which the producer sent the message."""
    real = real_topic(topic, properties)
    if topic == names.SCHEDULE_DLQ_TOPIC:
        real = properties.get(names.REAL_TOPIC, real)
    return properties.get(names.RETRY_TOPIC, real) if _group_of(real) is not None else real


class _History:
    """Events of a message, collected record by record."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._events: list[tuple[int, LifeEvent]] = []
        self._known_places: set[tuple[int, int]] = set()
        """Places of records of pending messages."""
        self._ended_places: dict[tuple[int, int], int] = {}
        """Places that a later record settles, and its physical offset."""
        self._settled: list[tuple[MessageRow, tuple[int, int], str | None]] = []
        self._dues: dict[tuple[int, int], tuple[int, int, str | None]] = {}
        """Due time, store time and group of each message, by its place."""
        self._moved_at: dict[tuple[int, int], int] = {}
        """Physical offset of the newest statement of a due time, by place."""
        self._groups: dict[tuple[int, int], tuple[str, str]] = {}
        """Topic and group of timed messages with a group, by place."""
        self._cancelled: list[tuple[Record, tuple[int, int]]] = []

    def in_order(self) -> list[LifeEvent]:
        """Return the events sorted by time; an event without a time follows its cause."""
        for place, (topic, name) in self._groups.items():
            self._add_changes_of_group(place, topic, name)
        for row, scheduled, group in self._settled:
            if scheduled not in self._ended_places:
                detail = "delivered by now; the delivered record is no longer in the log"
                self._add(max(row.due_ms or 0, row.stored_ms), "delivered", None, detail, group)
        for due_ms, stored_ms, group in self._dues.values():
            self._add(max(due_ms, stored_ms), "due", due_ms, "due time of the delivery", group)
        for record, place in self._cancelled:
            if place not in self._ended_places:
                self._add_replaced(record)
        return [event for _, event in sorted(self._events, key=lambda item: (item[0], _RANKS.get(item[1].event, 2)))]

    def add_record(self, read: ReadRecord) -> None:
        """Add the events of one record."""
        record = read.record
        row = row_of(self._broker, read)
        properties = decode_properties(record.raw_properties)
        group = _group_of(real_topic(record.topic, properties))
        scheduled = place_of(record, properties)
        if scheduled is not None and record.topic in PENDING_TOPICS:
            self._add_pending(row, scheduled, group)
            if record.topic == names.TIMER_TOPIC and (name := group_in(properties)):
                self._groups[scheduled] = properties.get(names.REAL_TOPIC, ""), name
            if row.state == "cancelled":
                self._cancelled.append((record, scheduled))
            return
        mark = mark_in(properties, record.physical_offset)
        if scheduled is not None and (mark is None or mark.next_due_ms is None):
            self._ended_places.setdefault(scheduled, record.physical_offset)
        if record.topic == names.MARKS_TOPIC:
            self._add_mark(record, properties, row, group)
            return
        if mark is not None and mark.run is not None:
            self._add_run(record, mark, row)
            return
        place = f"queue {record.queue_id} of {row.topic}, offset {record.queue_offset}"
        if record.topic.startswith(names.DLQ_PREFIX):
            self._add(
                row.stored_ms, "deadLettered", row.stored_ms, f"dead-lettered after {_tries(row)}: {place}", group
            )
        elif scheduled is not None:
            late = f", {row.stored_ms - row.due_ms} ms after its due time" if row.due_ms is not None else ""
            self._add(row.stored_ms, "delivered", row.stored_ms, f"delivered to {place}{late}", group)
        elif group is not None:
            self._add(row.stored_ms, "retried", row.stored_ms, f"stored for a retry by the group, {place}", group)
        else:
            self._add(row.stored_ms, "stored", row.stored_ms, f"stored in {place}", None)
        if not record.topic.startswith(names.DLQ_PREFIX):
            self._add_consumers(row, group)

    def _add_run(self, record: Record, mark: TimedMark, row: MessageRow) -> None:
        """Add a run of a repeating message, whose copy has a history of its own."""
        late = "" if row.due_ms is None else f", {row.stored_ms - row.due_ms} ms after its time"
        detail = (
            f"run {mark.run} delivered to queue {record.queue_id} of {row.topic}, offset {record.queue_offset}{late}"
        )
        self._add(row.stored_ms, "delivered", row.stored_ms, detail, None)
        if mark.next_due_ms is not None:
            self._move((TIMELINE_QUEUE, mark.identity), mark.next_due_ms, record.physical_offset)

    def _move(self, place: tuple[int, int], due_ms: int, stated_at: int) -> None:
        """Apply the statement of a due time in the record at a physical offset, unless a later one was applied."""
        if place in self._dues and stated_at > self._moved_at.get(place, -1):
            self._moved_at[place] = stated_at
            _, stored_ms, group = self._dues[place]
            self._dues[place] = due_ms, stored_ms, group

    def _add_mark(self, record: Record, properties: dict[str, str], row: MessageRow, group: str | None) -> None:
        """Add what a mark alone states: a change on request, or an end without a delivery."""
        mark = mark_in(properties, record.physical_offset)
        kind = None if mark is None else mark.kind
        account, address = properties.get(names.BY, ""), row.born_host
        by = f"by {account} ({address})" if account else f"by {address}"
        event: Event = "dropped"
        detail = "ended without a delivery, by a mark in the log"
        if mark is not None and mark.next_due_ms is not None:
            event = "fired" if kind is TimedMarkKind.FIRED else "moved"
            detail = f"due at {utc_time(mark.next_due_ms)} instead of {utc_time(mark.due_ms)}"
            if kind in _SKIPPING:
                event = _SKIPPING[kind]
                detail = f"runs from {utc_time(mark.due_ms)} to before {utc_time(mark.next_due_ms)} were skipped"
            elif kind is not TimedMarkKind.DELIVERED:
                detail += f", {by}"
            self._move((TIMELINE_QUEUE, mark.identity), mark.next_due_ms, record.physical_offset)
        elif kind is TimedMarkKind.CANCELLED:
            event, detail = "cancelled", by
        elif kind is TimedMarkKind.EXPIRED:
            event, detail = "expired", f"later than its producer allowed ({names.DELAY_EXPIRE_MS})"
        self._add(row.stored_ms, event, row.stored_ms, detail, group)

    def _add_changes_of_group(self, place: tuple[int, int], topic: str, name: str) -> None:
        """Add what happened to a message together with its group while it was pending."""
        lookup, ended_at = self._broker.delivery.lookup, self._ended_places.get(place)
        found: list[tuple[Record, GroupMark]] = []
        with suppress(KeysUnknownError):  # without an index of keys, only the record itself is shown
            for changed, mark in lookup.group_marks(topic, name, place[1]):
                if ended_at is None or changed.physical_offset < ended_at:
                    found.append((changed, mark))
        for changed, mark in reversed(found):
            how = f"with its group {clean_text(name)}, by {clean_text(who(changed))}"
            at_ms = mark.decided_ms
            if mark.next_due_ms is None:
                self._add(at_ms, "cancelled", at_ms, how, None)
                return
            event: Event = "fired" if mark.kind is GroupMarkKind.FIRED else "moved"
            self._add(at_ms, event, at_ms, f"due at {utc_time(mark.next_due_ms)}, {how}", None)
            self._move(place, mark.next_due_ms, changed.physical_offset)

    def _paused(self, topic: str, name: str) -> str:
        """Return the reason why a pending message is not delivered when it is due; empty without one."""
        delivery = self._broker.delivery
        for names_of, what in (
            (ALL, "all deliveries are"),
            ((topic, ""), f"topic {clean_text(topic)} is"),
            ((topic, name), f"group {clean_text(name)} is"),
        ):
            pause = delivery.pauses.find(*names_of)
            if pause is not None:
                by = f" by {clean_text(pause.account)}" if pause.account else ""
                return f": {what} paused since {utc_time(pause.since_ms)}{by}"
        return ": all deliveries are paused" if delivery.control.is_paused else ""

    def _add_replaced(self, record: Record) -> None:
        """Add the end of a message that another one replaced, which has another unique id."""
        with reading_index():
            fate = fate_of(self._broker.delivery.lookup, record)
        if fate.at_ms is not None and fate.kind is FateKind.REPLACED:
            detail = f"replaced by a message with the same {names.DELAY_KEY}, from {fate.by}"
            self._add(fate.at_ms, "cancelled", fate.at_ms, detail, None)

    def _add_pending(self, row: MessageRow, place: tuple[int, int], group: str | None) -> None:
        if place in self._known_places:
            return  # the broker stored the message again, before it deleted a segment
        self._known_places.add(place)
        queue_id, offset = place
        is_timed = queue_id == TIMELINE_QUEUE
        if group is None:
            how = "as a timed message" if is_timed else f"with delay level {row.delay_level}"
            how = how if row.repeats is None else "as a repeating message"
            detail = f"stored {how} for queue {row.queue_id} of {row.topic}"
            self._add(row.stored_ms, "stored", row.stored_ms, detail, None)
        else:
            detail = f"sent back by the group ({_tries(row)}): retried after delay level {row.delay_level}"
            self._add(row.stored_ms, "retried", row.stored_ms, detail, group)
        due_ms = row.due_ms or row.stored_ms
        # A message may be due before it is stored: its delay counts from its arrival.
        order_ms = max(due_ms, row.stored_ms)
        if row.state != "cancelled":
            self._dues[place] = due_ms, row.stored_ms, group
        if row.state == "pending":
            what = "timed message" if is_timed else f"entry {offset} of delay level {row.delay_level}"
            if row.repeats is not None:
                what = "repeating message" + ("" if row.repeats.run is None else f", {row.repeats.run} runs so far")
            paused = self._paused(row.topic, row.group or "")
            self._add(order_ms, "pending", None, f"pending, {what}{paused}", group)
        elif row.state == "delivered":
            self._settled.append((row, place, group))

    def _add_consumers(self, row: MessageRow, group: str | None) -> None:
        broker = self._broker
        if row.queue_offset is None:
            return
        topic = row.topic
        names_of_groups = [group] if group is not None else _with_offsets(broker, topic)
        for name in names_of_groups:
            offset = broker.offsets.get(topic, name, row.queue_id)
            if offset is None or offset <= row.queue_offset or not self._is_wanted(name, topic, row.tags):
                continue
            detail = (
                f"the group's offset {offset} in queue {row.queue_id} is past the message; the time is not recorded"
            )
            self._add(row.stored_ms, "consumed", None, detail, name)

    def _is_wanted(self, group: str, topic: str, tags: str | None) -> bool:
        """Return False if the group skipped the message because of its tags."""
        subscription = self._broker.clients.subscription(group, topic, self._broker.now_ms())
        if subscription is None or (subscription.expression_type or "TAG") != "TAG":
            return True
        matches = tag_matcher(subscription.sub_string)
        return matches is None or matches(tags_code(tags) if tags else 0)

    def _add(self, order_ms: int, event: Event, at_ms: int | None, detail: str, group: str | None) -> None:
        self._events.append((order_ms, LifeEvent(event=event, at_ms=at_ms, detail=detail, group=group)))


def _tries(row: MessageRow) -> str:
    return "1 try" if row.reconsume_times == 1 else f"{row.reconsume_times} tries"


def _with_offsets(broker: "Broker", topic: str) -> list[str]:
    return sorted(broker.offsets.groups_of(topic))[:MAX_GROUPS]
