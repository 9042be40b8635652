"""Content of a producer's request, created once for all attempts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from delaymq.client.core.replies import REPLY
from delaymq.client.due_times import Delay, Schedule
from delaymq.client.messages import Message, schedule_for
from delaymq.client.options import ProducerOptions
from delaymq.client.sending.batches import batch_body, check_batch
from delaymq.client.sending.plain_batch import plain_batch
from delaymq.client.sending.properties import (
    check_topic,
    is_plain,
    outgoing_properties,
    plain_text,
    properties_text,
)
from delaymq.client.sending.requests import check_size, compressed_in_thread, request_of
from delaymq.message import names
from delaymq.message.ids import UniqueIds
from delaymq.protocol.bodies import MessageQueue
from delaymq.protocol.command import Command

_MANAGED: Final = names.MANAGED_DELAY | names.REPEATING
_WAIT_TRUE: Final = properties_text({names.WAIT: "true"})
_WAIT_FALSE: Final = properties_text({names.WAIT: "false"})


class Outgoing(msgspec.Struct, frozen=True):
    """A message or a batch, ready to send."""

    topic: str
    message_id: str
    keys: str
    """Keys, for the log."""
    body: bytes
    """Body as sent, compressed if that made it smaller."""
    properties: str
    """Properties in wire format."""
    schedule: Schedule | None = None
    """Delay or due time of a message, which becomes a property that the chosen broker supports."""
    flag: int = 0
    sys_flag: int = 0
    is_batch: bool = False
    is_reply: bool = False
    once_only: bool = False
    """Whether to stop after an attempt that may have been stored."""
    delays_commit: bool = False
    """Whether it is a half message with a delay or a due time."""
    has_timed: bool = False
    """Whether it is a batch with messages that have delays or due times."""
    is_managed: bool = False
    """Whether it repeats, or has a key or a limit of its lateness, which brokers without them would ignore."""

    @property
    def needs_no_broker(self) -> bool:
        """Whether it can be sent without querying the broker first."""
        return self.schedule is None and not self.delays_commit and not self.has_timed and not self.is_managed

    def request(
        self, group: str, queue: MessageQueue, new_topic_queues: int, delaying: tuple[str, str] | None = None
    ) -> Command:
        """Return the request that sends it to `queue`, with the property `delaying` that delays it."""
        properties = self.properties
        if delaying is not None:
            properties += f"\x02{delaying[0]}\x01{delaying[1]}"
        return request_of(
            group, queue, self.body, properties, sys_flag=self.sys_flag, flag=self.flag,
            new_topic_queues=new_topic_queues, is_batch=self.is_batch, is_reply=self.is_reply,
        )  # fmt: skip


async def outgoing_message(
    message: Message,
    ids: UniqueIds,
    options: ProducerOptions,
    own: dict[str, str] | None = None,
    sys_flag: int = 0,
    *,
    delay: Delay | None = None,
    at: datetime | None = None,
) -> Outgoing:
    """Return `message` with a unique id and this client's `own` properties.

    IllegalMessageError if no broker would accept it, NoSuchDelayError for an invalid delay.
    """
    schedule = schedule_for(message, delay, at)
    message_id, body = ids.next(), message.body
    if own is None and is_plain(message):
        check_topic(message.topic)
        text, keys, is_reply = plain_text(message, message_id), "", False
    else:
        properties = outgoing_properties(message, message_id)
        if own is not None:
            properties |= own
        text, keys = properties_text(properties), properties.get(names.KEYS, "")
        is_reply = properties.get(names.MESSAGE_TYPE) == REPLY
    check_size(body, options)
    if len(body) > options.compress_above_bytes:
        body, compressed = await compressed_in_thread(body, options)
        sys_flag |= compressed
    return Outgoing(
        message.topic, message_id, keys, body, text, schedule, message.flag, sys_flag, is_reply=is_reply,
        is_managed=own is not None and not _MANAGED.isdisjoint(own),
    )  # fmt: skip


def outgoing_batch(messages: Sequence[Message], ids: UniqueIds, options: ProducerOptions) -> Outgoing:
    """Return `messages` as one batch, each with an ID. IllegalMessageError for messages that cannot be in one batch."""
    check_batch(messages)
    plain = plain_batch(messages, ids)
    if plain is None:
        unique_ids = ids.next_ones(len(messages))
        body, has_timed = batch_body(messages, unique_ids)
        message_ids = ",".join(unique_ids)
        keys = ",".join([" ".join(message.keys) for message in messages if message.keys])
    else:
        (body, message_ids), has_timed, keys = plain, False, ""
    check_size(body, options, is_batch=True)
    first = messages[0]
    properties = _WAIT_TRUE if first.wait_stored else _WAIT_FALSE
    return Outgoing(first.topic, message_ids, keys, body, properties, is_batch=True, has_timed=has_timed)
