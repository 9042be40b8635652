"""GET /api/v1/delay/pending/messages: pages of pending messages in the order of their due times, with filters.

The index of pending messages contains topic, level and due time, and a number for the group. Keys are found by the
index of keys; tags, and keys that very many messages have, by reading the messages.
"""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Final, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from delaymq.api_types.messages import MessageRow
from delaymq.api_types.pending import PendingMessages
from delaymq.message import names
from delaymq.message.properties import decode_properties, encode_properties
from delaymq.schedule.timeline import Pending
from delaymq.schedule.timeline.inspection import END_KEY, FIRST_KEY
from delaymq.server.api.messages.index_search import search_index
from delaymq.server.api.messages.pending import Kind, Level, check_kind, is_complete
from delaymq.server.api.messages.search import PENDING_TOPICS, has_key, row_of
from delaymq.server.api.messages.selection import Selection
from delaymq.server.api.messages.timed import pending_timed, reading_index
from delaymq.server.api.routing import Api, ApiError, Limit, Name, Query, TimeMs
from delaymq.server.http.sign_in.callers import ADMINISTER
from delaymq.server.log_reader import ReadRecord
from delaymq.server.time_slices import TimeSlices
from delaymq.store.index.key_index import indexed_delay_key

MAX_LISTED: Final = 100
"""Maximum messages per page."""
MAX_READ: Final = 1_000
"""Maximum messages that one request reads in search of a tag or key: 0.05 s if they are not in memory."""
MAX_EXAMINED: Final = 2_000_000
"""Entries of the index that one request examines in search of a group: 0.1 s, in time slices."""
_READ_AT_ONCE: Final = 500
_MAX_WITH_KEY: Final = 1_000
"""Up to this many records with a key are found by the index of keys."""
_OF_DELAYS: Final = frozenset(
    {names.UNIQUE_KEY, names.TIMER_OUT_MS, names.DELAY_KEY, names.DELAY_GROUP, *names.REPEATING}
)
"""Properties that callers without the permission to view messages need to change them."""
_TOKEN: Final = r"^[0-9]+\.[0-9]+\.[0-9a-f]{8}$"
"""Form of a token: due time in ms and identity of the last message that was examined, and a check of the filters."""

Position: TypeAlias = tuple[int, int]
"""Due time in ms and identity of a message."""


class ListQuery(Query):
    """Parameters of a page."""

    level: Level | None = None
    kind: Kind | None = None
    topic: Name | None = None
    key: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    """Only messages with this DELAY_KEY, key or unique id; requires a topic."""
    tag: Annotated[str, msgspec.Meta(min_length=1, max_length=127)] | None = None
    group: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    """Only messages with this DELAY_GROUP; requires a topic."""
    held: bool = False
    """Only messages that are due, and not delivered because of a pause."""
    from_ms: TimeMs | None = None
    """Only messages due at or after this time."""
    until_ms: TimeMs | None = None
    """Only messages due before this time."""
    after: Annotated[str, msgspec.Meta(max_length=64, extra_json_schema={"pattern": _TOKEN})] | None = None
    """`next` of the previous page."""
    limit: Limit = MAX_LISTED
    """Requested number; at most 100 are returned."""


class _Listed(NamedTuple):
    """A message of a page."""

    position: Position
    row: MessageRow


class _Page(NamedTuple):
    """Result of a search. `after` is the position that was reached; None at the end."""

    messages: list[_Listed]
    after: Position | None
    total: int | None


async def pending_messages(api: Api, query: ListQuery) -> PendingMessages:
    """Return a page of pending messages. ApiError if the parameters exclude each other."""
    broker, limit = api.broker, min(query.limit, MAX_LISTED)
    check_kind(query)
    for name in ("key", "group"):
        if getattr(query, name) is not None and query.topic is None:
            raise ApiError(400, "bad_request", f"{name} requires topic: send the topic of the message")
    with reading_index():
        found = await _Search(api, query, limit).page()
    if api.caller.role < ADMINISTER:
        for each in found.messages:
            without_own_properties(each.row)
            if not api.caller.may_view(each.row.topic):
                each.row.properties = {
                    name: each.row.properties[name] for name in _OF_DELAYS & each.row.properties.keys()
                }
    return PendingMessages(
        as_of_ms=broker.now_ms(),
        messages=[each.row for each in found.messages],
        total=found.total,
        truncated=found.after is not None,
        next=None if found.after is None else _token(found.after, query),
        limit=limit,
        complete=query.topic is None or is_complete(broker.delivery, query),
    )


