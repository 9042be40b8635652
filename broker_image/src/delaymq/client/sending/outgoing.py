"""What one request of a producer carries, made once for all its attempts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from delaymq.client.core.delays import Delay
from delaymq.client.core.replies import REPLY
from delaymq.client.messages import Message, outgoing_properties, properties_text
from delaymq.client.options import ProducerOptions
from delaymq.client.sending.batches import batch_body
from delaymq.client.sending.requests import check_size, compressed_in_thread, request_of
from delaymq.message import names
from delaymq.message.ids import UniqueIds
from delaymq.protocol.bodies import MessageQueue
from delaymq.protocol.command import Command


class Outgoing(msgspec.Struct, frozen=True):
    """A message or a batch, ready to travel."""

    topic: str
    message_id: str
    keys: str
    """For the log."""
    body: bytes
    """As it travels, compressed if that was worth it."""
    properties: str
    """In the form of the wire."""
    delay: Delay | None = None
    """Becomes a level at the broker that is chosen."""
    flag: int = 0
    sys_flag: int = 0
    is_batch: bool = False
    is_reply: bool = False
    once_only: bool = False
    """Whether there is no further attempt when one may have been stored."""
    delays_commit: bool = False
    """Whether it is a half message with a delay."""

    @property
    def needs_no_broker(self) -> bool:
        """Whether no broker has to be asked before it is sent."""
        return self.delay is None and not self.delays_commit

    def request(self, group: str, queue: MessageQueue, new_topic_queues: int, delay_level: int = 0) -> Command:
        """The request that sends it to `queue`."""
        properties = self.properties
        if delay_level:
            properties += f"\x02{names.DELAY}\x01{delay_level}"
        return request_of(
            group, queue, self.body, properties, sys_flag=self.sys_flag, flag=self.flag,
            new_topic_queues=new_topic_queues, is_batch=self.is_batch, is_reply=self.is_reply,
        )  # fmt: skip


async def outgoing_message(
    message: Message,
    delay: Delay | None,
    ids: UniqueIds,
    options: ProducerOptions,
    own: dict[str, str] | None = None,
    sys_flag: int = 0,
) -> Outgoing:
    """`message` with an id of its own, and with this client's `own` properties.

    IllegalMessageError when no broker would take it.
    """
    message_id = ids.next()
    properties = outgoing_properties(message, message_id)
    if own is not None:
        properties |= own
    if delay is not None:
        properties.pop(names.DELAY, None)
    body = message.body
    check_size(body, options)
    if len(body) > options.compress_above_bytes:
        body, compressed = await compressed_in_thread(body, options)
        sys_flag |= compressed
    text, keys = properties_text(properties), properties.get(names.KEYS, "")
    is_reply = properties.get(names.MESSAGE_TYPE) == REPLY
    return Outgoing(message.topic, message_id, keys, body, text, delay, message.flag, sys_flag, is_reply=is_reply)


def outgoing_batch(messages: Sequence[Message], ids: UniqueIds, options: ProducerOptions) -> Outgoing:
    """`messages` as one batch, each with an id. IllegalMessageError for what cannot be in one batch."""
    message_ids = [ids.next() for _ in messages]
    body = batch_body(messages, message_ids)
    check_size(body, options, is_batch=True)
    first = messages[0]
    keys = ",".join(" ".join(message.keys) for message in messages if message.keys)
    properties = properties_text({names.WAIT: "true" if first.wait_stored else "false"})
    return Outgoing(first.topic, ",".join(message_ids), keys, body, properties, is_batch=True)
