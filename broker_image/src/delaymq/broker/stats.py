"""What the broker counts: totals, and rates over 10 s, 1 min and 10 min from samples that a timer takes."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

# The server's timer; rates need samples this far apart at most.
SAMPLE_INTERVAL_MS: Final = 1_000
_WINDOWS_MS: Final = (10_000, 60_000, 600_000)
_DAY_MS: Final = 86_400_000


class Sample(NamedTuple):
    """The totals at one time."""

    at_ms: int
    put: int
    get_found: int
    get_miss: int
    transferred: int


class Stats:
    """Plain integers, raised on the hot paths; everything else is derived when somebody asks."""

    __slots__ = (
        "_samples",
        "boot_ms",
        "get_bytes",
        "get_found",
        "get_messages_today",
        "get_messages_yesterday",
        "get_miss",
        "last_send_ms",
        "put_bytes",
        "put_failed",
        "put_messages",
        "put_today",
        "put_yesterday",
        "refused",
        "sent_back",
        "stored",
        "transferred",
    )

    def __init__(self, now_ms: int) -> None:
        self.boot_ms = now_ms
        self.put_messages = 0
        self.put_bytes = 0
        self.put_failed = 0
        self.last_send_ms: int | None = None
        """Store time of the last message that a producer sent."""
        self.get_found = 0
        """Pulls that found something."""
        self.get_miss = 0
        self.transferred = 0
        """Messages handed to consumers."""
        self.get_bytes = 0
        """Bytes of those, as they are stored."""
        self.refused: dict[int, int] = {}
        """Sends that were refused, by response code."""
        self.sent_back = 0
        self.stored: dict[str, int] = {}
        """Messages stored by the topic that the producer named."""
        self.put_yesterday = self.put_today = 0
        """put_messages at midnight (UTC) of yesterday and today."""
        self.get_messages_yesterday = self.get_messages_today = 0
        self._samples: deque[Sample] = deque([self._sample(now_ms)])

    @property
    def sends(self) -> int:
        """Messages that producers sent; what consumers sent back is not counted."""
        return self.put_messages - self.sent_back

    def put(self, topic: str, size: int) -> None:
        """A message of a producer, or one that a consumer sent back, was stored."""
        self.put_messages += 1
        self.put_bytes += size
        stored = self.stored
        stored[topic] = stored.get(topic, 0) + 1

    def sample(self, now_ms: int) -> None:
        """Notes the totals; called every SAMPLE_INTERVAL_MS."""
        last = self._samples[-1].at_ms
        if now_ms // _DAY_MS > last // _DAY_MS:
            self.put_yesterday, self.put_today = self.put_today, self.put_messages
            self.get_messages_yesterday, self.get_messages_today = self.get_messages_today, self.transferred
        self._samples.append(self._sample(now_ms))
        while len(self._samples) > 2 and now_ms - self._samples[1].at_ms >= _WINDOWS_MS[-1]:
            self._samples.popleft()

    def rates(self, now_ms: int) -> dict[str, tuple[float, float, float]]:
        """Per second over each window: `put`, `get_found`, `get_miss`, `get_total`, `transferred`."""
        now = self._sample(now_ms)
        windows = [(now, self._oldest_within(now_ms, window_ms)) for window_ms in _WINDOWS_MS]

        def rate(value: int) -> tuple[float, float, float]:
            ten, minute, ten_minutes = (
                (end[value] - start[value]) * 1000 / max(end.at_ms - start.at_ms, 1) for end, start in windows
            )
            return ten, minute, ten_minutes

        put, found, miss, transferred = (rate(index) for index in range(1, 5))
        total = (found[0] + miss[0], found[1] + miss[1], found[2] + miss[2])
        return {"put": put, "get_found": found, "get_miss": miss, "get_total": total, "transferred": transferred}

    def _oldest_within(self, now_ms: int, window_ms: int) -> Sample:
        # The newest sample that is at least a window old; the oldest one if none is.
        for sample in reversed(self._samples):
            if now_ms - sample.at_ms >= window_ms:
                return sample
        return self._samples[0]

    def _sample(self, now_ms: int) -> Sample:
        return Sample(now_ms, self.put_messages, self.get_found, self.get_miss, self.transferred)
