"""Rewrite of delayed messages on receipt (send, send-back, commit): checks the level and replaces the topic."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from delaymq.broker.delivery.reader import require_all_keys
from delaymq.broker.delivery.repeating.copies import room_bytes as repeating_room_bytes
from delaymq.broker.delivery.repeating.schedules import check_alone, first_run_ms
from delaymq.broker.delivery.status import DeliveryCounters
from delaymq.broker.delivery.timed.requests import (
    OnSameKey,
    TimeRequest,
    check_expiry,
    delay_group,
    delay_key,
    expiry_ms,
    is_repeating,
    on_same_key,
    requested_time,
    state_delay,
)
from delaymq.clock import utc_time
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError, KeysUnknownError
from delaymq.message.levels import DelayLevels, queue_of_level
from delaymq.message.marks import DUE_WIDTH, MARK_WIDTH, format_due
from delaymq.message.properties import MAX_PROPERTIES_BYTES, encode_properties
from delaymq.message.record import record_bytes
from delaymq.message.timed_marks import (
    MAX_FIRST_DUE_BYTES,
    RUN,
    Statement,
    carried_due,
    first_due,
    replacing_due,
)
from delaymq.schedule.timeline.partitions import Partitions
from delaymq.schedule.timeline.queues import Queues
from delaymq.store.errors import StoreFailedError
from delaymq.store.layout import CHANGED_VERSION, MANAGED_VERSION, TIMED_VERSION
from delaymq.store.model import NewRecord
from delaymq.throttled_log import ThrottledLogger, about_message

if TYPE_CHECKING:
    from delaymq.broker.delivery.reader import DeliveryStore, Found
    from delaymq.schedule.timeline import Pending

MARK_ROOM_BYTES = 1 + len(names.MARK) + 1 + MARK_WIDTH
"""Size of the longest mark with its name and separators."""
TIMED_ROOM_BYTES = 256
"""Additional properties that later records of a timed message may need: a mark, or the details of a carried one."""
_MAX_NON_BODY_BYTES = 128 + names.MAX_TOPIC_LENGTH + MAX_PROPERTIES_BYTES
"""Maximum size of a record without its body: fixed fields, topic, properties."""
_SCHEDULES = names.REPEATING.union(names.TIMER_PROPERTIES)
_NAMES = frozenset((names.DELAY_KEY, names.DELAY_GROUP))
MAX_GROUPS = 100_000
"""Limit of the groups with pending messages."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}\Z")
_MAX_INT = 2**31 - 1
_WIDEST_CHARACTER_BYTES = 4
"""Maximum UTF-8 bytes of a character."""
_LATEST_DUE_MS = 10**18 - 1
"""Latest due time that a record can state: recovery reads up to 18 digits."""


class DelaySettings(Protocol):
    """Settings of delays."""

    @property
    def delay_level_overflow(self) -> str:
        """Treatment of a level above the table: `clamp` or `reject`."""

    @property
    def flush_delay_offset_interval(self) -> int:
        """Interval between writes of delayOffset.json, in ms."""

    @property
    def file_reserved_time(self) -> int:
        """Hours for which segments are kept."""

    @property
    def timer_max_delay_sec(self) -> int:
        """Longest delay of a timed message, in s."""

    @property
    def timer_carry_max_bytes_per_second(self) -> int:
        """Limit of the bytes of pending timed messages that are appended again per second."""


def requests_delay(properties: dict[str, str]) -> bool:
    """Return whether a message has a delay level, a due time or a repeating schedule. IllegalMessageError."""
    return requested_level(properties) > 0 or not _SCHEDULES.isdisjoint(properties)


def strip_own(properties: dict[str, str]) -> None:
    """Remove the properties by which the scheduler recognises its records, because clients copy received properties."""
    if own := [name for name in properties if name.startswith(names.OWN_PREFIX)]:
        for name in own:
            del properties[name]


def _drop_level(properties: dict[str, str], delay_ms: int) -> None:
    """Replace a delay level by a delay, because levels have neither keys nor limits of lateness."""
    if requested_level(properties):
        state_delay(properties, delay_ms)
    properties.pop(names.DELAY, None)


def requested_level(properties: dict[str, str]) -> int:
    """Return the delay level that a client requests; 0 if there is none.

    Raises IllegalMessageError if DELAY is not a whole number. This is stricter than `store.dispatch.recorded_level`,
    because a client can be notified of its error.
    """
    text = properties.get(names.DELAY)
    if text is None:
        return 0
    if not _INTEGER.match(text) or not -_MAX_INT - 1 <= (level := int(text)) <= _MAX_INT:
        raise IllegalMessageError(
            f"DELAY is {text[:32]!r}, which is not a delay level: use a whole number (0 means no delay)"
        )
    return max(level, 0)


