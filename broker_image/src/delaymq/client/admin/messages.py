"""Queries for messages: by ID, by key, by time, and the newest."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Iterable

from delaymq.client.admin.base import AdminCalls
from delaymq.client.admin.reading import QueueReading
from delaymq.client.decoding import decode_messages
from delaymq.client.errors import AnswerTimeoutError, ClientError, RefusedError, UnreachableError, reading_answer
from delaymq.client.messages import ReceivedMessage
from delaymq.clock import now_ms
from delaymq.message.ids import parse_offset_message_id
from delaymq.protocol.bodies import MessageQueue
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import request_command
from delaymq.protocol.headers import QueryMessageRequestHeader, ViewMessageRequestHeader
from delaymq.transport.addresses import host_and_port

MAX_QUERIED = 64
"""Maximum number of messages in a broker's response to a query by key."""
MAX_READ = 10_000
"""Maximum number of messages read from queues by one call, all of which are in memory."""
QUEUES_AT_ONCE = 8
"""Number of queues read concurrently, so that a topic with a thousand queues does not overload its broker."""
BROKERS_AT_ONCE = 8

OnUnreachable = Callable[[str, ClientError], None]
"""Called with the name of each unreachable broker and the reason."""


class MessageCalls(AdminCalls):
    """Requests for messages; no group's offset is read or changed."""

    async def view_message(self, offset_message_id: str) -> ReceivedMessage:
        """Return the message with an offset message id. ValueError if the id is invalid."""
        host, port, offset = parse_offset_message_id(offset_message_id)
        address = host_and_port(host, port)
        header = ViewMessageRequestHeader(offset=offset)
        answer = await self._client.request(
            address, request_command(RequestCode.VIEW_MESSAGE_BY_ID, header.to_fields())
        )
        with reading_answer(address):
            found = decode_messages(answer.body, "")
        if not found:
            raise ClientError(f"{address} has no message at offset {offset}")
        return found[0]

    async def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = MAX_QUERIED,
        begin_ms: int = 0,
        end_ms: int | None = None,
        on_unreachable: OnUnreachable | None = None,
    ) -> list[ReceivedMessage]:
        """Return messages of `topic` with this key, oldest first; a unique id is a key too.

        All brokers of the topic are queried. An unreachable broker ends the search with its error, or is omitted if
        `on_unreachable` is given.
        """
        header = QueryMessageRequestHeader(
            topic=topic,
            key=key,
            max_num=min(max_messages, MAX_QUERIED),
            begin_timestamp=begin_ms,
            end_timestamp=now_ms() if end_ms is None else end_ms,
        )
        route = await self._client.route(topic, fresh=True)
        names = sorted(route.brokers)
        found: list[ReceivedMessage] = []
        for start in range(0, len(names), BROKERS_AT_ONCE):
            some = names[start : start + BROKERS_AT_ONCE]
            for part in await _all(
                _unless_unreachable(name, self._query(name, route.reader(name), header), on_unreachable)
                for name in some
            ):
                found += part
        # The broker's index contains only hashes of keys.
        matching = [message for message in found if key in message.keys or key == message.message_id]
        return sorted(matching, key=lambda message: message.store_timestamp_ms)[:max_messages]

    async def _query(
        self, broker_name: str, address: str | None, header: QueryMessageRequestHeader
    ) -> list[ReceivedMessage]:
        if address is None:
            return []
        try:
            answer = await self._client.request(address, request_command(RequestCode.QUERY_MESSAGE, header.to_fields()))
        except RefusedError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return []
            raise
        with reading_answer(address):
            return decode_messages(answer.body, broker_name)

    async def query_by_time(
        self,
        topic: str,
        begin_ms: int,
        end_ms: int,
        *,
        max_messages: int = MAX_QUERIED,
        queue_id: int | None = None,
        on_unreachable: OnUnreachable | None = None,
    ) -> list[ReceivedMessage]:
        """Return the oldest `max_messages` of those stored from `begin_ms` to `end_ms`, both inclusive, oldest
        first.

        `on_unreachable` as in `query_by_key`.
        """
        reading = QueueReading(self._client)
        gone: set[str] = set()

        def leave_out(broker_name: str, error: ClientError) -> None:
            if broker_name not in gone and on_unreachable is not None:
                on_unreachable(broker_name, error)
            gone.add(broker_name)

        async def in_time(queue: MessageQueue) -> list[ReceivedMessage]:
            if queue.broker_name in gone:
                return []
            return await _unless_unreachable(queue.broker_name, read_last(queue), leave_out if on_unreachable else None)

        async def read_last(queue: MessageQueue) -> list[ReceivedMessage]:
            first = await reading.first_at(queue, begin_ms)
            last = await reading.first_at(queue, end_ms + 1)
            return await reading.read(queue, first, min(last, first + max_messages))

        return (await self._of_queues(topic, queue_id, in_time, max_messages))[:max_messages]

    async def last_messages(
        self, topic: str, count: int, *, queue_id: int | None = None, of_each_queue: bool = False
    ) -> list[ReceivedMessage]:
        """Return the newest `count` messages of `topic`, or of each of its queues, oldest first."""
        reading = QueueReading(self._client)
        found = await self._of_queues(topic, queue_id, lambda queue: reading.last(queue, count), count)
        return found if of_each_queue else found[-count:]

    async def _of_queues(
        self,
        topic: str,
        queue_id: int | None,
        read: Callable[[MessageQueue], Awaitable[list[ReceivedMessage]]],
        count: int,
    ) -> list[ReceivedMessage]:
        """Return the results of `read` for each queue, by store time. ValueError for too many queues or none."""
        if not 0 < count <= MAX_READ:
            raise ValueError(f"1 to {MAX_READ} messages can be read in one call, not {count}")
        route = await self._client.route(topic, fresh=True)
        queues = [queue for queue in route.readable if queue_id is None or queue.queue_id == queue_id]
        if queue_id is not None and not queues:
            raise ValueError(f"topic {topic} has no readable queue {queue_id}")
        found: list[ReceivedMessage] = []
        for start in range(0, len(queues), QUEUES_AT_ONCE):
            some = await _all(read(queue) for queue in queues[start : start + QUEUES_AT_ONCE])
            found = list(
                heapq.merge(found, *some, key=lambda message: (message.store_timestamp_ms, message.physical_offset))
            )
        return found


async def _unless_unreachable(
    broker_name: str, work: Awaitable[list[ReceivedMessage]], on_unreachable: OnUnreachable | None
) -> list[ReceivedMessage]:
    try:
        return await work
    except (UnreachableError, AnswerTimeoutError) as error:
        if on_unreachable is None:
            raise
        on_unreachable(broker_name, error)
        return []


async def _all(works: Iterable[Awaitable[list[ReceivedMessage]]]) -> list[list[ReceivedMessage]]:
    """Return all results; the first failure cancels the other calls."""

    async def run(work: Awaitable[list[ReceivedMessage]]) -> list[ReceivedMessage]:
        return await work

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(run(work)) for work in works]
    except* ClientError as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in running]
