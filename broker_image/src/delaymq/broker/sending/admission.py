"""Rules for the properties of a message that a client sends, applied before it is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from delaymq.broker.delivery.delay_rewrite import (
    TIMED_ROOM_BYTES,
    KeyPendingError,
    more_room_bytes,
    requested_level,
    requests_delay,
    strip_own,
)
from delaymq.broker.delivery.settings.limits import NOTHING
from delaymq.broker.delivery.timed.requests import OF_EARLIER_TIMERS, drop_earlier_timer
from delaymq.broker.requests.errors import message_illegal, store_refusal
from delaymq.broker.transactions.records import CHECK_ROOM_BYTES, delay_room_bytes
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.properties import MAX_PROPERTIES_BYTES, encode_properties, parse_properties
from delaymq.message.timed_marks import MAX_FIRST_DUE_BYTES, Statement
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import RequestError
from delaymq.store.errors import StoreError

if TYPE_CHECKING:
    from delaymq.broker.delivery import Delivery
    from delaymq.broker.transactions import Transactions
    from delaymq.schedule.timeline.partitions import Totals
    from delaymq.store.model import NewRecord

_SURELY_FITS_CHARACTERS: Final = 7_000
"""Properties with fewer characters always fit, even with 4 bytes for each and the properties that the broker adds."""


_ACTIONS: Final = frozenset((names.DELAY_ACTION, names.TIMER_DELETE_UNIQUE_KEY))
RULED: Final = frozenset(
    (
        names.DELAY,
        names.TRANSACTION_PREPARED,
        *names.TIMER_PROPERTIES,
        *OF_EARLIER_TIMERS,
        *_ACTIONS,
        *names.REPEATING,
    )
)
"""Properties that decide where a message is stored."""


Admitted: TypeAlias = tuple[str, int, dict[str, str], bool, Statement | None]
"""A message as it is to be stored: topic, queue id, properties, whether the producer waits for the flush, and the
statement of a timed message."""


class ActionRequestedError(Exception):
    """The message is not to be stored: it requests a change of a pending one."""

    def __init__(self, properties: dict[str, str]) -> None:
        super().__init__(properties.get(names.DELAY_ACTION, ""))
        self.properties = properties


class Admission(Protocol):
    """Parts of the broker that the rules need."""

    @property
    def cluster_name(self) -> str:
        """Property CLUSTER of every message."""

    @property
    def delivery(self) -> Delivery:
        """Delivery, which stores delayed messages."""

    @property
    def transactions(self) -> Transactions:
        """Transactions, which store half messages."""


def requested_change(topic: str, text: str) -> dict[str, str] | None:
    """Return the properties of a message, given as sent, if it requests a change of pending ones; otherwise None.

    Raises RequestError as `sent_properties`.
    """
    properties = sent_properties(text)
    return None if topic.startswith(names.RETRY_PREFIX) or _ACTIONS.isdisjoint(properties) else properties


def sent_properties(text: str) -> dict[str, str]:
    """Parse properties as sent. Raises RequestError 13 if they contain a NUL.

    A record with zero bytes in its properties may look to a recovery as if part of it had never been written.
    """
    if "\0" in text:
        raise message_illegal("the properties contain a NUL character (U+0000): remove it from names and values")
    return parse_properties(text)


def admit(broker: Admission, topic: str, queue_id: int, text: str, dead_letter: bool, account: str = "") -> Admitted:
    """Return a message as it is to be stored.

    `text` contains the properties as sent, `account` names the producer's account. RETRY_TOPIC is kept only in messages
    that a consumer sends to its retry topic: RocketMQ's clients set it nowhere else, and consumers treat a retry as a
    message of the topic that it names. Raises RequestError if a property is invalid or the properties do not fit,
    ActionRequestedError, and KeyPendingError if the message is not to be stored because of a pending one.
    """
    properties = sent_properties(text)
    if names.OWN_PREFIX in text:
        strip_own(properties)
    wait = properties.pop(names.WAIT, None)
    properties[names.CLUSTER] = broker.cluster_name
    if dead_letter:
        properties[names.DELAY] = "0"
    elif names.RETRY_TOPIC in properties and not topic.startswith(names.RETRY_PREFIX):
        del properties[names.RETRY_TOPIC]
    level, due_ms, statement, retry, is_half = 0, None, None, False, False
    if not RULED.isdisjoint(properties):
        is_retry = topic.startswith(names.RETRY_PREFIX)
        if not (is_retry or dead_letter or _ACTIONS.isdisjoint(properties)):
            raise ActionRequestedError(properties)
        drop_earlier_timer(properties)
        level = level_of(properties)
        retry = level > 0 and is_retry
        # Old clients leave the property in messages that they send for a retry. Those are not transactions.
        is_half = not (dead_letter or retry) and requests_transaction(properties)
        # The commit of a half message delays it in any topic.
        if is_half or not (dead_letter or is_retry):
            due_ms = due_time_of(broker, properties, level)
    if is_half:
        if wait is not None:
            properties[names.WAIT] = wait
        topic, queue_id, properties = _half(broker, properties, topic, queue_id, level, account)
    elif due_ms is not None:
        if wait is not None:
            properties[names.WAIT] = wait
        statement = timed(broker, properties, topic, queue_id, due_ms, account)
        topic, queue_id = names.TIMER_TOPIC, 0
    elif level > 0:
        if wait is not None:
            properties[names.WAIT] = wait  # RocketMQ's broker removes it only from plain messages
        topic, queue_id, properties = delay(broker, properties, topic, queue_id, level, account, retry=retry)
    elif len(text) > _SURELY_FITS_CHARACTERS:
        check_size(properties)
    return topic, queue_id, properties, wait is None or wait.lower() == "true", statement


def requests_transaction(properties: dict[str, str]) -> bool:
    """Return whether a message is a half message."""
    return properties.get(names.TRANSACTION_PREPARED, "").lower() == "true"


def _half(
    broker: Admission, properties: dict[str, str], topic: str, queue_id: int, level: int, account: str
) -> tuple[str, int, dict[str, str]]:
    """Return topic, queue and properties of a half message. Raises RequestError if its commit could not be stored."""
    try:
        broker.delivery.ingress.check_level(level)
        broker.delivery.ingress.check_half(properties, topic)
        if account and requests_delay(properties):
            properties[names.ACCOUNT] = account
    except IllegalMessageError as error:
        raise message_illegal(str(error)) from error
    return broker.transactions.prepare(properties, topic, queue_id)


def level_of(properties: dict[str, str]) -> int:
    """Return the delay level of a message, 0 without one. Raises RequestError 13 if it is not a number."""
    try:
        return requested_level(properties)
    except IllegalMessageError as error:
        raise message_illegal(str(error)) from error


def due_time_of(broker: Admission, properties: dict[str, str], level: int) -> int | None:
    """Return the due time in ms that a message requests; None: immediately. Raises RequestError 13 if it is invalid."""
    try:
        return broker.delivery.ingress.requested_time(properties, level)
    except IllegalMessageError as error:
        raise message_illegal(str(error)) from error


def timed(
    broker: Admission, properties: dict[str, str], topic: str, queue_id: int, due_ms: int, account: str
) -> Statement:
    """Change `properties` to those of a pending message that is due at `due_ms`; return the record's statement.

    Raises RequestError if the message cannot be delayed this way, and KeyPendingError if it is not to be stored because
    a pending one has the same key.
    """
    try:
        return broker.delivery.ingress.prepare_timed(properties, topic, queue_id, due_ms, account)
    except KeyPendingError as error:
        if error.is_kept:
            raise
        raise RequestError(ResponseCode.ILLEGAL_OPERATION, str(error)) from error
    except (IllegalMessageError, StoreError) as error:
        raise store_refusal(error) from error


def delay(
    broker: Admission,
    properties: dict[str, str],
    topic: str,
    queue_id: int,
    level: int,
    account: str = "",
    *,
    retry: bool,
) -> tuple[str, int, dict[str, str]]:
    """Return topic, queue and properties of a pending message of `level`. A retry belongs to no account.

    Raises RequestError 13 if the message cannot be delayed this way.
    """
    try:
        return broker.delivery.ingress.prepare(
            properties, topic, queue_id, level, "" if retry else account, retry=retry
        )
    except IllegalMessageError as error:
        raise message_illegal(str(error)) from error


def check_copies(broker: Admission, record: NewRecord, topic: str) -> None:
    """Raise IllegalMessageError if `record`, a delayed or half message for `topic`, leaves no space for its copies."""
    if record.topic == names.SCHEDULE_TOPIC:
        broker.delivery.ingress.check_copies(record, topic)
    elif record.topic == names.TIMER_TOPIC:
        added = TIMED_ROOM_BYTES + MAX_FIRST_DUE_BYTES + more_room_bytes(record.properties)
        broker.delivery.ingress.check_copies(record, topic, added_bytes=added)
    elif record.topic == names.HALF_TOPIC:
        added = CHECK_ROOM_BYTES + delay_room_bytes(record.properties)
        topics = names.SCHEDULE_TOPIC, names.TRANS_CHECK_MAX_TOPIC
        broker.delivery.ingress.check_copies(record, topic, added_bytes=added, topics=topics)


def check_limits(broker: Admission, record: NewRecord, topic: str, account: str, before: Totals = NOTHING) -> Totals:
    """Raise RequestError 13 if `record`, a delayed or half message for `topic`, exceeds a limit of pending messages.

    `before` are the preceding messages of its batch; the return value includes this one. Consumers' retries and commits
    must not be checked, because they must not be lost.
    """
    try:
        return broker.delivery.limits.check(record, topic, account, before)
    except IllegalMessageError as error:
        raise message_illegal(str(error)) from error


def admit_batched(
    broker: Admission, topic: str, queue_id: int, shared: dict[str, str], shared_characters: int, raw: bytes,
    account: str = "",
) -> tuple[dict[str, str], Statement | None]:  # fmt: skip
    """Return the properties of a message of a batch for the store, and the statement of a timed one.

    A timed message is stored in the timer topic. The properties are the message's own (`raw`) and those of the batch
    (`shared`), which take precedence.
    """
    text = raw.decode("utf-8", "surrogateescape")
    properties = sent_properties(text)
    properties.update(shared)
    # A batch is never sent to a retry topic.
    properties.pop(names.RETRY_TOPIC, None)
    if names.OWN_PREFIX in text:
        strip_own(properties)
    statement = None
    if not RULED.isdisjoint(properties):
        if requests_transaction(properties):
            raise message_illegal("a batch cannot be a transaction: send its messages individually")
        drop_earlier_timer(properties)
        if not _ACTIONS.isdisjoint(properties):
            raise message_illegal("a message of a batch cannot change a pending one: send it individually")
        level = level_of(properties)
        if level > 0:
            raise message_illegal(
                "a message of a batch cannot have a delay level: set a due time (TIMER_DELAY_MS, TIMER_DELIVER_MS), or"
                " send the messages individually"
            )
        due_ms = due_time_of(broker, properties, 0)
        if due_ms is not None:
            if names.DELAY_KEY in properties:
                raise message_illegal(f"a message of a batch cannot have {names.DELAY_KEY}: send it individually")
            statement = timed(broker, properties, topic, queue_id, due_ms, account)
    if len(text) + shared_characters > _SURELY_FITS_CHARACTERS:
        check_size(properties)
    return properties, statement


def check_size(properties: dict[str, str]) -> None:
    """Raise RequestError 13 if the properties do not fit into a record."""
    size = len(encode_properties(properties))
    if size > MAX_PROPERTIES_BYTES:
        raise message_illegal(
            f"the properties have {size} bytes (limit: {MAX_PROPERTIES_BYTES}): send fewer or shorter ones"
        )
