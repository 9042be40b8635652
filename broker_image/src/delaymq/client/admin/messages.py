"""Messages: by id, by key, by time, the newest."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Iterable

from delaymq.client.admin.base import AdminCalls
from delaymq.client.admin.reading import QueueReading
from delaymq.client.errors import AnswerTimeoutError, ClientError, RefusedError, UnreachableError, reading_answer
from delaymq.client.messages import ReceivedMessage, decode_messages
from delaymq.clock import now_ms
from delaymq.message.ids import parse_offset_message_id
from delaymq.protocol.bodies import MessageQueue
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import request_command
from delaymq.protocol.headers import QueryMessageRequestHeader, ViewMessageRequestHeader
from delaymq.transport.addresses import host_and_port

MAX_QUERIED = 64
"""What a broker answers at most to a query by key."""
MAX_READ = 10_000
"""Messages that one call reads out of queues: all of them are in memory at once."""
QUEUES_AT_ONCE = 8
"""Queues that are read at the same time: a topic of a thousand must not flood its broker."""
BROKERS_AT_ONCE = 8

OnUnreachable = Callable[[str, ClientError], None]
"""Called with the name of each broker that gives no answer, and why."""


class MessageCalls(AdminCalls):
    """Requests for messages; no group's offset is asked for or moved."""

    async def view_message(self, offset_message_id: str) -> ReceivedMessage:
        """The message at the place that an offset message id names. ValueError when it is none."""
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
        """Messages of `topic` with this key, oldest first; a unique id is a key too.

        All brokers of the topic are asked. One that cannot be reached ends the search with its error, or with
        `on_unreachable` is left out.
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
        # The broker's index knows hashes only.
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
        """The oldest `max_messages` of those stored from `begin_ms` to `end_ms`, both included, oldest first.

        `on_unreachable` as of `query_by_key`.
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
        """The newest `count` messages of `topic`, or of each of its queues, oldest first."""
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
        """What `read` gives for each queue, in the order of store times; ValueError for too many or no queue."""
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
    """All results; the first failure ends the others."""

    async def run(work: Awaitable[list[ReceivedMessage]]) -> list[ReceivedMessage]:
        return await work

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(run(work)) for work in works]
    except* ClientError as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in running]
