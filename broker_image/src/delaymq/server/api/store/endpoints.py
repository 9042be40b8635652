"""Handlers of /api/v1/store, for remote readers, who see only the confirmed part of the log.

Files are read in chunks in separate threads; the loop only sends. The number of concurrent reads is limited, and so is
the time for receiving a response.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, TypeVar

import msgspec
from aiohttp import web

from delaymq.api_types.store import Segment, Starts, Store
from delaymq.server.api.routing import ApiError, Query
from delaymq.server.api.store.files import file_sizes, required_version, small_files
from delaymq.server.api.store.segments import (
    RangeError,
    open_segment,
    parse_range,
    read_chunk,
    records_after,
)
from delaymq.server.http.http_server import abort
from delaymq.server.http.responses import JSON, error_response
from delaymq.store.reader import QUEUE_ENTRY
from delaymq.store.segments import is_segment_name, segment_name

if TYPE_CHECKING:
    from delaymq.server.broker_server import BrokerServer

FORMAT_VERSION: Final = 1
"""Version of the responses; it increases when a member changes its meaning or is removed."""
MAX_READS: Final = 4
"""Maximum concurrent responses; each takes a thread, a descriptor and time on the loop."""
MAX_WAITING: Final = 256
"""Maximum waiting requests; further ones get 503."""
MAX_WAIT_S: Final = 5.0
RECEIVE_GRACE_S: Final = 30.0
MIN_BYTES_PER_S: Final = 64 * 1024
"""Minimum receive rate beyond the grace period; slower peers are disconnected to free space of deleted segments."""
SLICE_S: Final = 0.002
"""Time slice of an iteration over tables on the event loop."""
SLICE_BYTES: Final = 256 * 1024
QUOTED_AT_ONCE: Final = 128 * 1024
"""Characters of a file that are encoded as JSON at a time, which takes less than a millisecond."""
MIN_EVERY_BYTES: Final = 4_096
MAX_STARTS: Final = 4_096
"""Maximum offsets per response; each requires a search in the segment."""
MAX_TRIES: Final = 64
"""Maximum queue lookups per offset, so that a log without its queues is not searched completely."""
_TRIES_AT_ONCE: Final = 8

T = TypeVar("T")


SegmentName = Annotated[str, msgspec.Meta(max_length=64)]


class SegmentQuery(Query):
    """Parameters of a segment."""

    name: SegmentName


class StartsQuery(Query):
    """Parameters of record starts: the segment, and their distance."""

    name: SegmentName
    every: Annotated[int, msgspec.Meta(ge=MIN_EVERY_BYTES, le=10**18 - 1)]


class StoreHttp:
    """Handlers for a broker's store."""

    def __init__(self, server: "BrokerServer") -> None:
        self._server = server
        self._reads = asyncio.Semaphore(MAX_READS)
        self._waiting = 0
        self._threads = ThreadPoolExecutor(MAX_READS, thread_name_prefix="store-http")

    async def close(self, app: web.Application) -> None:
        """Shut down the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def store(self, request: web.Request) -> Store:
        """/api/v1/store: return the segments and the readable range of the log."""
        self._require_current()
        broker = self._server.broker
        store, config = broker.store, broker.config
        end = store.confirmed_offset
        return Store(
            format_version=FORMAT_VERSION,
            minimum_reader=required_version(store),
            as_of_ms=broker.now_ms(),
            store_id=self._server.log_id,
            boot_id=self._server.boot_id,
            member="" if self._server.replica is None else self._server.replica.name,
            broker_name=config.broker_name,
            in_use=True,
            message_delay_level=config.message_delay_level,
            file_reserved_time_hours=config.file_reserved_time,
            files=file_sizes(store),
            start_offset=store.min_offset,
            end_offset=end,
            segments=[
                Segment(name=segment_name(base), offset=base, bytes=self._readable_end(base) - base)
                for base in range(store.min_offset, end, store.options.commit_log_file_bytes)
            ],
        )

    async def segment(self, request: web.Request) -> web.StreamResponse:
        """/api/v1/store/segments/NAME: send a segment's bytes, or a range of them."""
        base = self._find(request)
        readable_bytes = self._readable_end(base) - base
        is_head = request.method == "HEAD"
        try:
            # Ranges are not defined for HEAD.
            span = None if is_head else parse_range(request.headers.get("Range"), readable_bytes)
        except RangeError as error:
            response = error_response(416, "range_not_satisfiable", str(error))
            response.headers["Content-Range"] = f"bytes */{readable_bytes}"
            return response
        start, end = span or (0, readable_bytes)
        answer = web.StreamResponse(
            status=200 if span is None else 206,
            headers={
                "Content-Type": "application/octet-stream",
                "Accept-Ranges": "bytes",
                "DelayMQ-Store-Id": self._server.log_id,
                "DelayMQ-Boot-Id": self._server.boot_id,
            },
        )
        answer.content_length = end - start
        if span is not None:
            answer.headers["Content-Range"] = f"bytes {start}-{end - 1}/{readable_bytes}"
        if is_head:
            await answer.prepare(request)
            return answer
        async with self._reading_segment(base) as descriptor, _Sending(request, answer) as sending:
            while start < end:
                chunk = await self._in_thread(read_chunk, descriptor, start, end)
                if not chunk or not await sending.send(chunk):
                    sending.abort()
                    break
                start += len(chunk)
        return answer

    async def starts(self, request: web.Request) -> Starts:
        """/api/v1/store/segments/NAME/starts?every=BYTES: return starts of records at about this distance."""
        base = self._find(request)
        stated = request.query.get("every", "")
        if not (stated.isascii() and stated.isdigit() and len(stated) < 19 and int(stated) >= MIN_EVERY_BYTES):
            message = f"parameter `every` must be a number of bytes, at least {MIN_EVERY_BYTES}"
            raise ApiError(400, "bad_request", message)
        end = self._readable_end(base) - base
        every = max(int(stated), end // MAX_STARTS)
        async with self._reading_segment(base) as descriptor:
            found = [0]
            wished = every
            while wished < end:
                start = await self._start(descriptor, base, wished, end)
                if start is not None:
                    found.append(start)
                wished = max(wished, start or 0) + every
        return Starts(as_of_ms=self._server.broker.now_ms(), every=every, starts=[base + each for each in found])

    async def _start(self, descriptor: int, base: int, wished: int, end: int) -> int | None:
        """Return the first position from `wished` at which a record starts that its queue confirms."""
        position = wished
        for _ in range(MAX_TRIES // _TRIES_AT_ONCE):
            tried = await self._in_thread(records_after, descriptor, base, position, end, _TRIES_AT_ONCE)
            for each in tried:
                entry = self._server.broker.store.read_entries(each.topic, each.queue_id, each.queue_offset, 1)
                if entry and QUEUE_ENTRY.unpack(entry)[:2] == (base + each.position, each.size):
                    return each.position
            if len(tried) < _TRIES_AT_ONCE:
                return None
            position = tried[-1].position + 1
        return None

    async def positions(self, request: web.Request) -> web.StreamResponse:
        """/api/v1/store/positions: send the positions of consumers and schedule, and the bounds of queues."""
        self._require_current(with_tables=True)
        return await self._in_slices(request, self._position_pieces())

    async def _in_slices(self, request: web.Request, text: Iterator[str]) -> web.StreamResponse:
        """Send JSON text generated piece by piece, yielding to other tasks in between."""
        if request.method == "HEAD":
            return web.Response(content_type=JSON)
        answer = web.StreamResponse(headers={"Content-Type": JSON})
        async with self._reading(), _Sending(request, answer) as sending:
            if not await self._send_pieces(sending, text):
                sending.abort()
        return answer

    async def _send_pieces(self, sending: "_Sending", text: Iterator[str]) -> bool:
        """Send all pieces; return False if the peer is disconnected or too slow."""
        pieces: list[str] = []
        size = 0
        yield_at = time.monotonic() + SLICE_S
        for piece in text:
            pieces.append(piece)
            size += len(piece)
            if size < SLICE_BYTES and time.monotonic() < yield_at:
                continue
            if not await sending.send("".join(pieces).encode()):
                return False
            pieces, size = [], 0
            await asyncio.sleep(0)
            yield_at = time.monotonic() + SLICE_S
        return await sending.send("".join(pieces).encode())

    def _position_pieces(self) -> Iterator[str]:
        """Yield the JSON text in pieces that take much less than a time slice; the broker may run between them."""
        broker = self._server.broker
        store = broker.store
        head: dict[str, Any] = {
            "formatVersion": FORMAT_VERSION,
            "asOfMs": broker.now_ms(),
            "storeId": self._server.log_id,
            "inUse": True,
            "startOffset": store.min_offset,
            "endOffset": store.confirmed_offset,
            # Everything below is valid for the log up to this offset; under SYNC_FLUSH it is confirmed a moment later.
            "logEndOffset": store.end_offset,
            "delayOffsets": broker.delivery.delay_offsets(),
        }
        yield json.dumps(head)[:-1]
        offsets = broker.offsets.table
        yield from _members("consumerOffsets", list(offsets), lambda key: offsets.get(key))
        deleted = dict(store.deleted_topics)
        yield from _members("deletedTopics", list(deleted), deleted.get)
        yield ',"queues":['
        comma = ""
        for topic, queue_id in store.queues():
            # The topic may have been deleted meanwhile.
            if store.has_queue(topic, queue_id):
                yield comma + json.dumps([topic, queue_id, *store.queue_bounds(topic, queue_id)])
                comma = ","
        yield "]}"

    async def files(self, request: web.Request) -> web.StreamResponse:
        """/api/v1/store/files: send the small files as they would be written now, for a backup."""
        self._require_current(with_tables=True)
        return await self._in_slices(request, self._file_pieces())

    def _file_pieces(self) -> Iterator[str]:
        """Yield the JSON text in pieces; the broker may run between them."""
        broker = self._server.broker
        head = {"formatVersion": FORMAT_VERSION, "asOfMs": broker.now_ms(), "storeId": self._server.log_id}
        yield json.dumps(head)[:-1] + ',"files":{'
        comma = ""
        for name, content in small_files(broker):
            yield f'{comma}{json.dumps(name)}:"'
            for start in range(0, len(content), QUOTED_AT_ONCE):
                yield json.dumps(content[start : start + QUOTED_AT_ONCE])[1:-1]
            yield '"'
            comma = ","
        # Last, so that no file is newer.
        yield f'}},"logEndOffset":{broker.store.end_offset}}}'

    def _find(self, request: web.Request) -> int:
        """Return the segment's first offset; raise ApiError if there is no readable segment."""
        self._require_current()
        name, store = request.match_info["name"], self._server.broker.store
        if is_segment_name(name):
            base, first = int(name), store.min_offset
            if base < first:
                raise _gone(name)
            if base < store.confirmed_offset and (base - first) % store.options.commit_log_file_bytes == 0:
                return base
        raise ApiError(404, "no_such_segment", "the log has no such segment: see /api/v1/store for the names")

    def _require_current(self, *, with_tables: bool = False) -> None:
        """Raise ApiError on a member of a group that may know less as confirmed than an earlier response stated.

        `with_tables`: bring everything that is derived from the log up to its end.
        """
        replica = self._server.replica
        if replica is not None and not replica.driver.member.may_read:
            raise ApiError(
                503,
                "not_in_sync",
                f"member {replica.name} of the group is not in sync with the master: try again,"
                " or read from another member",
            )
        following = self._server.broker.following
        if with_tables and following is not None:
            following.decide()

    def _readable_end(self, base: int) -> int:
        store = self._server.broker.store
        return min(base + store.options.commit_log_file_bytes, store.confirmed_offset)

    def _path(self, base: int) -> str:
        return f"{self._server.broker.store.path}/commitlog/{segment_name(base)}"

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[None]:
        """Acquire a permit for reading; raise ApiError 503 if none becomes available in time."""
        if self._waiting >= MAX_WAITING:
            raise _busy()
        self._waiting += 1
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                await self._reads.acquire()
        except TimeoutError:
            raise _busy() from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._reads.release()

    @asynccontextmanager
    async def _reading_segment(self, base: int) -> AsyncIterator[int]:
        """Open the segment with a permit for reading; raise ApiError if it does not exist."""
        async with self._reading():
            try:
                descriptor = await self._in_thread(open_segment, self._path(base))
            except FileNotFoundError:
                raise _gone(segment_name(base)) from None
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def _in_thread(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


class _Sending:
    """A streamed response with a minimum receive rate; an error in its block disconnects the peer."""

    def __init__(self, request: web.Request, answer: web.StreamResponse) -> None:
        self._request = request
        self._answer = answer
        self._began = asyncio.get_running_loop().time()
        self._sent_bytes = 0

    async def __aenter__(self) -> Self:
        await self._answer.prepare(self._request)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            # Otherwise the error response would be read as the rest of this response.
            self.abort()

    async def send(self, data: bytes) -> bool:
        """Send data; return False if the peer is disconnected or too slow."""
        self._sent_bytes += len(data)
        try:
            async with asyncio.timeout_at(self._began + RECEIVE_GRACE_S + self._sent_bytes / MIN_BYTES_PER_S):
                await self._answer.write(data)
        except (TimeoutError, ConnectionError):
            return False
        return True

    def abort(self) -> None:
        """Reset the connection, so that the peer does not accept an incomplete response."""
        if self._request.transport is not None:
            abort(self._request.transport)


def _members(name: str, keys: list[str], value_of: Callable[[str], Any]) -> Iterator[str]:
    yield f',"{name}":{{'
    comma = ""
    for key in keys:
        value = value_of(key)
        if value is not None:
            yield f"{comma}{json.dumps(key)}:{json.dumps(value)}"
            comma = ","
    yield "}"


def _gone(name: str) -> ApiError:
    return ApiError(404, "segment_gone", f"segment {name} was deleted: see /api/v1/store for the existing ones")


def _busy() -> ApiError:
    return ApiError(503, "busy", f"{MAX_READS} other requests are reading the store: try again")
