"""Pulls that found nothing and wait: for a message in their queue, or for their time to run out.

A client that waits costs nothing but memory, which has a limit: of all pulls together, and a share of that for each
connection. What concerns many pulls at once (a message in a queue with thousands of them, a deadline that they share,
changed rules) is done in slices, with others' requests in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from delaymq.broker.results import Held
from delaymq.clock import now_ms
from delaymq.protocol.command import Command, Response
from delaymq.server.requests.client_session import BUCKET_MS, ClientSession, HeldPull
from delaymq.server.requests.sliced_work import SlicedWork
from delaymq.throttled_log import ThrottledLogger

if TYPE_CHECKING:
    from delaymq.broker.access.access import Access

MAX_BYTES: Final = 64 << 20
"""What all pulls may take, until a configuration says another number (maxHeldPullBytes)."""
PULL_BYTES: Final = 1_280
"""What one takes beside its strings."""
RESUME_UNITS: Final = 64
"""Running a pull again and answering it, in units of about 1 µs; a test of a tags code is one."""
DROP_UNITS: Final = 2
SLICE_UNITS: Final = 32 * RESUME_UNITS
"""What is done for pulls in one turn of the loop: some 2 ms."""
AT_ONCE_UNITS: Final = 32
"""Tests that a message may cost before whoever sent it is answered: less than to store it."""
MAX_NEWS: Final = 64
"""Messages of a queue that are told apart while its pulls are gone through; with more each pull runs again."""

K = TypeVar("K")
News = tuple[int, int, bytes | None]
"""Queue offset, tags code and raw properties of a message."""
Reply = Callable[[ClientSession, Command, Response], None]

_logger = logging.getLogger(__name__)
_refused = ThrottledLogger(_logger, now_ms)


class _Queue:
    """The pulls of one queue."""

    __slots__ = ("by_property", "is_walked", "missed_news", "news", "pulls", "units")

    def __init__(self) -> None:
        self.pulls: set[HeldPull] = set()
        self.by_property = 0
        """How many of them wait for certain properties."""
        self.units = 0
        """What a message costs that is tested for all of them."""
        self.is_walked = False
        self.news: list[News] = []
        """What came while they were gone through."""
        self.missed_news = False
        """Whether more came than is kept."""


class HeldPulls:
    """All held pulls, by queue and by deadline. Times are the wall clock's, in ms."""

    def __init__(
        self,
        reply: Reply,
        *,
        max_bytes: int = MAX_BYTES,
        access: Access | None = None,
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`soon` has something called in the next turn of the loop; None: as asyncio does."""
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
        """While the server stops nothing is held any more, and nothing answered."""

    def __len__(self) -> int:
        return self._count

    @property
    def bytes_held(self) -> int:
        """What all of them take, as it is counted."""
        return self._bytes

    @property
    def queues(self) -> Container[tuple[str, int]]:
        """Topic and id of the queues in which pulls wait, as it is at any time."""
        return self._by_queue

    @property
    def property_queues(self) -> Collection[tuple[str, int]]:
        """The same for pulls that wait for messages with certain properties."""
        return self._by_property.keys()

    def hold(self, session: ClientSession, request: Command, held: Held) -> None:
        """Keeps a pull until something happens, or answers it at once if it may not be kept.

        A connection may have as much as is left: one alone takes half of all, two a third each. So there is always
        something left for those who hold little, and whoever comes last is not the one that is refused.
        """
        if self.closing:
            return
        taken = PULL_BYTES + sum(map(len, request.fields.values()))
        if taken > 2 * PULL_BYTES:
            # Of a long text one wide character makes four bytes of each.
            taken = PULL_BYTES + sum(len(value) << 2 * (not value.isascii()) for value in request.fields.values())
        if session.held_bytes + taken > self.max_bytes - self._bytes:
            text = "%s holds %d pulls, and all together %d bytes: more are answered at once (maxHeldPullBytes)"
            _refused.warning(text, session.remote_address, len(session.held), self._bytes, peer=session.remote_address)
            self._finish(session, request, held)
            return
        pull = HeldPull(session, request, held, taken)
        access = self._access
        if access is None:
            request.fields = {}
        else:
            pull.account = access.account_of(session, request)
            request.fields = {name: request.fields[name] for name in access.pull_fields if name in request.fields}
        self._add(pull)

    def arrived(
        self, topic: str, queue_id: int, queue_offset: int, tags_code: int, properties: bytes | None = None
    ) -> None:
        """A message can be seen from now on; without its properties only a pull itself can tell whether they do."""
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
        """Runs pulls again, each once in `interval_ms`: for what no arrival tells, such as a changed configuration.

        To be called every `slice_ms`; each call takes its share, since all at once would hold up everything else.
        """
        if self._work:
            return  # what is under way comes first
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
        """Answers the pulls whose time has run out."""
        now_bucket = now_ms // BUCKET_MS
        for bucket in [bucket for bucket in self._by_deadline if bucket < now_bucket]:
            self._work.begin(self._end(self._by_deadline.pop(bucket), bucket))

    def review(self) -> None:
        """The rules of access control have changed: whoever may not wait any more is told so."""
        if self._access is not None:
            pulls = [pull for queue in self._by_queue.values() for pull in queue.pulls]
            self._work.begin(self._check(self._access, pulls))

    def session_closed(self, session: ClientSession) -> None:
        """Nobody waits for these answers any more."""
        pulls, session.held = session.held, set()
        if pulls:
            self._work.begin(self._drop(pulls))

    def close(self) -> None:
        """Forgets all of them: the server stops, and the reset of their connections tells the clients.

        An answer would make a client pull again at once; its write then meets the reset, and a Java client leaves
        its other pulls on that connection waiting for half a minute (docs/decisions/0008).
        """
        self.closing = True
        self._work.clear()
        for queue in list(self._by_queue.values()):
            for pull in list(queue.pulls):
                pull.session.held.discard(pull)
                self._forget(pull)

    # Work in slices

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

    # Inside

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
            _logger.error("a pull of %s could not be finished", session.remote_address)
            result = Response(1, "the pull could not be finished: pull again")
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

    def _remove(self, pull: HeldPull) -> None:
        held = pull.session.held
        if pull in held:
            held.discard(pull)
            self._forget(pull)

    def _forget(self, pull: HeldPull) -> None:
        """Takes one that does not wait any more out of all tables."""
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


def _is_wanted(held: Held, queue_offset: int, tags_code: int, properties: bytes | None) -> bool:
    """Whether a message would do for a pull, as far as is known."""
    if queue_offset < held.offset or not held.matches(tags_code):
        return False
    return held.properties is None or properties is None or held.properties(properties)


def _discard(table: dict[K, set[HeldPull]], key: K, pull: HeldPull) -> None:
    pulls = table.get(key)
    if pulls is not None:
        pulls.discard(pull)
        if not pulls:
            del table[key]
