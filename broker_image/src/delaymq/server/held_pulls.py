"""Pulls that found nothing and wait: for a message in their queue, or for their time to run out."""

import logging
from collections.abc import Callable, Collection, Container
from typing import Final, TypeVar

from delaymq.broker.results import Held
from delaymq.protocol.command import Command, Response
from delaymq.server.sessions import ClientSession

MAX_PER_SESSION: Final = 20_000
"""A client holds one pull for each of its queues; more would only fill the memory, and are answered at once."""
BUCKET_MS: Final = 500
"""Deadlines are kept in buckets this wide: a pull waits at most this much longer than it asked for."""

K = TypeVar("K")
Reply = Callable[[ClientSession, Command, Response], None]

_logger = logging.getLogger(__name__)


class HeldPull:
    """One pull that waits; compared by identity."""

    __slots__ = ("bucket", "held", "request", "session")

    def __init__(self, session: ClientSession, request: Command, held: Held) -> None:
        self.session = session
        self.request = request
        self.held = held
        self.bucket = held.deadline_ms // BUCKET_MS


class HeldPulls:
    """All held pulls, by queue and by deadline. Times are the wall clock's, in ms."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._by_queue: dict[tuple[str, int], set[HeldPull]] = {}
        self._by_property: dict[tuple[str, int], int] = {}
        """How many of a queue's pulls wait for certain properties."""
        self._by_deadline: dict[int, set[HeldPull]] = {}
        self._to_recheck: list[HeldPull] = []
        self._recheck_share = 1
        self._recheck_began_ms = 0
        self._count = 0
        self.closing = False
        """While the server stops nothing is held any more, and nothing answered."""

    def __len__(self) -> int:
        return self._count

    @property
    def queues(self) -> Container[tuple[str, int]]:
        """Topic and id of the queues in which pulls wait, as it is at any time."""
        return self._by_queue

    @property
    def property_queues(self) -> Collection[tuple[str, int]]:
        """The same for pulls that wait for messages with certain properties."""
        return self._by_property.keys()

    def hold(self, session: ClientSession, request: Command, held: Held) -> None:
        """Keeps a pull until something happens, or answers it at once if it may not be kept."""
        if self.closing:
            return
        if len(session.held) >= MAX_PER_SESSION:
            self._finish(session, request, held)
            return
        self._add(HeldPull(session, request, held))

    def arrived(
        self, topic: str, queue_id: int, queue_offset: int, tags_code: int, properties: bytes | None = None
    ) -> None:
        """A message can be seen from now on; without its properties only a pull itself can tell whether they do."""
        waiting = self._by_queue.get((topic, queue_id))
        if not waiting:
            return
        for pull in list(waiting):
            held = pull.held
            if queue_offset >= held.offset and held.matches(tags_code):
                wanted = held.properties
                if wanted is None or properties is None or wanted(properties):
                    self._resume(pull)

    def recheck(self, now_ms: int, interval_ms: int, slice_ms: int) -> None:
        """Runs pulls again, each once in `interval_ms`: for what no arrival tells, such as a changed configuration.

        To be called every `slice_ms`; each call takes its share, since all at once would hold up everything else.
        """
        if not self._to_recheck:
            if abs(now_ms - self._recheck_began_ms) < interval_ms:
                return
            self._recheck_began_ms = now_ms
            self._to_recheck = [pull for waiting in self._by_queue.values() for pull in waiting]
            self._recheck_share = -(-len(self._to_recheck) * slice_ms // interval_ms)
        for pull in self._to_recheck[-self._recheck_share :]:
            if pull in pull.session.held:
                self._resume(pull)
        del self._to_recheck[-self._recheck_share :]

    def expire(self, now_ms: int) -> None:
        """Answers the pulls whose time has run out."""
        now_bucket = now_ms // BUCKET_MS
        for bucket in [bucket for bucket in self._by_deadline if bucket < now_bucket]:
            for pull in list(self._by_deadline.get(bucket, ())):
                self._remove(pull)
                self._finish(pull.session, pull.request, pull.held)

    def session_closed(self, session: ClientSession) -> None:
        """Nobody waits for these answers any more."""
        for pull in list(session.held):
            self._remove(pull)

    def close(self) -> None:
        """Forgets all of them: the server stops, and the reset of their connections tells the clients.

        An answer would make a client pull again at once; its write then meets the reset, and a Java client leaves
        its other pulls on that connection waiting for half a minute (docs/decisions/0008).
        """
        self.closing = True
        for waiting in list(self._by_queue.values()):
            for pull in list(waiting):
                self._remove(pull)

    def _resume(self, pull: HeldPull) -> None:
        result = pull.held.resume(False)
        if isinstance(result, Held):
            before = pull.held
            is_same_place = result.topic == before.topic and result.queue_id == before.queue_id
            if is_same_place and (result.properties is None) is (before.properties is None):
                pull.held = result
                self._move(pull)
                return
            self._remove(pull)
            self.hold(pull.session, pull.request, result)
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
        queue = (held.topic, held.queue_id)
        self._by_queue.setdefault(queue, set()).add(pull)
        if held.properties is not None:
            self._by_property[queue] = self._by_property.get(queue, 0) + 1
        self._by_deadline.setdefault(pull.bucket, set()).add(pull)
        pull.session.held.add(pull)
        self._count += 1

    def _remove(self, pull: HeldPull) -> None:
        if pull not in pull.session.held:
            return
        pull.session.held.discard(pull)
        queue = (pull.held.topic, pull.held.queue_id)
        _discard(self._by_queue, queue, pull)
        if pull.held.properties is not None:
            self._by_property[queue] -= 1
            if not self._by_property[queue]:
                del self._by_property[queue]
        _discard(self._by_deadline, pull.bucket, pull)
        self._count -= 1


def _discard(table: dict[K, set[HeldPull]], key: K, pull: HeldPull) -> None:
    pulls = table.get(key)
    if pulls is not None:
        pulls.discard(pull)
        if not pulls:
            del table[key]