class KeyPendingError(IllegalMessageError):
    """A message with the same DELAY_KEY is pending, and the producer does not want to replace it."""

    def __init__(self, key: str, pending: Pending, *, is_kept: bool) -> None:
        super().__init__(
            f"a message with {names.DELAY_KEY} {key!r} is pending and due at {utc_time(pending.due_ms)}: cancel it, or"
            f" send with {names.DELAY_ON_SAME_KEY}=replace or keep"
        )
        self.pending = pending
        self.is_kept = is_kept
        """Whether the producer receives the response to the pending message."""


class DelayIngress:
    """Redirects delayed messages to the schedule topic."""

    def __init__(
        self,
        settings: DelaySettings,
        levels: DelayLevels,
        now_ms: Callable[[], int],
        counters: DeliveryCounters,
        throttled: ThrottledLogger,
        store: DeliveryStore,
    ) -> None:
        self.settings = settings
        self.levels = levels
        self._next_queue_offset = store.next_queue_offset
        self._largest_record_bytes = store.largest_record_bytes
        self._now_ms = now_ms
        self._counters = counters
        self._throttled = throttled
        self._store = store
        self.max_unchecked_body_bytes = self.surely_fits_bytes(MARK_ROOM_BYTES)
        """A message with a delay level and a body of at most this size fits into a segment when it is delivered."""
        self.max_unchecked_timed_body_bytes = self.surely_fits_bytes(TIMED_ROOM_BYTES + MAX_FIRST_DUE_BYTES)
        """Likewise, for a timed message."""
        self._may_state = store.format_version >= TIMED_VERSION
        self.with_key: Callable[[str, str], Found | None] = lambda topic, key: None
        """Returns the pending message of a topic with a DELAY_KEY, and the record that holds it."""
        self.queues = Queues(Partitions())
        """Those of the index of pending messages."""
        self.on_first_timed: Callable[[], object] | None = None
        """Called before the first timed message is stored."""

    @property
    def max_plain_delay_ms(self) -> int:
        """Longest delay in ms with which timed messages may be stored without `prepare_timed`; -1 if none may be."""
        is_prepared = self._may_state and self.on_first_timed is None
        return self.settings.timer_max_delay_sec * 1_000 if is_prepared else -1

    def prepare(
        self,
        properties: dict[str, str],
        topic: str,
        queue_id: int,
        level: int,
        account: str = "",
        *,
        retry: bool = False,
    ) -> tuple[str, int, dict[str, str]]:
        """Return topic, queue and properties with which a message of `level` (1 or more) is stored until it is due.

        The record must be the next one that is appended to that queue. `properties` is changed and returned. A level
        above the table is clamped, or rejected with `delayLevelOverflow=reject`; retries are always clamped. Raises
        IllegalMessageError if the message cannot be delayed; `properties` is then unchanged.
        """
        levels = self.levels
        if level > levels.max_level:
            self._overflow(level, retry, topic, properties)
            level = levels.max_level
        schedule_queue = queue_of_level(level)
        due_ms = self._now_ms() + levels.delays_ms[level - 1]
        queue_offset = self._next_queue_offset(names.SCHEDULE_TOPIC, schedule_queue)
        added = {
            names.DELAY: str(level),
            names.REAL_TOPIC: topic,
            names.REAL_QUEUE_ID: str(queue_id),
            names.DUE: format_due(due_ms, schedule_queue, queue_offset),
        }
        if account:
            added[names.ACCOUNT] = account
        characters = sum(map(len, properties)) + sum(map(len, properties.values())) + 2 * len(properties)
        more = len(topic) + len(account) + DUE_WIDTH + 128
        if characters * _WIDEST_CHARACTER_BYTES + more > MAX_PROPERTIES_BYTES - MARK_ROOM_BYTES:
            _check_room(properties, added, MARK_ROOM_BYTES)
        properties.update(added)
        return names.SCHEDULE_TOPIC, schedule_queue, properties

    def requested_time(self, properties: dict[str, str], level: int, *, is_commit: bool = False) -> int | None:
        """Return the due time in ms that a message requests; None if it is to be delivered immediately.

        Raises IllegalMessageError if the request is invalid or exceeds timerMaxDelaySec. A commit must not fail because
        of a limit that was lowered.
        """
        if is_repeating(properties):
            return self._first_run_ms(properties, level, is_commit=is_commit)
        is_managed = not names.MANAGED_DELAY.isdisjoint(properties)
        if level and is_managed:
            if not is_commit:
                self.check_level(level)
            return self._now_ms() + self.levels.delay_ms(level)
        request = requested_time(properties, level)
        if request is None:
            return None
        now_ms = self._now_ms()
        if not is_commit:
            request.check(now_ms, self.settings.timer_max_delay_sec * 1_000)
        due_ms = request.due_ms(now_ms)
        if due_ms > _LATEST_DUE_MS:
            raise IllegalMessageError(f"the message would be due at {due_ms}: choose a time before {_LATEST_DUE_MS} ms")
        if due_ms <= now_ms and not _NAMES.isdisjoint(properties):
            return now_ms  # it may replace a pending message, or its group be paused
        return due_ms if due_ms > now_ms else None

    def _first_run_ms(self, properties: dict[str, str], level: int, *, is_commit: bool) -> int:
        """Return the time of the first run of a repeating message. IllegalMessageError."""
        now_ms = self._now_ms()
        try:
            check_alone(properties, level)
            first_ms = first_run_ms(properties, now_ms)
            TimeRequest(False, first_ms).check(now_ms, self.settings.timer_max_delay_sec * 1_000)
        except IllegalMessageError:
            if is_commit:
                return now_ms  # the hand-over decides: the last run may be past by now
            raise
        return first_ms

    def prepare_timed(
        self,
        properties: dict[str, str],
        topic: str,
        queue_id: int,
        due_ms: int,
        account: str = "",
        *,
        is_commit: bool = False,
    ) -> Statement:
        """Change the properties of a message to those with which it is stored in the timer topic, queue 0.

        `is_commit`: if the index of keys is incomplete, the message loses its key, because a commit must succeed. If
        there are too many groups, it loses its group.
        Returns the statement of the record. Raises IllegalMessageError if the message cannot be delayed, and StoreError
        if the store cannot be marked as one with timed messages; `properties` is then unchanged.
        """
        replaced, key = None, delay_key(properties)
        is_managed = not names.MANAGED_DELAY.isdisjoint(properties)
        check_expiry(properties)
        if (group := delay_group(properties)) is not None:
            if is_commit:
                self._check_committed_group(properties, topic, group)
            else:
                self._check_group(topic, group)
        if key is not None:
            try:
                replaced = self._replaced(properties, topic, key)
            except KeysUnknownError as error:
                if not is_commit:
                    raise
                del properties[names.DELAY_KEY]
                text = "a message is committed without its DELAY_KEY %s: %s"
                self._throttled.warning(text, key, error, topic=topic, **about_message(properties))
        repeats = is_repeating(properties)
        if repeats and not is_commit:
            require_all_keys(self._store)
        statement = _first_statement(due_ms, replaced, repeats=repeats)
        added = {names.TIMER_OUT_MS: str(due_ms), names.REAL_TOPIC: topic, names.REAL_QUEUE_ID: str(queue_id)}
        if account:
            added[names.ACCOUNT] = account
        characters = sum(map(len, properties)) + sum(map(len, properties.values())) + 2 * len(properties)
        room = TIMED_ROOM_BYTES + statement.property_bytes + more_room_bytes(properties)
        if characters * _WIDEST_CHARACTER_BYTES + len(topic) + len(account) + 128 > MAX_PROPERTIES_BYTES - room:
            _check_room(properties, added, room)
        if repeats:
            self._store.raise_format_version(MANAGED_VERSION)
            # A send without a unique id is accepted, but the runs are found by it.
            properties.setdefault(names.UNIQUE_KEY, uuid4().hex.upper())
        elif replaced is not None:
            self._store.raise_format_version(CHANGED_VERSION)
        if not self._may_state:
            self._store.raise_format_version(TIMED_VERSION)
            self._may_state = True
        if self.on_first_timed is not None:
            self.on_first_timed()
            self.on_first_timed = None
        if not repeats and is_managed:
            _drop_level(properties, due_ms - self._now_ms())
        properties.update(added)
        return statement

    def _check_group(self, topic: str, group: str) -> None:
        """Raise IllegalMessageError if there are too many groups for another one."""
        partitions = self.queues.partitions
        if partitions.groups >= MAX_GROUPS and not partitions.has_group(topic, group):
            raise IllegalMessageError(
                f"{MAX_GROUPS} groups have pending messages: send the message without {names.DELAY_GROUP}, or with a"
                " group that has pending messages"
            )

    def _check_committed_group(self, properties: dict[str, str], topic: str, group: str) -> None:
        """Remove the group of a committed message if there are too many groups for another one.

        A message of a paused group keeps it: otherwise it would be delivered. The number of paused groups is limited.
        """
        try:
            self._check_group(topic, group)
        except IllegalMessageError as error:
            if not self.queues.is_paused_group(topic, group):
                del properties[names.DELAY_GROUP]
                text = "a message is committed without its DELAY_GROUP %s: %s"
                self._throttled.warning(text, group, error, topic=topic, **about_message(properties))

    def _replaced(self, properties: dict[str, str], topic: str, key: str) -> Pending | None:
        """Return the pending message that a new one with the same key replaces. KeyPendingError."""
        treatment = on_same_key(properties)
        try:
            found = self.with_key(topic, key)
        except OSError as error:
            raise StoreFailedError(f"the index of pending messages cannot be read ({error})") from error
        if found is None:
            return None
        pending = found.pending
        limit_ms = None if is_repeating(found.properties) else expiry_ms(found.properties)
        # A message that is already too late will be dropped.
        is_too_late = limit_ms is not None and self._now_ms() - pending.due_ms > limit_ms
        if treatment is OnSameKey.REPLACE or is_too_late:
            return pending
        raise KeyPendingError(key, pending, is_kept=treatment is OnSameKey.KEEP)

    def surely_fits_bytes(self, added_bytes: int) -> int:
        """Return the size of bodies whose copies always fit into a segment, with this size of additional properties."""
        return self._largest_record_bytes - _MAX_NON_BODY_BYTES - added_bytes - 1

    def check_copies(
        self, record: NewRecord, topic: str, *, added_bytes: int = MARK_ROOM_BYTES, topics: tuple[str, ...] = ()
    ) -> None:
        """Raise IllegalMessageError if a message could be stored now, but its copy could not be stored when it is due.

        `record` is the record to be stored now, `topic` the topic of its delivery. Copies have up to `added_bytes` of
        additional properties, and one of the following topics: these two, the dead-letter topic, or one of `topics`.
        """
        if len(record.body) <= self.surely_fits_bytes(added_bytes):
            return
        longest_topic = max(len(each.encode()) for each in (topic, names.SCHEDULE_DLQ_TOPIC, *topics, record.topic))
        properties_bytes = len(encode_properties(record.properties)) + added_bytes
        size = record_bytes(longest_topic, len(record.body), properties_bytes, record.born_host, record.store_host)
        most = self._largest_record_bytes
        if size > most:
            raise IllegalMessageError(
                f"the message would take up to {size} bytes when delivered, but only {most} fit in a"
                " log segment (mappedFileSizeCommitLog): send a smaller message"
            )

    def check_half(self, properties: dict[str, str], topic: str) -> None:
        """Raise IllegalMessageError if a half message could not be committed because of its key or group."""
        if requests_delay(properties):
            check_expiry(properties)
            if (group := delay_group(properties)) is not None:
                self._check_group(topic, group)
            if is_repeating(properties):
                require_all_keys(self._store)
            if delay_key(properties) is None:
                return
            require_all_keys(self._store)
            treatment = on_same_key(properties)
            if treatment is not OnSameKey.REPLACE:
                raise IllegalMessageError(
                    f"a transaction cannot have {names.DELAY_ON_SAME_KEY}={treatment} because its commit must"
                    " succeed: use replace"
                )

    def check_level(self, level: int) -> None:
        """Raise IllegalMessageError if a producer's message of `level` is to be rejected."""
        highest = self.levels.max_level
        if level > highest and self.settings.delay_level_overflow == "reject":
            raise IllegalMessageError(
                f"delay level {level} is above the highest, {highest}: use a lower level, "
                "or add levels to messageDelayLevel"
            )

    def _overflow(self, level: int, retry: bool, topic: str, properties: dict[str, str]) -> None:
        highest = self.levels.max_level
        if not retry:
            self.check_level(level)
        self._counters.clamped += 1
        text = "delay level %d is above the highest and was clamped to %d"
        self._throttled.warning(text, level, highest, topic=topic, **about_message(properties))


def _first_statement(due_ms: int, replaced: Pending | None, *, repeats: bool) -> Statement:
    details = {RUN: "0"} if repeats else {}
    if replaced is not None:
        return replacing_due(due_ms, replaced.identity, replaced.due_ms, details)
    return carried_due(due_ms, None, details) if repeats else first_due(due_ms)


def more_room_bytes(properties: dict[str, str]) -> int:
    """Return the bytes that the copies of a repeating message need besides TIMED_ROOM_BYTES; 0 for others."""
    return repeating_room_bytes(properties) if is_repeating(properties) else 0


def _check_room(properties: dict[str, str], added: dict[str, str], room_bytes: int) -> None:
    """Reject a message that could not be delivered later, because its copy contains up to `room_bytes` more."""
    bytes_used = len(encode_properties({**properties, **added}))
    if bytes_used > MAX_PROPERTIES_BYTES - room_bytes:
        raise IllegalMessageError(
            f"the properties of this delayed message, including those that the delay adds, take {bytes_used} bytes"
            f" (limit: {MAX_PROPERTIES_BYTES - room_bytes}): send fewer or shorter ones"
        )
