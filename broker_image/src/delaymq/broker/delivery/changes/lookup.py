"""Search for messages by unique id and by DELAY_KEY, with the index of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from delaymq.broker.delivery.level_entries import carried_from, find_held
from delaymq.broker.delivery.reader import DeliveryStore, Found, ScheduleReader, require_all_keys
from delaymq.broker.delivery.repeating.history import newest_run
from delaymq.broker.delivery.timed.replay import is_schedule, own_due, own_mark
from delaymq.broker.delivery.timed.requests import group_in, is_repeating
from delaymq.message import names
from delaymq.message.errors import KeysUnknownError, NewerFormError
from delaymq.message.group_marks import PAUSES, GroupMark, indexed_group_key
from delaymq.message.record import Record
from delaymq.message.timed_marks import TimedMark
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.schedule.timeline.partitions import MOVED
from delaymq.store.index.key_index import indexed_delay_key
from delaymq.store.layout import CHANGED_VERSION, MANAGED_VERSION

_ANY_TIME: Final = (0, (1 << 63) - 1)
MAX_RECORDS: Final = 64
"""Maximum records with one unique id: a producer's retries, and records that carry a message forward."""
_MAX_STEPS: Final = 64
"""Steps of 64 index entries, besides the one that each file takes: about 10 ms. Clients choose keys, and could choose
many with one hash."""


ParsedRecord: TypeAlias = tuple[Record, dict[str, str]]
"""A record and its properties, which each access to `Record.properties` would parse again."""


