"""First attempts of plain messages, which most producers send, with few calls for each.

A plain message has only the properties that the client adds to each one. The headers of requests to a queue are encoded
once, and only the time of birth, the unique id and the opaque change. Anything else, and every further attempt, is left
to `Sender`, whose requests and results are the same.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from delaymq.client.core.network import failure_of
from delaymq.client.core.routes import Route
from delaymq.client.errors import ClientError
from delaymq.client.messages import Message, SendResult, SendStatus
from delaymq.client.sending.outgoing import Outgoing
from delaymq.client.sending.properties import is_plain, plain_text
from delaymq.client.sending.requests import BORN_TIMESTAMP, request_of, send_result
from delaymq.client.sending.sender import FirstAttempt, Sender
from delaymq.clock import now_ms
from delaymq.protocol.bodies import MessageQueue
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import encode_command, json_frame
from delaymq.transport import TransportError

if TYPE_CHECKING:
    from delaymq.client.core.client import Client
    from delaymq.client.options import ProducerOptions
    from delaymq.client.producer.in_flight import InFlight

MAX_TOPICS: Final = 256
"""Maximum number of topics whose encoded headers are kept."""
_CODE: Final = int(RequestCode.SEND_MESSAGE_V2)
_FRAME_LENGTHS_BYTES: Final = 8
_BORN, _MESSAGE_ID, _OPAQUE = "<born>", "<id>", 1_234_567_890


class PlainRequest(NamedTuple):
    """Request of plain messages to a queue: its header, between whose parts numbers and id are written."""

    queue: MessageQueue
    address: str
    to_born: str
    to_message_id: str
    to_opaque: str
    to_end: str

    def frame(self, message_id: str, opaque: int, body: bytes) -> bytes:
        """Return the frame of the request for a message, like `request_of`."""
        _, _, to_born, to_message_id, to_opaque, to_end = self
        header = f"{to_born}{now_ms()}{to_message_id}{message_id}{to_opaque}{opaque}{to_end}"
        return json_frame(header.encode(), body)


def plain_request(group: str, queue: MessageQueue, address: str, new_topic_queues: int) -> PlainRequest:
    """Return the request of plain messages to a queue of the broker at an address."""
    text = plain_text(Message(topic=queue.topic, body=b""), _MESSAGE_ID)
    command = request_of(group, queue, b"", text, sys_flag=0, flag=0, new_topic_queues=new_topic_queues)
    command.fields[BORN_TIMESTAMP], command.opaque = _BORN, _OPAQUE
    to_born, _, rest = encode_command(command)[_FRAME_LENGTHS_BYTES:].decode().partition(_BORN)
    to_message_id, _, rest = rest.partition(_MESSAGE_ID)
    to_opaque, _, to_end = rest.rpartition(str(_OPAQUE))
    return PlainRequest(queue, address, to_born, to_message_id, to_opaque, to_end)


class PlainSends:
    """Plain sends of a producer whose options allow them: without traces and without avoiding slow brokers."""

    def __init__(
        self, client: Client, group: str, options: ProducerOptions, sender: Sender, in_flight: InFlight
    ) -> None:
        self._client = client
        self._group = group
        self._options = options
        self._sender = sender
        self._in_flight = in_flight
        self._max_body_bytes = min(options.compress_above_bytes, options.max_message_bytes)
        self._requests: dict[str, tuple[Route, list[PlainRequest]]] = {}
        """By topic: the route to which the requests belong, and those to its writable queues."""

    async def send(self, message: Message) -> SendResult | None:
        """Send a message, with further attempts if necessary; None if it has to take the usual path.

        Errors as Producer.send.
        """
        requests, body = self._requests_for(message), message.body
        if not requests:
            return None
        rounds = self._sender.rounds(message.topic)
        request = requests[rounds.number % len(requests)]
        queue, address, limit_ms = request.queue, request.address, self._options.send_timeout_ms
        connection = self._client.network.ready(address)
        if connection is None or connection.sign is not None or not self._in_flight.try_enter(len(body)):
            return None
        rounds.number += 1
        message_id, deadline = self._client.unique_ids.next(), asyncio.get_running_loop().time() + limit_ms / 1000
        try:
            try:
                opaque = connection.next_opaque()
                data = request.frame(message_id, opaque, body)
                future = connection.start_encoded(opaque, _CODE, data, limit_ms)
                try:
                    answer = await future
                finally:
                    if not future.done() or future.cancelled():
                        connection.forget_request(opaque)
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
            outgoing = Outgoing(message.topic, message_id, "", body, plain_text(message, message_id))
            return await self._sender.send(outgoing, None, None, deadline, limit_ms, first)
        finally:
            self._in_flight.leave(len(body))

    def _requests_for(self, message: Message) -> list[PlainRequest]:
        """Return the requests of a plain message to the queues of its topic; none for any other message."""
        topic = message.topic
        route = self._client.known_route(topic)
        if (
            route is None
            or not (is_plain(message) and message.wait_stored and message.delay is None and message.at is None)
            or message.flag
            or len(message.body) > self._max_body_bytes
        ):
            return []
        known = self._requests.get(topic)
        if known is None or known[0] is not route:
            if len(self._requests) >= MAX_TOPICS:
                self._requests.clear()
            known = self._requests[topic] = route, self._requests_to(route)
        return known[1]

    def _requests_to(self, route: Route) -> list[PlainRequest]:
        """Return the requests to the writable queues of a route; none if one is on an unknown broker."""
        found = []
        for queue in route.writable:
            address = route.master(queue.broker_name)
            if address is None:
                return []
            found.append(plain_request(self._group, queue, address, self._options.new_topic_queues))
        return found
