"""What all Topics of a Broker share, so that it is asked for and read once and not by each of hundreds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from delaymq_operator.api import Broker, parse_broker
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.ports import Endpoint, Manifest, TopicConfig

T = TypeVar("T")

MAX_AGE_POLLS: Final = 0.9
"""How old an answer may be, in poll intervals: Topics that look in turn shall find what the first of them got."""

FIRST_BACKOFF_MS: Final = 1_000
MAX_BACKOFF_MS: Final = 60_000


def problem_of(server: str, error: BrokerUnreachable | BrokerRefused) -> str:
    """What is wrong with a server, as a part of a sentence."""
    if isinstance(error, BrokerRefused):
        return f"{server} refuses: {error.message.rstrip('.')}"
    return f"{server} does not respond ({error.problem.rstrip('.')})"


class SharedRead(Generic[T]):
    """What one server answered last. After a failure it is left alone for a while, longer each time.

    `lock` is held while it is asked or changed, so that an answer is never older than a change that was made.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.value: T | None = None
        self._asked_ms = 0
        self._failure: BrokerUnreachable | BrokerRefused | None = None
        self._failures = 0
        self._failed_ms = 0

    async def get(self, ask: Callable[[], Awaitable[T]], clock: Callable[[], int], *, max_age_ms: float) -> T:
        """The answer, asked for again when it is older; BrokerUnreachable or BrokerRefused, also from memory."""
        async with self.lock:
            return await self._get(ask, clock, max_age_ms)

    async def _get(self, ask: Callable[[], Awaitable[T]], clock: Callable[[], int], max_age_ms: float) -> T:
        now_ms = clock()
        if self._failure is not None and 0 <= now_ms - self._failed_ms < self.backoff_ms:
            # Without the frames of former raises, which would pile up in it.
            raise self._failure.with_traceback(None)
        # A clock that was set back makes an answer look as if it came from the future: then it is asked for again.
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
        """Leaves the server alone for a while."""
        self._failure = error
        self._failures += 1
        self._failed_ms = now_ms

    @property
    def backoff_ms(self) -> int:
        """For how long it is left alone after the last failure."""
        return min(FIRST_BACKOFF_MS << min(self._failures - 1, 16), MAX_BACKOFF_MS)


class ParsedBroker:
    """A Broker as it was parsed last, kept under its key: its status may have thousands of levels, and thousands of
    Topics look at it each poll."""

    def __init__(self) -> None:
        self._body: Manifest | None = None
        self._parsed: Broker | None = None

    def of(self, body: Manifest) -> Broker:
        """The Broker of a body from the cache, which is never changed, only replaced. SpecError."""
        if self._parsed is None or self._body is not body:
            self._parsed = parse_broker(body)
            self._body = body
        return self._parsed


class SharedBrokerReads:
    """The shared answers of one Broker's servers; kept under the Broker's key."""

    def __init__(self) -> None:
        self._topics: dict[str, tuple[Endpoint, SharedRead[dict[str, TopicConfig]]]] = {}
        self._orders: dict[str, SharedRead[dict[str, str]]] = {}

    def topics_of(self, group_name: str, endpoint: Endpoint) -> SharedRead[dict[str, TopicConfig]]:
        """The topics of one group's broker; a pod at a new address starts afresh."""
        held = self._topics.get(group_name)
        if held is None or held[0] != endpoint:
            held = self._topics[group_name] = endpoint, SharedRead()
        return held[1]

    def orders_of(self, address: str) -> SharedRead[dict[str, str]]:
        """The order settings of one NameServer."""
        return self._orders.setdefault(address, SharedRead())
