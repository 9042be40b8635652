"""First attempts to send plain messages and batches, with few function calls each.

A plain message has only the properties that the client adds to each one. The header of the requests to a queue is
encoded once, and only the time of birth, the unique id and the opaque change. Anything else, and every further attempt,
is left to `Sender`, whose requests and results are the same.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from delaymq.client.core.network import failure_of
from delaymq.client.errors import ClientError
from delaymq.client.messages import Message, SendResult, SendStatus
from delaymq.client.producer.plain_answers import on_answers, result_of
from delaymq.client.sending.outgoing import Outgoing
from delaymq.client.sending.properties import check_topic, is_plain, plain_text
from delaymq.client.sending.requests import BORN_TIMESTAMP, request_of, send_result
from delaymq.client.sending.sender import FirstAttempt, Sender
from delaymq.clock import now_ms
from delaymq.protocol.bodies import MessageQueue
from delaymq.protocol.command import FRAME_LENGTHS_BYTES, encode_command, json_frame
from delaymq.transport import RemotingConnection, TransportError

if TYPE_CHECKING:
    from delaymq.client.core.client import Client
    from delaymq.client.options import ProducerOptions
    from delaymq.client.producer.in_flight import InFlight

MAX_REQUESTS: Final = 4_096
"""Maximum number of queues whose encoded headers are kept."""
_BORN, _MESSAGE_ID, _OPAQUE = "<born>", "<id>", 1_234_567_890


class PlainRequest(NamedTuple):
    """Parts of the header of requests to a queue, between which the numbers and the unique id are inserted."""

    code: int
    to_born: str
    to_message_id: str
    to_opaque: str
    to_end: str

    def frame(self, message_id: str, born_ms: int, opaque: int, body: bytes) -> bytes:
        """Return the frame of the request for a message, or for a batch with an empty id, like `request_of`."""
        _, to_born, to_message_id, to_opaque, to_end = self
        header = f"{to_born}{born_ms}{to_message_id}{message_id}{to_opaque}{opaque}{to_end}"
        return json_frame(header.encode(), body)


@lru_cache(maxsize=MAX_REQUESTS)
def plain_request(group: str, queue: MessageQueue, new_topic_queues: int) -> PlainRequest:
    """Return the request of plain messages to a queue. IllegalMessageError if no message can be sent to its topic."""
    check_topic(queue.topic)
    text = plain_text(Message(topic=queue.topic, body=b""), _MESSAGE_ID)
    return _request(group, queue, new_topic_queues, text, _MESSAGE_ID)


@lru_cache(maxsize=MAX_REQUESTS)
def batch_request(group: str, queue: MessageQueue, new_topic_queues: int, properties: str) -> PlainRequest:
    """Return the request of batches to a queue; `properties` are those of the whole batch."""
    return _request(group, queue, new_topic_queues, properties)


def _request(
    group: str, queue: MessageQueue, new_topic_queues: int, properties: str, message_id: str | None = None
) -> PlainRequest:
    """Return the request with these properties, which contain `message_id`; None: it is a batch."""
    command = request_of(
        group, queue, b"", properties, sys_flag=0, flag=0, new_topic_queues=new_topic_queues,
        is_batch=message_id is None,
    )  # fmt: skip
    command.fields[BORN_TIMESTAMP], command.opaque = _BORN, _OPAQUE
    to_born, _, rest = encode_command(command)[FRAME_LENGTHS_BYTES:].decode().partition(_BORN)
    to_message_id = ""
    if message_id is not None:
        to_message_id, _, rest = rest.partition(message_id)
    to_opaque, _, to_end = rest.rpartition(str(_OPAQUE))
    return PlainRequest(int(command.code), to_born, to_message_id, to_opaque, to_end)


Attempt = tuple[Message | Outgoing, MessageQueue, str, RemotingConnection, PlainRequest]
"""First attempt of a send, which has entered the sends in flight: message or batch, and where to send it."""


class PlainSends:
    """Plain sends of a producer whose options allow them: without traces and without avoiding slow brokers.

    A caller must make the attempt that it receives. None: the send has to take the usual path.
    """

    def __init__(
        self, client: Client, group: str, options: ProducerOptions, sender: Sender, in_flight: InFlight
    ) -> None:
        self._client = client
        self._group = group
        self._options = options
        self._sender = sender
        self._in_flight = in_flight
        self._max_body_bytes = min(options.compress_above_bytes, options.max_message_bytes)

    def of_message(self, message: Message) -> Attempt | None:
        """Return the first attempt to send a message."""
        is_usual = (
            is_plain(message)
            and message.wait_stored
            and not message.flag
            and message.delay is None
            and message.at is None
            and len(message.body) <= self._max_body_bytes
        )
        return self._entered(message) if is_usual else None

    def of_batch(self, batch: Outgoing) -> Attempt | None:
        """Return the first attempt to send a batch."""
        return self._entered(batch) if batch.needs_no_broker else None

    def _entered(self, content: Message | Outgoing) -> Attempt | None:
        topic = content.topic
        route = self._client.known_route(topic)
        if route is None or not route.writable:
            return None
        rounds = self._sender.rounds(topic)
        queue = route.writable[rounds.number % len(route.writable)]
        address = route.master(queue.broker_name)
        connection = None if address is None else self._client.network.ready(address)
        if address is None or connection is None or connection.sign is not None:
            return None
        new_topic_queues = self._options.new_topic_queues
        if isinstance(content, Outgoing):
            request = batch_request(self._group, queue, new_topic_queues, content.properties)
        else:
            request = plain_request(self._group, queue, new_topic_queues)
        if not self._in_flight.try_enter(len(content.body)):
            return None
        rounds.number += 1
        return content, queue, address, connection, request

    async def make(self, attempt: Attempt) -> SendResult:
        """Send, with further attempts if necessary. Errors as Producer.send."""
        content, queue, address, connection, request = attempt
        body, limit_ms = content.body, self._options.send_timeout_ms
        deadline, born_ms = asyncio.get_running_loop().time() + limit_ms / 1000, now_ms()
        if isinstance(content, Outgoing):
            message_id, stated_id = content.message_id, ""
        else:
            message_id = stated_id = self._client.unique_ids.next(born_ms)
        try:
            try:
                opaque = connection.next_opaque()
                data = request.frame(stated_id, born_ms, opaque, body)
                future = connection.start_encoded(opaque, request.code, data, limit_ms, deadline, on_answers)
                try:
                    answer = await future
                finally:
                    if not future.done() or future.cancelled():
                        connection.forget_request(opaque)
                if type(answer) is tuple:
                    return result_of(answer, message_id, queue)
                result = send_result(address, answer, message_id, queue)
                if result.status is SendStatus.OK:
                    return result
                first = FirstAttempt(queue, address, result)
            except TransportError as error:
                failure = failure_of(connection, address, error, limit_ms, limit_ms)
                failure.__cause__ = error
                first = FirstAttempt(queue, address, failure)
            except ClientError as error:
                first = FirstAttempt(queue, address, error)
            if not isinstance(content, Outgoing):
                content = Outgoing(content.topic, message_id, "", body, plain_text(content, message_id))
            return await self._sender.send(content, None, None, deadline, limit_ms, first)
        finally:
            self._in_flight.leave(len(body))
