"""State shared by all Topics of a Broker, so that it is requested once and not by each of hundreds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from delaymq.api_types.delay_settings import TopicDelays

from delaymq_operator.api import Broker, parse_broker
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.ports import Endpoint, Manifest, TopicConfig

T = TypeVar("T")

MAX_AGE_POLLS: Final = 0.9
"""Maximum age of a response, in poll intervals, so that Topics reconciled in turn share one response."""

FIRST_BACKOFF_MS: Final = 1_000
MAX_BACKOFF_MS: Final = 60_000


def problem_of(server: str, error: BrokerUnreachable | BrokerRefused) -> str:
    """Return a server's problem as a part of a sentence."""
    if isinstance(error, BrokerRefused):
        return f"{server} rejects the request: {error.message.rstrip('.')}"
    return f"{server} does not respond ({error.problem.rstrip('.')})"


class SharedRead(Generic[T]):
    """The last response of a server. After a failure, further requests are deferred with increasing backoff.

    `lock` is held during requests and changes, so that a response is never older than a completed change.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.value: T | None = None
        self._asked_ms = 0
        self._failure: BrokerUnreachable | BrokerRefused | None = None
        self._failures = 0
        self._failed_ms = 0

    async def get(self, ask: Callable[[], Awaitable[T]], clock: Callable[[], int], *, max_age_ms: float) -> T:
        """Return the response, requesting it again if it is too old. BrokerUnreachable or BrokerRefused, possibly
        cached.
        """
        async with self.lock:
            return await self._get(ask, clock, max_age_ms)

    async def _get(self, ask: Callable[[], Awaitable[T]], clock: Callable[[], int], max_age_ms: float) -> T:
        now_ms = clock()
        if self._failure is not None and 0 <= now_ms - self._failed_ms < self.backoff_ms:
            # Without the traceback of previous raises, which would accumulate.
            raise self._failure.with_traceback(None)
        # If the clock was set back, the value appears to come from the future and is requested again.
        if self._failure is None and self.value is not None and 0 <= now_ms - self._asked_ms < max_age_ms:
            return self.value
        try:
            self.value = await ask()
        except (BrokerUnreachable, BrokerRefused) as error:
            self.note_failure(error, clock())
            raise
        self._asked_ms = now_ms
        self._failure, self._failures = None, 0
        return self.value

    def note_failure(self, error: BrokerUnreachable | BrokerRefused, now_ms: int) -> None:
        """Record a failure and defer further requests."""
        self._failure = error
        self._failures += 1
        self._failed_ms = now_ms

    @property
    def backoff_ms(self) -> int:
        """The backoff after the last failure, in ms."""
        return min(FIRST_BACKOFF_MS << min(self._failures - 1, 16), MAX_BACKOFF_MS)


class ParsedBroker:
    """The last parsed Broker, stored under its key: its status may have thousands of levels, and thousands of Topics
    read it at each poll.
    """

    def __init__(self) -> None:
        self._body: Manifest | None = None
        self._parsed: Broker | None = None

    def of(self, body: Manifest) -> Broker:
        """Return the Broker of a body from the cache, whose objects are replaced but never changed. SpecError."""
        if self._parsed is None or self._body is not body:
            self._parsed = parse_broker(body)
            self._body = body
        return self._parsed


class SharedBrokerReads:
    """Shared responses of a Broker's servers, stored under the Broker's key."""

    def __init__(self) -> None:
        self._topics: dict[str, tuple[Endpoint, SharedRead[dict[str, TopicConfig]]]] = {}
        self._delays: dict[str, tuple[Endpoint, SharedRead[dict[str, TopicDelays]]]] = {}
        self._orders: dict[str, SharedRead[dict[str, str]]] = {}
        self.token: str | None = None
        """Token of the brokers' HTTP interfaces, once it has been read."""

    def topics_of(self, group_name: str, endpoint: Endpoint) -> SharedRead[dict[str, TopicConfig]]:
        """Return the topics of a group's broker; a pod with a new address starts without a cached response."""
        held = self._topics.get(group_name)
        if held is None or held[0] != endpoint:
            held = self._topics[group_name] = endpoint, SharedRead()
        return held[1]

    def delays_of(self, group_name: str, endpoint: Endpoint) -> SharedRead[dict[str, TopicDelays]]:
        """Return delay settings and pending messages of a group's topics, like `topics_of`."""
        held = self._delays.get(group_name)
        if held is None or held[0] != endpoint:
            held = self._delays[group_name] = endpoint, SharedRead()
        return held[1]

    def orders_of(self, address: str) -> SharedRead[dict[str, str]]:
        """Return the order settings of a NameServer."""
        return self._orders.setdefault(address, SharedRead())
