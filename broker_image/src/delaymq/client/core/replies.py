"""Pending requests and their replies."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from delaymq.client.decoding import INFLATED_HERE_BYTES
from delaymq.client.errors import ClientError, ClosedError
from delaymq.client.messages import Message, ReceivedMessage
from delaymq.clock import now_ms
from delaymq.message import flags, names
from delaymq.message.compression import inflate
from delaymq.message.errors import RecordError
from delaymq.message.ids import offset_message_id
from delaymq.message.properties import parse_properties
from delaymq.protocol.bodies import MessageQueue
from delaymq.protocol.command import Command, Response
from delaymq.protocol.headers import ReplyMessageRequestHeader

MAX_OPEN_REQUESTS: Final = 10_000
"""Maximum number of pending requests per client; more would only wait for slow repliers and fill memory."""
REPLY: Final = "reply"
"""Value of the property MSG_TYPE of a reply."""

_logger = logging.getLogger(__name__)


def reply_to(request: ReceivedMessage, body: bytes) -> Message:
    """Return the reply to `request`, which any producer can send. ValueError for a message that is not a request."""
    properties = request.properties
    needed = (names.CLUSTER, names.CORRELATION_ID, names.REPLY_TO_CLIENT)
    missing = " and no ".join(name for name in needed if not properties.get(name))
    if missing:
        raise ValueError(
            f"message {request.message_id} of {request.topic} is not a request, since it has no property {missing}: "
            "reply only to messages sent by a producer's `request`"
        )
    kept = (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TTL)
    return Message(
        topic=f"{properties[names.CLUSTER]}_{names.REPLY_TOPIC_POSTFIX}",
        body=body,
        properties={names.MESSAGE_TYPE: REPLY} | {name: properties[name] for name in kept if properties.get(name)},
    )


class Reply(NamedTuple):
    """A reply pushed by a broker, with its body as received."""

    header: ReplyMessageRequestHeader
    properties: dict[str, str]
    body: bytes


class PendingReplies:
    """Pending requests of a client's producers, by correlation ID. Unexpected replies are dropped."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Future[Reply]] = {}

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def waiting(self) -> Iterator[tuple[str, asyncio.Future[Reply]]]:
        """Return a correlation ID that is valid within the context, and the future of its reply. ClientError: too
        many.
        """
        if len(self._open) >= MAX_OPEN_REQUESTS:
            raise ClientError(
                f"{len(self._open)} requests of this client are waiting for replies: send fewer requests concurrently"
            )
        correlation_id = str(uuid.uuid4())
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._open[correlation_id] = reply
        try:
            yield correlation_id, reply
        finally:
            self._open.pop(correlation_id, None)
            reply.cancel()

    def pushed(self, command: Command) -> Response:
        """Handle request 326. RequestError for invalid fields."""
        header = ReplyMessageRequestHeader.from_fields(command.fields)
        properties = parse_properties(header.properties or "")
        reply = self._open.get(properties.get(names.CORRELATION_ID, ""))
        if reply is None:
            # It is late or a duplicate, which the consumer that replied cannot change.
            _logger.info("no request is waiting for the reply: message %s", properties.get(names.UNIQUE_KEY))
        elif not reply.done():
            properties[names.REPLY_ARRIVE_TIME] = str(now_ms())
            reply.set_result(Reply(header, properties, command.body))
        return Response()

    def close(self) -> None:
        """End all pending requests with ClosedError."""
        for reply in self._open.values():
            if not reply.done():
                reply.set_exception(ClosedError("the client was closed while the request waited for its reply"))


async def reply_message(reply: Reply) -> ReceivedMessage:
    """Return the message for the requester; a large body is decompressed in a thread."""
    header, properties, body = reply
    if header.sys_flag & flags.COMPRESSED:
        try:
            if len(body) > INFLATED_HERE_BYTES:
                body = await asyncio.to_thread(inflate, body, header.sys_flag)
            else:
                body = inflate(body, header.sys_flag)
        except RecordError as error:
            _logger.warning("the body of a reply is returned as received, because it cannot be decompressed: %s", error)
    # A pushed reply has no position in a queue.
    own_id = offset_message_id(b"\0" * 8, 0)
    return ReceivedMessage(
        topic=header.topic,
        body=body,
        queue=MessageQueue("", header.queue_id, header.topic),
        queue_offset=0,
        physical_offset=0,
        message_id=properties.get(names.UNIQUE_KEY, own_id),
        offset_message_id=own_id,
        properties=properties,
        born_timestamp_ms=header.born_timestamp,
        store_timestamp_ms=header.store_timestamp,
        reconsume_times=header.reconsume_times or 0,
        flag=header.flag,
        sys_flag=header.sys_flag,
    )