def without_own_properties(row: MessageRow) -> None:
    """Remove the properties that only the broker uses, such as the account of the producer."""
    for name in [each for each in row.properties if each.startswith(names.OWN_PREFIX)]:
        del row.properties[name]


def _token(position: Position, query: ListQuery) -> str:
    """Return the token of the page that follows a position. It remains valid whatever happens to the messages."""
    return f"{position[0]}.{position[1]}.{_check_of(query)}"


def _check_of(query: ListQuery) -> str:
    """Return a checksum of the filters, so that a token is not mistaken for one of another list."""
    filters: tuple[object, ...] = query.level, query.kind, query.topic, query.key, query.tag
    filters += query.from_ms, query.until_ms, query.group, query.held
    return f"{crc32(repr(filters).encode()):08x}"


def _position(token: str, query: ListQuery) -> Position:
    if re.match(_TOKEN, token) is None:
        raise ApiError(400, "bad_request", f"after is {token!r}: send the value of next in the previous page")
    due, identity, check = token.split(".")
    if check != _check_of(query):
        raise ApiError(
            400,
            "bad_request",
            "after is from a list with other filters: send the same filters with each page, or omit after",
        )
    return min(int(due), END_KEY[0] - 1), min(int(identity), END_KEY[0] - 2)


def _before(key: Position) -> Position:
    due_ms, identity = key
    return (due_ms, identity - 1) if identity else (due_ms - 1, END_KEY[0] - 2)


