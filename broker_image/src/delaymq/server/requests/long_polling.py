"""Long polling: held pulls that wait for a message in their queue or for their deadline.

A held pull costs only memory, which is limited in total and per connection. Events that affect many pulls (a message in
a queue with thousands of pulls, a common deadline, changed rules) are processed in time slices.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from delaymq.broker.quotas.names import HELD_PULLS
from delaymq.broker.requests.results import Held
from delaymq.clock import now_ms
from delaymq.protocol.command import Command, Response
from delaymq.server.requests.client_session import BUCKET_MS, ClientSession, HeldPull
from delaymq.server.requests.sliced_work import SlicedWork
from delaymq.throttled_log import ThrottledLogger

if TYPE_CHECKING:
    from delaymq.broker.access.access import Access

MAX_BYTES: Final = 64 << 20
"""Default memory limit of all pulls (maxHeldPullBytes)."""
PULL_BYTES: Final = 1_280
"""Memory of a pull without its strings."""
RESUME_UNITS: Final = 64
"""Cost of rerunning and answering a pull, in units of about 1 µs, the cost of comparing a tags code."""
DROP_UNITS: Final = 2
SLICE_UNITS: Final = 32 * RESUME_UNITS
"""Time slice, some 2 ms."""
AT_ONCE_UNITS: Final = 32
"""Maximum cost of tests run before the sender of a message is answered; less than the cost of storing it."""
MAX_NEWS: Final = 64
"""Maximum messages recorded per queue while its pulls are processed; beyond it, each pull is rerun."""

K = TypeVar("K")
News = tuple[int, int, bytes | None]
"""Queue offset, tags code, and raw properties of a message."""
Reply = Callable[[ClientSession, Command, Response], None]

_logger = logging.getLogger(__name__)
_throttled = ThrottledLogger(_logger, now_ms)


class _Queue:
    """Held pulls of one queue."""

    __slots__ = ("by_property", "is_walked", "missed_news", "news", "pulls", "units")

    def __init__(self) -> None:
        self.pulls: set[HeldPull] = set()
        self.by_property = 0
        """Number of pulls with a property filter."""
        self.units = 0
        """Cost of testing a message for all pulls."""
        self.is_walked = False
        self.news: list[News] = []
        """Messages that arrived while the pulls were processed."""
        self.missed_news = False
        """Whether more messages arrived than are recorded."""


class HeldPulls:
    """All held pulls, by queue and by deadline. Times are wall clock times in ms."""

    def __init__(
        self,
        reply: Reply,
        *,
        max_bytes: int = MAX_BYTES,
        access: Access | None = None,
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`soon` schedules a call for the next loop iteration; None: asyncio's call_soon."""
        self._reply = reply
        self.max_bytes = max_bytes
        self._access = access
        self._by_queue: dict[tuple[str, int], _Queue] = {}
        self._by_property: dict[tuple[str, int], None] = {}
        self._by_deadline: dict[int, set[HeldPull]] = {}
        self._work = SlicedWork(SLICE_UNITS, soon)
        self._to_recheck: list[HeldPull] = []
        self._recheck_share = 1
        self._recheck_began_ms = 0
        self._count = 0
        self._bytes = 0
        self.closing = False
        """True during shutdown, when pulls are neither held nor answered."""

    def __len__(self) -> int:
        return self._count

    @property
    def bytes_held(self) -> int:
        """Counted memory of all pulls."""
        return self._bytes

    @property
    def queues(self) -> Container[tuple[str, int]]:
        """Live view of topic and id of the queues with held pulls."""
        return self._by_queue

    @property
    def property_queues(self) -> Collection[tuple[str, int]]:
        """The same for pulls with a property filter."""
        return self._by_property.keys()

    def hold(self, session: ClientSession, request: Command, held: Held) -> None:
        """Hold a pull, or answer it immediately if a limit is reached.

        A connection may use as much memory as remains: a single one at most half of the total, two a third each. So
        memory always remains for connections with few pulls, regardless of their order.
        """
        if self.closing:
            return
        taken = PULL_BYTES + sum(map(len, request.fields.values()))
        if taken > 2 * PULL_BYTES:
            # One wide character makes each character of a text take four bytes.
            taken = PULL_BYTES + sum(len(value) << 2 * (not value.isascii()) for value in request.fields.values())
        if session.held_bytes + taken > self.max_bytes - self._bytes:
            text = (
                "%s has %d held pulls, and all held pulls take %d bytes (maxHeldPullBytes): responding to further pulls"
                " immediately"
            )
            peer = session.remote_address
            _throttled.warning(text, peer, len(session.held), self._bytes, peer=peer)
            self._finish(session, request, held)
            return
        if session.usage is not None and (refusal := session.usage.excess(HELD_PULLS)) is not None:
            # PULL_NOT_FOUND would make a client pull again immediately; after code 2, RocketMQ's wait for 3 s.
            self._reply(session, request, Response(refusal.code, refusal.remark))
            return
        pull = HeldPull(session, request, held, taken)
        access = self._access
        if access is None:
            request.fields = {}
        else:
            pull.account = access.signer_of(session, request)
            request.fields = {name: request.fields[name] for name in access.pull_fields if name in request.fields}
        self._add(pull)

    def arrived(
        self, topic: str, queue_id: int, queue_offset: int, tags_code: int, properties: bytes | None = None
    ) -> None:
        """Handle a newly visible message; without its properties, pulls with a property filter must be rerun."""
        queue = self._by_queue.get((topic, queue_id))
        if queue is None:
            return
        if queue.units <= AT_ONCE_UNITS and not queue.is_walked:
            for pull in list(queue.pulls):
                if _is_wanted(pull.held, queue_offset, tags_code, properties):
                    self._resume(pull)
            return
        if len(queue.news) < MAX_NEWS:
            queue.news.append((queue_offset, tags_code, properties))
        else:
            queue.missed_news = True
        if not queue.is_walked:
            queue.is_walked = True
            self._work.begin(self._walk(queue))

    def recheck(self, now_ms: int, interval_ms: int, slice_ms: int) -> None:
        """Rerun each pull once per `interval_ms`, for changes without an arrival, such as of the configuration.

        Call it every `slice_ms`; each call processes a share, because all pulls in one call would block the loop.
        """
        if self._work:
            return  # work in progress comes first
        if not self._to_recheck:
            if abs(now_ms - self._recheck_began_ms) < interval_ms:
                return
            self._recheck_began_ms = now_ms
            self._to_recheck = [pull for queue in self._by_queue.values() for pull in queue.pulls]
            self._recheck_share = -(-len(self._to_recheck) * slice_ms // interval_ms)
        share = self._to_recheck[-self._recheck_share :]
        del self._to_recheck[-self._recheck_share :]
        self._work.begin(self._run_again(share))

    def expire(self, now_ms: int) -> None:
        """Answer the pulls whose deadline has passed."""
        now_bucket = now_ms // BUCKET_MS
        for bucket in [bucket for bucket in self._by_deadline if bucket < now_bucket]:
            self._work.begin(self._end(self._by_deadline.pop(bucket), bucket))

    def review(self) -> None:
        """Check all pulls against changed access rules, and reject those that are no longer permitted."""
        if self._access is not None:
            pulls = [pull for queue in self._by_queue.values() for pull in queue.pulls]
            self._work.begin(self._check(self._access, pulls))

    def session_closed(self, session: ClientSession) -> None:
        """Drop the pulls of a closed session."""
        pulls, session.held = session.held, set()
        if pulls:
            self._work.begin(self._drop(pulls))

    def close(self) -> None:
        """Drop all pulls at shutdown, when the reset of their connections notifies the clients.

        A response would make a client pull again immediately; its write would meet the reset, and a Java client would
        leave its other pulls on that connection waiting for half a minute (docs/decisions/0008).
        """
        self.closing = True
        self._work.clear()
        for queue in list(self._by_queue.values()):
            for pull in list(queue.pulls):
                pull.session.held.discard(pull)
                self._forget(pull)

    # Work in time slices

    def _walk(self, queue: _Queue) -> Iterator[int]:
        while queue.news or queue.missed_news:
            news, queue.news = queue.news, []
            missed, queue.missed_news = queue.missed_news, False
            for pull in list(queue.pulls):
                if not pull.is_waiting:
                    continue
                if missed or any(_is_wanted(pull.held, *each) for each in news):
                    self._resume(pull)
                    yield RESUME_UNITS
                else:
                    yield pull.units * len(news)
        queue.is_walked = False

    def _run_again(self, pulls: Iterable[HeldPull]) -> Iterator[int]:
        for pull in pulls:
            if pull.is_waiting:
                self._resume(pull)
                yield RESUME_UNITS

    def _end(self, pulls: Iterable[HeldPull], bucket: int) -> Iterator[int]:
        for pull in pulls:
            if pull.bucket == bucket and pull.is_waiting:
                self._remove(pull)
                self._finish(pull.session, pull.request, pull.held)
                yield RESUME_UNITS

    def _check(self, access: Access, pulls: Iterable[HeldPull]) -> Iterator[int]:
        for pull in pulls:
            if not pull.is_waiting:
                continue
            refusal = access.still_refusal(pull.session, pull.request, pull.account)
            if refusal is not None:
                self._remove(pull)
                self._reply(pull.session, pull.request, Response(refusal.code, refusal.remark))
            yield RESUME_UNITS // 4

    def _drop(self, pulls: Iterable[HeldPull]) -> Iterator[int]:
        for pull in pulls:
            self._forget(pull)
            yield DROP_UNITS

    # Internals

    def _resume(self, pull: HeldPull) -> None:
        if pull not in pull.session.held:
            return
        result = pull.held.resume(False)
        if isinstance(result, Held):
            before = pull.held
            is_same_place = result.topic == before.topic and result.queue_id == before.queue_id
            if is_same_place and (result.properties is None) is (before.properties is None):
                pull.held = result
                self._move(pull)
                return
            self._remove(pull)
            pull.held = result
            pull.bucket = result.deadline_ms // BUCKET_MS
            pull.units = 1 if result.properties is None else 2 + result.cost
            self._add(pull)
            return
        self._remove(pull)
        self._reply(pull.session, pull.request, result)

    def _move(self, pull: HeldPull) -> None:
        bucket = pull.held.deadline_ms // BUCKET_MS
        if bucket != pull.bucket:
            _discard(self._by_deadline, pull.bucket, pull)
            pull.bucket = bucket
            self._by_deadline.setdefault(bucket, set()).add(pull)

    def _finish(self, session: ClientSession, request: Command, held: Held) -> None:
        result = held.resume(True)
        if isinstance(result, Held):
            _logger.error("cannot complete a held pull for %s", session.remote_address)
            result = Response(1, "the pull could not be completed: pull again")
        self._reply(session, request, result)

    def _add(self, pull: HeldPull) -> None:
        held = pull.held
        key = (held.topic, held.queue_id)
        queue = self._by_queue.get(key)
        if queue is None:
            queue = self._by_queue[key] = _Queue()
        queue.pulls.add(pull)
        queue.units += pull.units
        if held.properties is not None:
            queue.by_property += 1
            self._by_property[key] = None
        self._by_deadline.setdefault(pull.bucket, set()).add(pull)
        session = pull.session
        session.held.add(pull)
        session.held_bytes += pull.bytes
        self._bytes += pull.bytes
        self._count += 1
        if pull.usage is not None:
            pull.usage.counts[HELD_PULLS] += 1

    def _remove(self, pull: HeldPull) -> None:
        held = pull.session.held
        if pull in held:
            held.discard(pull)
            self._forget(pull)

    def _forget(self, pull: HeldPull) -> None:
        """Remove a pull from all tables."""
        held = pull.held
        pull.session.held_bytes -= pull.bytes
        key = (held.topic, held.queue_id)
        queue = self._by_queue[key]
        queue.pulls.discard(pull)
        queue.units -= pull.units
        if held.properties is not None:
            queue.by_property -= 1
            if not queue.by_property:
                del self._by_property[key]
        if not queue.pulls:
            del self._by_queue[key]
        _discard(self._by_deadline, pull.bucket, pull)
        self._bytes -= pull.bytes
        self._count -= 1
        if pull.usage is not None:
            pull.usage.counts[HELD_PULLS] -= 1


def _is_wanted(held: Held, queue_offset: int, tags_code: int, properties: bytes | None) -> bool:
    """Return whether a message matches a pull, as far as known."""
    if queue_offset < held.offset or not held.matches(tags_code):
        return False
    return held.properties is None or properties is None or held.properties(properties)


def _discard(table: dict[K, set[HeldPull]], key: K, pull: HeldPull) -> None:
    pulls = table.get(key)
    if pulls is not None:
        pulls.discard(pull)
        if not pulls:
            del table[key]
