"""Limits of delayed messages by topic and account, checked before a message is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from delaymq.broker.delivery.delay_rewrite import requested_level
from delaymq.broker.delivery.repeating.schedules import first_run_ms
from delaymq.broker.delivery.status import DeliveryCounters
from delaymq.broker.delivery.timed.requests import is_repeating, requested_time
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError, KeysUnknownError
from delaymq.message.properties import encode_properties
from delaymq.message.record import record_bytes
from delaymq.schedule.timeline.partitions import Totals

if TYPE_CHECKING:
    from delaymq.api_types.delay_settings import AccountDelaySettings, TopicDelaySettings
    from delaymq.broker.delivery.delay_rewrite import DelayIngress
    from delaymq.broker.delivery.reader import Found
    from delaymq.broker.delivery.settings.table import DelaySettingsTable
    from delaymq.schedule.timeline import Timeline
    from delaymq.store.model import NewRecord

NOTHING = Totals(0, 0)


class _Limited(NamedTuple):
    """A topic or an account with limits."""

    kind: str
    """`topic` or `account`, also the option of `delaymq delay set` that names it."""
    name: str
    settings: TopicDelaySettings | AccountDelaySettings
    pending: Totals


class DelayLimits:
    """Limits of the pending messages of one broker. The totals that they need are kept by the index."""

    def __init__(
        self,
        settings: DelaySettingsTable,
        timeline: Timeline,
        ingress: DelayIngress,
        counters: DeliveryCounters,
        now_ms: Callable[[], int],
    ) -> None:
        """`ingress` has the present delay levels, and finds messages by DELAY_KEY."""
        self.settings = settings
        self._timeline = timeline
        self._ingress = ingress
        self._counters = counters
        self._now_ms = now_ms

    def check(self, record: NewRecord, topic: str, account: str = "", before: Totals = NOTHING) -> Totals:
        """Raise IllegalMessageError if a message, delayed or transactional, exceeds a limit of its topic or account.

        `record` is the record to be stored, and `topic` the topic of its delivery. `before` are the messages of the
        same batch that precede it; the return value includes this one. A message that replaces a pending one with the
        same DELAY_KEY does not count in addition to it.
        """
        of_topic = self.settings.topics.get(topic)
        of_account = self.settings.accounts.get(account) if account else None
        if of_topic is None and of_account is None:
            return before
        delay_ms = self._delay_ms(record)
        if delay_ms is None:
            return before
        self.check_delay(topic, delay_ms)
        partitions = self._timeline.partitions
        size = _size(record) if _limits_bytes(of_topic) or _limits_bytes(of_account) else 0
        if of_topic is not None and _is_exceeded(of_topic, pending := partitions.totals(topic), before, size):
            self._reject(_Limited("topic", topic, of_topic, pending), record, topic, before, size)
        if of_account is not None and _is_exceeded(of_account, pending := partitions.of_account(account), before, size):
            self._reject(_Limited("account", account, of_account, pending), record, topic, before, size)
        return Totals(before.messages + 1, before.bytes + size)

    def is_unchecked(self, account: str) -> bool:
        """Return whether nothing is checked because of an account: it has no limits, and a number in the index."""
        has_limits = account in self.settings.accounts
        return not account or (not has_limits and self._timeline.partitions.has_account(account))

    def check_delay(self, topic: str, delay_ms: int) -> None:
        """Raise IllegalMessageError if the delay of a message is longer than its topic allows."""
        max_s = self.settings.of_topic(topic).max_delay_seconds
        if max_s is not None and delay_ms > max_s * 1_000:
            raise self._exceeded(
                "maxDelaySeconds",
                f"the message would be due in {-(-delay_ms // 1_000)} s, and the maximum of topic {topic} is {max_s} s"
                " (maxDelaySeconds): choose an earlier time, or have an administrator raise the limit"
                f" (delaymq delay set --topic {topic} --max-delay)",
            )

    def _reject(self, limited: _Limited, record: NewRecord, topic: str, before: Totals, size: int) -> None:
        """Raise IllegalMessageError, unless the message replaces another one and therefore exceeds nothing."""
        max_messages, max_bytes = limited.settings.max_pending_messages, limited.settings.max_pending_bytes
        messages, total_bytes = limited.pending.messages + before.messages, limited.pending.bytes + before.bytes
        too_many = max_messages is not None and messages + 1 > max_messages
        replaced = self._replaced(record, topic, limited)
        if replaced is not None:
            # The number does not change. Bytes are rejected only if they grow: the limit may have been lowered.
            too_many, total_bytes = False, total_bytes - replaced.pending.size
            if not _is_larger(record, replaced):
                return
        who = f"{limited.kind} {limited.name}"
        advice = (
            f"cancel some, wait until they are due, or have an administrator raise the limit (delaymq delay set --{who}"
        )
        if too_many:
            raise self._exceeded(
                "maxPendingMessages",
                f"{who} has {messages} pending delayed messages, and the maximum is {max_messages}"
                f" (maxPendingMessages): {advice} --max-pending-messages)",
            )
        if max_bytes is not None and total_bytes + size > max_bytes:
            raise self._exceeded(
                "maxPendingBytes",
                f"{who} has {total_bytes} bytes of pending delayed messages, which this message of {size} bytes would"
                f" increase above the maximum of {max_bytes} (maxPendingBytes): {advice} --max-pending-bytes)",
            )

    def _exceeded(self, limit: str, text: str) -> IllegalMessageError:
        self._counters.limited[limit] = self._counters.limited.get(limit, 0) + 1
        return IllegalMessageError(text)

    def _delay_ms(self, record: NewRecord) -> int | None:
        """Return the delay of a message from now on, in ms; None for a message without one."""
        now_ms, properties = self._now_ms(), record.properties
        if record.topic == names.TIMER_TOPIC and record.statement is not None:
            return max((record.statement.due_ms or 0) - now_ms, 0)
        if is_repeating(properties):
            return first_run_ms(properties, now_ms) - now_ms
        level = requested_level(properties)
        if level:
            levels = self._ingress.levels
            return levels.delay_ms(min(level, levels.max_level))
        request = requested_time(properties, 0)
        return None if request is None else max(request.due_ms(now_ms) - now_ms, 0)

    def _replaced(self, record: NewRecord, topic: str, limited: _Limited) -> Found | None:
        """Return the pending message that one with a DELAY_KEY replaces, if it counts for the same limit."""
        key = record.properties.get(names.DELAY_KEY)
        if key is None:
            return None
        try:
            found = self._ingress.with_key(topic, key)
        except (KeysUnknownError, OSError):
            return None  # it counts as an additional one; the send reports the reason otherwise
        if found is None or limited.kind == "topic":
            return found
        return found if found.properties.get(names.ACCOUNT) == limited.name else None


def _is_exceeded(
    settings: TopicDelaySettings | AccountDelaySettings, pending: Totals, before: Totals, size: int
) -> bool:
    max_messages, max_bytes = settings.max_pending_messages, settings.max_pending_bytes
    if max_messages is not None and pending.messages + before.messages >= max_messages:
        return True
    return max_bytes is not None and pending.bytes + before.bytes + size > max_bytes


def _limits_bytes(settings: TopicDelaySettings | AccountDelaySettings | None) -> bool:
    return settings is not None and settings.max_pending_bytes is not None


def _is_larger(record: NewRecord, replaced: Found) -> bool:
    """Return whether a message is larger than the one that it replaces, apart from what the broker adds to it."""
    before = {name: value for name, value in replaced.properties.items() if name != names.DUE}
    growth = len(encode_properties(record.properties)) - len(encode_properties(before))
    return len(record.body) + growth > len(replaced.record.body)


def _size(record: NewRecord) -> int:
    """Return the size of a record in the log."""
    encoded = record.property_bytes
    size = len(encode_properties(record.properties) if encoded is None else encoded)
    if record.statement is not None:
        size += record.statement.property_bytes
    return record_bytes(len(record.topic.encode()), len(record.body), size, record.born_host, record.store_host)