class _Search:
    def __init__(self, api: Api, query: ListQuery, limit: int) -> None:
        self._api = api
        self._query = query
        self._limit = limit
        self._left = MAX_EXAMINED
        """Entries of the index that may be examined in search of a group."""
        delivery = api.broker.delivery
        self._selection = Selection(
            delivery.timeline,
            topic=query.topic,
            level=query.level,
            kind=query.kind,
            group=query.group,
            is_held=self._is_held if query.held else None,
            is_shown=None if api.caller.sees_all else api.caller.may_view,
        )
        self._begin: Position = FIRST_KEY if query.from_ms is None else (query.from_ms, 0)
        self._end: Position = END_KEY if query.until_ms is None else (query.until_ms, 0)
        if query.held:
            self._end = min(self._end, (api.broker.now_ms() + 1, 0))
        self._after: Position | None = None if query.after is None else _position(query.after, query)

    async def page(self) -> _Page:
        query = self._query
        if query.key is not None:
            found = await self._with_key(query.topic or "", query.key)
            if found is not None:
                return found
        elif query.tag is None:
            page = await self._read(lambda _: True, self._limit + 1)
            return page._replace(total=await self._total())
        texts = [] if query.key is None else [query.key.encode("utf-8", "surrogateescape")]
        if query.tag is not None:
            texts.append(encode_properties({names.TAGS: query.tag}))
        return await self._read(self._has_key_and_tag, _READ_AT_ONCE, texts)

    def _is_held(self, topic: str, group: str) -> bool:
        """Return whether the due messages of a partition are held."""
        delivery = self._api.broker.delivery
        return delivery.control.is_paused or delivery.timeline.queues.is_paused(topic, group)

    async def _total(self) -> int | None:
        """Return the number of messages that topic, group, level, kind and due times select; None if it is unknown."""
        query, partitions = self._query, self._api.broker.delivery.timeline.partitions
        if query.group is None:
            return await self._selection.count(self._begin, self._end)
        selected = [partitions.key(number) for number in self._selection.partitions()]
        if not selected or not partitions.has_group(query.topic or "", query.group):
            return 0
        if all(key.group for key in selected):  # these partitions have no other messages
            return await self._selection.count(self._begin, self._end)
        if query.held or (self._begin, self._end) != (FIRST_KEY, END_KEY):
            return None
        return partitions.totals_of_group(query.topic or "", query.group).messages

    def _is_of_group(self, entry: Pending) -> bool:
        owners = self._api.broker.delivery.timeline.partitions
        return self._query.group is None or owners.owner(entry.owner).group == self._query.group

    def _has_key_and_tag(self, read: ReadRecord) -> bool:
        query = self._query
        if query.key is not None and not has_key(read.record, query.topic or "", query.key):
            return False
        return query.tag is None or decode_properties(read.record.raw_properties).get(names.TAGS) == query.tag

    async def _read(self, is_wanted: Callable[[ReadRecord], bool], at_once: int, texts: Sequence[bytes] = ()) -> _Page:
        """Return the first messages after the position that `is_wanted` selects, of up to MAX_READ that are read.

        The records of all wanted messages contain `texts`.
        """
        messages: list[_Listed] = []
        after, left, slices = self._after, MAX_READ, TimeSlices()
        while len(messages) <= self._limit and left > 0 and self._left > 0:
            begin = self._begin if after is None else max(self._begin, (after[0], after[1] + 1))
            entries, after = await self._entries(at_once, begin)
            for entry, read in await self._records(entries, texts):
                await slices.yield_if_due()
                if is_wanted(read):
                    messages.append(_Listed(entry[:2], row_of(self._api.broker, read, entry)))
                    if len(messages) > self._limit:
                        break
            if after is None:
                break
            left -= len(entries)
        if len(messages) > self._limit:
            del messages[self._limit :]
            after = messages[-1].position
        return _Page(messages, after, None)

    async def _entries(self, count: int, begin: Position) -> tuple[list[Pending], Position | None]:
        """Return the first messages from a position, and the last position that was examined; None at the end."""
        if self._query.group is None:
            entries = await self._selection.first(count, begin, self._end)
            return entries, entries[-1][:2] if len(entries) >= count else None
        search = await self._selection.of_group(count, self._left, begin, self._end)
        self._left -= search.examined
        if len(search.found) > count:
            return search.found[:count], search.found[count - 1][:2]
        return search.found, None if search.following is None else _before(search.following)

    async def _records(self, entries: list[Pending], texts: Sequence[bytes]) -> list[tuple[Pending, ReadRecord]]:
        """Return the records of messages that contain `texts`, without messages that are not pending any more."""
        timeline, found = self._api.broker.delivery.timeline, []
        for entry, read in await self._containing(entries, texts):
            if read is not None:
                found.append((entry, read))
            # Otherwise, the message may have been carried forward since.
            elif held := timeline.taken(entry.identity) or timeline.find(*entry[:2], entry.partition):
                found += [(held, again) for _, again in await self._containing([held], texts) if again is not None]
        return found

    async def _containing(
        self, entries: list[Pending], texts: Sequence[bytes]
    ) -> list[tuple[Pending, ReadRecord | None]]:
        """Return the messages whose records contain `texts`, and those without a valid record."""
        places = [(entry.record, entry.size) for entry in entries]
        async with self._api.reading():
            found = await self._api.in_thread(self._api.log_files().containing, places, texts)
        return [(entries[number], read) for number, read in found]

    async def _with_key(self, topic: str, key: str) -> _Page | None:
        """Return the page of messages with a key, by the index of keys; None if it cannot return all of them."""
        api, store = self._api, self._api.broker.store
        slices, offsets = TimeSlices(), set[int]()
        if not store.has_all_keys:
            return None
        indexed = [*((each, key) for each in PENDING_TOPICS), (names.TIMER_TOPIC, indexed_delay_key(topic, key))]
        for indexed_topic, indexed_key in indexed:
            found = await search_index(store, indexed_topic, indexed_key, _MAX_WITH_KEY, slices)
            if len(found) >= _MAX_WITH_KEY:
                return None
            offsets.update(found)
        async with api.reading():
            read = await api.in_thread(api.log_files().records, sorted(offsets, reverse=True))
        chosen, partitions = dict[int, tuple[Pending, ReadRecord]](), set(self._selection.partitions())
        for each in read:
            await slices.yield_if_due()
            if each is not None and self._has_key_and_tag(each):
                entry = pending_timed(api.broker, each.record)
                if (
                    entry is not None
                    and entry.partition in partitions
                    and self._is_of_group(entry)
                    and self._begin <= entry[:2] < self._end
                ):
                    chosen.setdefault(entry.identity, (entry, each))  # the newest record holds the message
        rows = sorted(chosen.values(), key=lambda pair: pair[0])
        following = [pair for pair in rows if self._after is None or pair[0][:2] > self._after]
        page = [_Listed(entry[:2], row_of(api.broker, each, entry)) for entry, each in following[: self._limit]]
        return _Page(page, page[-1].position if len(following) > self._limit else None, len(rows))
