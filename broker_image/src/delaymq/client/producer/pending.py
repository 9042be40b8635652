"""Lists and counts of pending messages, from all brokers of their topic."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

import msgspec

from delaymq.client.core.client import Client
from delaymq.client.due_times import due_in_ms
from delaymq.client.errors import BadAnswerError, NoSuchDelayError, RefusedError
from delaymq.client.producer.all_brokers import from_all
from delaymq.message import names
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import request_command
from delaymq.protocol.headers import ListPendingMessagesRequestHeader

MAX_LISTED: Final = 10_000
"""Maximum messages of one list, all of which are in memory."""
_PAGE: Final = 100
T = TypeVar("T")


class PendingMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A pending message, without its body."""

    message_id: str
    """Unique id, by which the message can be changed."""
    topic: str
    due_ms: int
    """Due time in ms since 1970; of a repeating message, that of its next run."""
    tags: str | None
    keys: list[str]
    group: str | None
    """DELAY_GROUP."""
    stored_ms: int
    """Time in ms since 1970 at which the message was stored."""
    delay_level: int
    """0 without a delay level."""
    bytes: int
    """Size of the stored body."""
    properties: dict[str, str]
    broker_name: str = ""
    """Broker that has the message."""

    @property
    def key(self) -> str | None:
        """DELAY_KEY, by which the message can be changed."""
        return self.properties.get(names.DELAY_KEY)


class PendingList(msgspec.Struct, frozen=True):
    """The first pending messages that filters select."""

    messages: list[PendingMessage]
    """Messages in the order of their due times."""
    total: int | None
    """Number of all selected messages at the brokers that responded; None if only reading all of them would tell."""
    missing: tuple[str, ...] = ()
    """Names of brokers of the topic that did not respond, whose messages are not included."""


class PendingCount(msgspec.Struct, frozen=True):
    """The number of pending messages that filters select."""

    messages: int
    missing: tuple[str, ...] = ()
    """As in a list."""


class _Page(msgspec.Struct):
    messages: list[PendingMessage]
    total: int | None
    next: str | None


class PendingLists:
    """Requests for the pending messages of topics."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def first(self, query: ListPendingMessagesRequestHeader, limit: int) -> PendingList:
        """Return the first `limit` messages that a query selects. Errors as `Producer.pending`."""
        if not 1 <= limit <= MAX_LISTED:
            raise ValueError(f"limit is {limit}: use 1 to {MAX_LISTED}")
        found, missing = await self._of_brokers(query.topic, partial(self._first, query, limit))
        messages = sorted((each for part, _ in found for each in part), key=lambda each: each.due_ms)
        totals = [total for _, total in found]
        total = None if None in totals else sum(each or 0 for each in totals)
        return PendingList(messages[:limit], total, missing)

    async def count(self, query: ListPendingMessagesRequestHeader) -> PendingCount:
        """Return the number of messages that a query selects. Errors as `Producer.pending`."""
        found, missing = await self._of_brokers(query.topic, partial(self._count, query))
        return PendingCount(sum(found), missing)

    async def _of_brokers(
        self, topic: str, read: Callable[[str, str], Awaitable[T]]
    ) -> tuple[list[T], tuple[str, ...]]:
        """Return the results of `read(name, address)` for the brokers of a topic, and the names of those that did not
        respond.
        """
        route = await self._client.route(topic)
        places = [(name, address) for name in sorted(route.brokers) if (address := route.master(name)) is not None]
        found, lost = await from_all({name: read(name, address) for name, address in places})
        if lost and not found:
            raise next(iter(lost.values()))
        return found, tuple(lost)

    async def _first(
        self, query: ListPendingMessagesRequestHeader, limit: int, name: str, address: str
    ) -> tuple[list[PendingMessage], int | None]:
        """Return the first messages of a broker, and the number of all."""
        messages: list[PendingMessage] = []
        total = None
        async for page in self._pages(address, query, min(limit, _PAGE)):
            if not messages:
                total = page.total
            messages += [msgspec.structs.replace(each, broker_name=name) for each in page.messages]
            if len(messages) >= limit:
                break
        return messages[:limit], total

    async def _count(self, query: ListPendingMessagesRequestHeader, name: str, address: str) -> int:
        counted = 0
        async for page in self._pages(address, query, _PAGE):
            if page.total is not None:
                return page.total
            counted += len(page.messages)
        return counted

    async def _pages(self, address: str, query: ListPendingMessagesRequestHeader, size: int) -> AsyncIterator[_Page]:
        query = msgspec.structs.replace(query, limit=size)
        while True:
            command = request_command(RequestCode.LIST_PENDING_MESSAGES, query.to_fields())
            try:
                answer = await self._client.request(address, command)
            except RefusedError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                raise NoSuchDelayError(
                    f"the broker at {address} does not list pending messages: upgrade it to a version of DelayMQ that"
                    " does"
                ) from error
            try:
                page = msgspec.json.decode(answer.body, type=_Page)
            except msgspec.DecodeError as error:
                raise BadAnswerError(address, f"the page of pending messages is invalid ({error})") from error
            yield page
            if page.next is None:
                return
            query = msgspec.structs.replace(query, after=page.next)


def pending_query(
    topic: str,
    key: str | None,
    tag: str | None,
    group: str | None,
    since: datetime | None,
    until: datetime | None,
    *,
    held: bool,
) -> ListPendingMessagesRequestHeader:
    """Return the query for messages. IllegalMessageError if a time has no time zone."""
    return ListPendingMessagesRequestHeader(
        topic=topic,
        key=key,
        tag=tag,
        group=group,
        from_ms=None if since is None else due_in_ms(since),
        until_ms=None if until is None else due_in_ms(until),
        held=True if held else None,
    )