class Lookup:
    """Finds the records of messages, and whether they are pending."""

    def __init__(
        self,
        store: DeliveryStore,
        reader: ScheduleReader,
        timeline: Timeline,
        is_settled: Callable[[int, int], bool],
    ) -> None:
        """`is_settled` returns whether an entry (queue id, queue offset) of the schedule topic is settled."""
        self._store = store
        self._reader = reader
        self._timeline = timeline
        self._is_settled = is_settled

    # Records.

    def records(self, topic: str, key: str) -> Iterator[Record]:
        """Yield the records of a topic that may have a key, the newest first; hashes may collide. KeysUnknownError."""
        require_all_keys(self._store)
        steps, most = 0, _MAX_STEPS + self._store.index_files
        try:
            for offset in self._store.index_steps(topic, key, *_ANY_TIME):
                if offset is None:
                    steps += 1
                    if steps > most:
                        raise KeysUnknownError("the index contains too many keys with the same hash: use another key")
                    continue
                record = self._store.record_at(offset)
                if record is not None and record.topic == topic:
                    yield record
        except OSError as error:
            raise KeysUnknownError(f"the index of keys cannot be read: {error}") from error

    def with_unique_id(
        self, topic: str, unique_id: str, of_topics: Sequence[str] = (names.TIMER_TOPIC, names.SCHEDULE_TOPIC)
    ) -> list[ParsedRecord]:
        """Return the records of delayed messages of a topic with this unique id, the newest first. KeysUnknownError."""
        found: list[ParsedRecord] = []
        for delayed in of_topics:
            for record in self.records(delayed, unique_id):
                properties = record.properties
                if properties.get(names.UNIQUE_KEY) == unique_id and properties.get(names.REAL_TOPIC) == topic:
                    if len(found) >= MAX_RECORDS:
                        raise KeysUnknownError(
                            f"more than {MAX_RECORDS} records have this unique id: name the message by its DELAY_KEY"
                        )
                    found.append((record, properties))
        return found

    def with_key(self, topic: str, key: str) -> ParsedRecord | None:
        """Return the newest record of a timed message for `topic` with this DELAY_KEY. KeysUnknownError.

        Keys are unique among pending messages, so no other record holds a pending message with this key.
        """
        for record in self.records(names.TIMER_TOPIC, indexed_delay_key(topic, key)):
            properties = record.properties
            if properties.get(names.DELAY_KEY) == key and properties.get(names.REAL_TOPIC) == topic:
                return record, properties
        return None

    # Pending messages.

    def pending_by_id(self, topic: str, unique_id: str) -> tuple[list[Found], Record | None]:
        """Return the pending messages with a unique id, and the newest record with it.

        KeysUnknownError, OSError, TimelineDamagedError.
        """
        partitions = self._timeline.partitions
        if partitions.messages == partitions.of_level(0).messages:  # no message with a delay level is pending
            records = self.with_unique_id(topic, unique_id, (names.TIMER_TOPIC,))
            if found := self._pending_in_any(records):
                return found, records[0][0]
        records = self.with_unique_id(topic, unique_id)
        return self._pending_in_any(records), records[0][0] if records else None

    def _pending_in_any(self, records: list[ParsedRecord]) -> list[Found]:
        """Return the pending messages that records hold, each once."""
        found: dict[int, Found] = {}
        for record, properties in records:
            pending = self.pending_in(record, properties)
            if pending is not None:
                found.setdefault(pending.identity, Found(record, pending, properties))
        return list(found.values())

    def pending_by_key(self, topic: str, key: str) -> tuple[list[Found], Record | None]:
        """Return the pending message with a DELAY_KEY, if any, and the newest record with it. Errors as above."""
        with_key = self.with_key(topic, key)
        if with_key is None:
            return [], None
        record, properties = with_key
        pending = self.pending_in(record, properties)
        return [] if pending is None else [Found(record, pending, properties)], record

    def pending_with_key(self, topic: str, key: str) -> Found | None:
        """Return the pending message with a DELAY_KEY. KeysUnknownError, OSError, TimelineDamagedError."""
        found, _ = self.pending_by_key(topic, key)
        return found[0] if found else None

    def pending_in(self, record: Record, properties: dict[str, str] | None = None) -> Pending | None:
        """Return the pending message that a record holds, or held before it was carried forward.

        `properties` are those of the record, if they have been parsed. OSError, TimelineDamagedError, KeysUnknownError.
        """
        if record.topic == names.TIMER_TOPIC:
            return self._timed(record, record.properties if properties is None else properties)
        if record.topic != names.SCHEDULE_TOPIC or self._is_settled(record.queue_id, record.queue_offset):
            return None
        entry = self._reader.entry(record.queue_id, record.queue_offset)
        if entry is None or entry[0] != record.physical_offset:
            return None
        return find_held(self._timeline, record, self._reader.due_ms(record.queue_id, record.queue_offset, entry[2]))

    def _timed(self, record: Record, properties: dict[str, str]) -> Pending | None:
        timeline = self._timeline
        identity, due_ms = stated_by(properties, record.physical_offset)
        pending = timeline.taken(identity)
        if pending is not None:
            return pending
        partition = timeline.partitions.find(properties.get(names.REAL_TOPIC, ""))
        if partition is None:
            return None
        pending = timeline.find(due_ms, identity, partition)
        if pending is None and self._store.format_version >= CHANGED_VERSION:
            mark = self._newest_statement(record, properties, identity)
            if mark is not None and mark.next_due_ms is not None:
                pending = timeline.find(mark.next_due_ms, identity, partition)
        if pending is None and (group := group_in(properties)):
            pending = self._moved_with_group(record, identity, partition, group)
        return pending

    def _moved_with_group(self, record: Record, identity: int, partition: int, group: str) -> Pending | None:
        """Return the pending message of a record whose group was moved after it was stored."""
        timeline, topic = self._timeline, record.properties.get(names.REAL_TOPIC, "")
        for number, (_, mark) in enumerate(self.group_marks(topic, group, record.physical_offset)):
            if mark.next_due_ms is None:
                break
            pending = timeline.find(mark.next_due_ms, identity, partition)
            # The index may contain it under an earlier due time until all changes of groups have been applied.
            if pending is not None or not timeline.sweep:
                return pending
            if number >= MAX_RECORDS:
                raise KeysUnknownError(f"group {group} was moved more than {MAX_RECORDS} times: try again in a minute")
        return None

    def group_marks(self, topic: str, group: str, after: int = -1) -> Iterator[tuple[Record, GroupMark]]:
        """Yield the statements that changed the messages of a group, the newest first, down to an offset.

        KeysUnknownError.
        """
        if self._store.format_version < MANAGED_VERSION:
            return
        for record in self.records(names.MARKS_TOPIC, indexed_group_key(topic, group)):
            if record.physical_offset <= after:
                return
            mark = group_mark_in(record.properties, record.physical_offset)
            if mark is not None and (mark.topic, mark.group) == (topic, group) and mark.kind not in PAUSES:
                yield record, mark

    def is_group_changed(self, holder: Record, after: int) -> bool:
        """Return whether the group of the message that a record holds was changed after an offset. KeysUnknownError."""
        properties = holder.properties
        topic, group = properties.get(names.REAL_TOPIC, ""), group_in(properties)
        return bool(group) and next(self.group_marks(topic, group, after), None) is not None

    def _newest_statement(self, record: Record, properties: dict[str, str], identity: int) -> TimedMark | None:
        """Return the newest mark about a timed message that `record` holds or held. KeysUnknownError."""
        mark = self.newest_mark(identity)
        if is_schedule(properties, record.physical_offset):
            run = newest_run(self, record, identity)
            if run is not None and run.mark is not None and (mark is None or run.mark.place > mark.place):
                return run.mark
        return mark

    def is_unchanged(self, found: Found) -> bool:
        """Return whether the log certainly contains no statement by which a timed message is due at another time.

        The index of pending messages then has no earlier entry of the message. OSError.
        """
        pending = found.pending
        if pending.record != pending.identity or pending.owner & MOVED or is_repeating(found.properties):
            return False
        steps = self._store.index_steps(names.MARKS_TOPIC, str(pending.identity), *_ANY_TIME)
        for number, offset in enumerate(steps):
            if offset is not None or number >= _MAX_STEPS:
                return False
        return self._store.has_all_keys

    def newest_mark(self, identity: int) -> TimedMark | None:
        """Return the newest mark without a copy about a message. KeysUnknownError."""
        found = self.newest_mark_record(identity)
        return None if found is None else found[1]

    def newest_mark_record(self, identity: int) -> tuple[Record, TimedMark] | None:
        """Return the record of the newest mark without a copy about a message, and the mark. KeysUnknownError."""
        for record in self.records(names.MARKS_TOPIC, str(identity)):
            mark = mark_in(record.properties, record.physical_offset)
            if mark is not None and mark.identity == identity:
                return record, mark
        return None


