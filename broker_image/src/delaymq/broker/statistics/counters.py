"""Counters of the broker: totals, and rates over 10 s, 1 min and 10 min from periodic samples."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from delaymq.broker.statistics import PutTimes, Statistics
from delaymq.message import names

SAMPLE_INTERVAL_MS: Final = 1_000
"""Interval of the server's timer. Rates need samples at least this often."""
_WINDOWS_MS: Final = (10_000, 60_000, 600_000)
_DAY_MS: Final = 86_400_000


class Sample(NamedTuple):
    """Totals at one time."""

    at_ms: int
    put: int
    get_found: int
    get_miss: int
    transferred: int


class Stats:
    """Plain integers that the hot paths increment. Everything else is derived on request."""

    __slots__ = (
        "_samples",
        "boot_ms",
        "by_key",
        "copies",
        "get_bytes",
        "get_found",
        "get_messages_today",
        "get_messages_yesterday",
        "get_miss",
        "get_slowest_s",
        "last_send_ms",
        "put_bytes",
        "put_failed",
        "put_messages",
        "put_times",
        "put_today",
        "put_yesterday",
        "refused",
        "sent_back",
        "stored_elsewhere",
        "transferred",
    )

    def __init__(self, now_ms: int) -> None:
        self.boot_ms = now_ms
        self.put_messages = 0
        self.put_bytes = 0
        self.put_failed = 0
        self.put_times = PutTimes(now_ms)
        self.last_send_ms: int | None = None
        """Store time of the last message that a producer sent."""
        self.get_found = 0
        """Pulls that returned messages."""
        self.get_miss = 0
        self.get_slowest_s = 0.0
        """Longest read for a pull that returned messages, in s."""
        self.transferred = 0
        """Messages delivered to consumers."""
        self.get_bytes = 0
        """Stored bytes of these messages."""
        self.refused: dict[int, int] = {}
        """Rejected sends by response code."""
        self.sent_back = 0
        self.copies = 0
        """Delayed messages that were delivered to their real topic."""
        self.by_key = Statistics(now_ms)
        self.stored_elsewhere: dict[str, int] = {}
        """Messages that are pending in another topic, by the topic that the producer named."""
        self.put_yesterday = self.put_today = 0
        """put_messages at midnight (UTC) of yesterday and today."""
        self.get_messages_yesterday = self.get_messages_today = 0
        self._samples: deque[Sample] = deque([self._sample(now_ms)])

    @property
    def sends(self) -> int:
        """Messages that producers sent, without consumers' send-backs."""
        return self.put_messages - self.sent_back

    @property
    def stored(self) -> dict[str, int]:
        """Stored messages by the topic that the producer named."""
        counts = {topic: series.messages for topic, series in self.by_key.puts.items()}
        for topic, count in self.stored_elsewhere.items():
            counts[topic] = counts.get(topic, 0) + count
        return counts

    def stored_of(self, topic: str) -> int:
        """Return the stored messages of one topic."""
        series = self.by_key.puts.get(topic)
        return self.stored_elsewhere.get(topic, 0) + (0 if series is None else series.messages)

    def forget_topic(self, topic: str, heir: str | None = None) -> None:
        """Remove a deleted topic. Its stored messages are then counted under `heir`, if there is one."""
        if heir is not None:
            self.stored_elsewhere[heir] = self.stored_elsewhere.get(heir, 0) + self.stored_of(topic)
        self.stored_elsewhere.pop(topic, None)
        self.by_key.forget_topic(topic)

    def put(self, topic: str, size: int, stored_topic: str | None = None, stored_queue_id: int = 0) -> None:
        """Count a stored message of a producer or a send-back. `stored_topic` is where it is pending, if elsewhere."""
        self.put_messages += 1
        self.put_bytes += size
        by_key = self.by_key
        if stored_topic is not None and stored_topic is not topic:
            self.stored_elsewhere[topic] = self.stored_elsewhere.get(topic, 0) + 1
            if stored_topic == names.SCHEDULE_TOPIC:
                by_key.add(by_key.queue_puts, stored_queue_id, size)
                return
            topic = stored_topic
        series = by_key.puts.get(topic)
        if series is None or series.tick != by_key.tick:
            series = by_key.series(by_key.puts, topic)
        series.messages += 1
        series.bytes += size
        series.times += 1

    def put_batch(self, topic: str, messages: int, size: int) -> None:
        """Count stored messages of a batch, of `size` bytes in total."""
        self.put_messages += messages
        self.put_bytes += size
        self.by_key.add(self.by_key.puts, topic, size, messages)

    def put_all(self, topic: str, messages: int, size: int) -> None:
        """Count messages that were sent individually, of `size` bytes in total, like `put`."""
        self.put_messages += messages
        self.put_bytes += size
        self.by_key.add(self.by_key.puts, topic, size, messages, messages)

    def put_elsewhere(self, topic: str, messages: int) -> None:
        """Count messages for a topic as pending elsewhere; `put_all` counts them where they are stored."""
        self.stored_elsewhere[topic] = self.stored_elsewhere.get(topic, 0) + messages

    def put_timed_batch(self, topic: str, messages: int, size: int) -> None:
        """Count messages of a batch that are pending in the timer topic, of `size` bytes in total."""
        self.put_batch(names.TIMER_TOPIC, messages, size)
        self.put_elsewhere(topic, messages)

    def send_back(self, topic: str, group: str) -> None:
        """Count a message, already counted as put, as a send-back of `group`, which had consumed it from `topic`."""
        self.sent_back += 1
        self.by_key.add(self.by_key.send_backs, (topic, group))

    def delivered(self, topic: str, queue_id: int, size: int, messages: int) -> None:
        """Count delayed messages that were stored under their real topic; `queue_id` is -1 for timed messages."""
        self.copies += messages
        by_key = self.by_key
        by_key.add(by_key.copies, topic, size, messages, messages)
        if queue_id >= 0:
            by_key.add(by_key.queue_gets, queue_id, size, messages, messages)

    def committed(self, topic: str, queue_id: int, size: int) -> None:
        """Count a half message, already counted as put, that was stored under its real topic or as a delayed message.

        RocketMQ's broker does not count it.
        """
        if topic == names.SCHEDULE_TOPIC:
            self.by_key.add(self.by_key.queue_puts, queue_id, size)
        elif topic == names.TIMER_TOPIC:
            self.by_key.add(self.by_key.puts, topic, size)
        else:
            self.by_key.add(self.by_key.copies, topic, size)

    def committed_all(self, topic: str, messages: int, size: int) -> None:
        """Count half messages that were stored under their real topic, of `size` bytes in total, like `committed`."""
        self.by_key.add(self.by_key.copies, topic, size, messages, messages)

    def found(self, topic: str, group: str, queue_id: int, messages: int, size: int, took_s: float) -> None:
        """Count a pull that found messages of `size` bytes in total, which took `took_s` to read."""
        self.get_found += 1
        self.transferred += messages
        self.get_bytes += size
        if took_s > self.get_slowest_s:
            self.get_slowest_s = took_s
        by_key = self.by_key
        key = (topic, group)
        series = by_key.gets.get(key)
        if series is None or series.tick != by_key.tick:
            series = by_key.series(by_key.gets, key)
        series.messages += messages
        series.bytes += size
        series.times += 1
        queue = (queue_id, topic, group)
        series = by_key.latency.get(queue)
        if series is None or series.tick != by_key.tick:
            series = by_key.series(by_key.latency, queue)
        series.messages += int(took_s * 1000)
        series.times += 1

    def sample(self, now_ms: int) -> None:
        """Record the totals. Called every SAMPLE_INTERVAL_MS."""
        self.advance(now_ms)
        self.put_times.advance(now_ms, self.put_messages)
        last = self._samples[-1].at_ms
        if now_ms // _DAY_MS > last // _DAY_MS:
            self.put_yesterday, self.put_today = self.put_today, self.put_messages
            self.get_messages_yesterday, self.get_messages_today = self.get_messages_today, self.transferred
        if now_ms < last:
            # The clock was set back. Start again, because rates over future times are meaningless.
            self._samples.clear()
        self._samples.append(self._sample(now_ms))
        while len(self._samples) > 2 and now_ms - self._samples[1].at_ms >= _WINDOWS_MS[-1]:
            self._samples.popleft()

    def advance(self, now_ms: int) -> int:
        """Update the counts by key to the current time. Returns the ms since the start by their clock."""
        by_key = self.by_key
        elapsed_ms = by_key.advance(now_ms)
        # As in RocketMQ, delivered copies count again, and send-backs do not.
        by_key.set_totals(by_key.broker_puts, self.sends + self.copies)
        by_key.set_totals(by_key.broker_gets, self.transferred)
        return elapsed_ms

    def rates(self, now_ms: int) -> dict[str, tuple[float, float, float]]:
        """Return the rates per second in each window: `put`, `get_found`, `get_miss`, `get_total`, `transferred`."""
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
