"""Resending of a dead letter to its group: through the group's retry topic, so that no other group receives it.

The new message carries the dead letter's id in a property of DelayMQ. If the group fails on it again, the next dead
letter does not have this property, and can be resent as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from delaymq.broker.delivery.delay_rewrite import strip_own
from delaymq.broker.delivery.timed.requests import OF_EARLIER_TIMERS
from delaymq.broker.groups.subscription_groups import retry_queue
from delaymq.broker.requests.errors import group_missing, no_permission, store_refusal, unavailable
from delaymq.broker.sending.admission import check_size
from delaymq.broker.topics import WRITE
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.ids import offset_message_id
from delaymq.message.properties import decode_properties
from delaymq.message.record import Record
from delaymq.store.errors import StoreError
from delaymq.store.model import Dispatched, NewRecord

if TYPE_CHECKING:
    from delaymq.broker.groups.subscription_groups import Groups
    from delaymq.broker.statistics.counters import Stats
    from delaymq.broker.topics import Topics
    from delaymq.config import BrokerConfig
    from delaymq.store.message_store import MessageStore

_OF_EARLIER_TRIES: Final = (
    names.DELAY,
    names.REAL_TOPIC,
    names.REAL_QUEUE_ID,
    names.WAIT,
    "RECONSUME_TIME",
    "MAX_RECONSUME_TIMES",
    *names.TIMER_PROPERTIES,
    *OF_EARLIER_TIMERS,
)
"""Properties of the earlier tries: the retry count starts again at 0."""


class ResendContext(Protocol):
    """Parts of the broker that a resend needs."""

    @property
    def config(self) -> BrokerConfig:
        """Configuration in force."""

    @property
    def groups(self) -> Groups:
        """Existing groups."""

    @property
    def stats(self) -> Stats:
        """Counters of stored messages."""

    @property
    def store(self) -> MessageStore:
        """Store of the new message."""

    @property
    def store_host(self) -> bytes:
        """The broker's address, packed."""

    @property
    def topics(self) -> Topics:
        """Topics, for the groups' retry topics."""

    @property
    def writable(self) -> bool:
        """Whether the broker accepts messages."""

    def announce_arrivals(self) -> None:
        """Announce the message to held pulls."""


def resend(broker: ResendContext, name: str, dead_letter: Record) -> Dispatched:
    """Store `dead_letter`, a record of the group's dead-letter topic, for the group again, due immediately.

    Raises RequestError if it cannot be stored. The caller checks whether it was resent before (`is_resent_from`).
    """
    group = broker.groups.table.get(name)
    if group is None:
        raise group_missing(name)
    if not broker.writable or broker.config.read_only:
        raise unavailable(
            "the broker accepts no messages, because it is being taken out of service or is read-only: try again when"
            " it has restarted without readOnly"
        )
    if not broker.config.broker_permission & WRITE:
        raise no_permission(f"the broker[{broker.config.broker_ip1}] sending message is forbidden")
    if group.retry_queue_nums <= 0:
        raise no_permission(f"the group[{name}] has no retry queues: set its retryQueueNums")
    topic = names.retry_topic(name)
    config = broker.topics.create_for_group(topic, group.retry_queue_nums)
    if not config.perm & WRITE:
        raise no_permission(f"the topic[{topic}] sending message is forbidden")
    properties = _properties_of(dead_letter)
    check_size(properties)
    record = NewRecord(
        topic,
        retry_queue(group, config),
        dead_letter.body,
        properties,
        dead_letter.flag,
        dead_letter.sys_flag,
        dead_letter.born_timestamp_ms,
        dead_letter.born_host,
        broker.store_host,
        is_copy=True,
    )
    try:
        appended = broker.store.append(record)
    except (StoreError, IllegalMessageError) as error:
        broker.stats.put_failed += 1
        raise store_refusal(error) from error
    broker.stats.put(topic, appended.size)
    broker.stats.send_back(properties.get(names.RETRY_TOPIC, topic), name)
    broker.announce_arrivals()
    return appended


def _properties_of(dead_letter: Record) -> dict[str, str]:
    properties = decode_properties(dead_letter.raw_properties)
    strip_own(properties)
    for name in _OF_EARLIER_TRIES:
        properties.pop(name, None)
    dead_letter_id = offset_message_id(dead_letter.store_host, dead_letter.physical_offset)
    # Without a unique id, neither the new message nor the fact that it was resent could be found.
    properties.setdefault(names.UNIQUE_KEY, dead_letter_id)
    properties.setdefault(names.ORIGIN_MESSAGE_ID, dead_letter_id)
    properties[names.RESENT] = dead_letter_id
    return properties


def key_of(dead_letter: Record) -> str:
    """Return the unique id under which the resent messages of a dead letter are found."""
    dead_letter_id = offset_message_id(dead_letter.store_host, dead_letter.physical_offset)
    return decode_properties(dead_letter.raw_properties).get(names.UNIQUE_KEY, dead_letter_id)


def is_resent_from(record: Record, dead_letter: Record) -> bool:
    """Return whether `record`, of the retry topic, is `dead_letter` resent."""
    dead_letter_id = offset_message_id(dead_letter.store_host, dead_letter.physical_offset)
    return decode_properties(record.raw_properties).get(names.RESENT) == dead_letter_id