def stated_by(properties: Mapping[str, str], place: int) -> tuple[int, int]:
    """Return identity and due time in ms that the record of the timer topic at `place` states."""
    try:
        due = own_due(properties.get(names.DUE, ""), place)
    except NewerFormError:
        due = None
    if due is not None:
        return due.identity, due.due_ms
    out_ms = properties.get(names.TIMER_OUT_MS, "")
    return place, int(out_ms) if out_ms.isascii() and out_ms.isdigit() and len(out_ms) <= 18 else -1


def identity_of(record: Record) -> int:
    """Return the identity of the message that a record of the timer topic or of the schedule topic holds."""
    if record.topic == names.TIMER_TOPIC:
        return stated_by(record.properties, record.physical_offset)[0]
    try:
        mark = carried_from(record.properties, record.queue_id, record.physical_offset)
    except NewerFormError:
        mark = None
    return record.physical_offset if mark is None else mark.identity


def mark_in(properties: Mapping[str, str], place: int) -> TimedMark | None:
    """Return the mark of form 2 about one message that the record at `place` contains; None without one."""
    mark = _any_mark_in(properties, place)
    return mark if isinstance(mark, TimedMark) else None


def group_mark_in(properties: Mapping[str, str], place: int) -> GroupMark | None:
    """Return the statement about many messages that the record at `place` contains; None without one."""
    mark = _any_mark_in(properties, place)
    return mark if isinstance(mark, GroupMark) else None


def _any_mark_in(properties: Mapping[str, str], place: int) -> TimedMark | GroupMark | None:
    text = properties.get(names.MARK)
    try:
        return own_mark(text, place) if text is not None else None
    except NewerFormError:
        return None
