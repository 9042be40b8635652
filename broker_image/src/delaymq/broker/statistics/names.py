"""RocketMQ's names of statistics, and the series that each of them means."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from delaymq.broker.statistics.series import DAY, HOUR, MINUTE, Figures, Series, Window
from delaymq.broker.statistics.statistics import QueueKey, Statistics
from delaymq.message.names import SCHEDULE_CONSUMER_GROUP, SCHEDULE_TOPIC

Windows = tuple[Figures, Figures, Figures]
"""The last minute, hour and day."""
_Find = Callable[[Statistics, str], Iterable[Series]]


def _topic(statistics: Statistics, key: str) -> list[Series]:
    if key == SCHEDULE_TOPIC:
        return list(statistics.queue_puts.values())
    return _one(statistics.puts.get(key)) + _one(statistics.copies.get(key))


def _group_gets(statistics: Statistics, key: str) -> list[Series]:
    topic, _, group = key.partition("@")
    if (topic, group) == (SCHEDULE_TOPIC, SCHEDULE_CONSUMER_GROUP):
        return list(statistics.queue_gets.values())
    return _one(statistics.gets.get((topic, group)))


def _send_backs(statistics: Statistics, key: str) -> list[Series]:
    topic, _, group = key.partition("@")
    return _one(statistics.send_backs.get((topic, group)))


def _queue_puts(statistics: Statistics, key: str) -> list[Series]:
    topic, _, queue_id = key.partition("@")
    return _one(statistics.queue_puts.get(_number(queue_id)) if topic == SCHEDULE_TOPIC else None)


def _queue_gets(statistics: Statistics, key: str) -> list[Series]:
    topic, _, rest = key.partition("@")
    queue_id, _, group = rest.partition("@")
    of_schedule = (topic, group) == (SCHEDULE_TOPIC, SCHEDULE_CONSUMER_GROUP)
    return _one(statistics.queue_gets.get(_number(queue_id)) if of_schedule else None)


def _latency(statistics: Statistics, key: str) -> list[Series]:
    return _one(statistics.latency.get(queue_key(key)))


def queue_key(key: str) -> QueueKey:
    """Return queue, topic and group of `QUEUE@TOPIC@GROUP`, with queue −1 if it is missing."""
    queue_id, _, rest = key.partition("@")
    topic, _, group = rest.partition("@")
    return _number(queue_id), topic, group


def resources_of(name: str, key: str) -> tuple[str, str]:
    """Return the topic and the group that a statistic is about. Empty: it is about the broker, or is not known."""
    if name.startswith("TOPIC_"):
        return key, ""
    if name in ("GROUP_GET_LATENCY", "GROUP_GET_FALL_SIZE", "GROUP_GET_FALL_TIME"):
        return queue_key(key)[1:]
    if name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS"):
        topic, _, group = key.partition("@")
        return topic, group
    return (key.partition("@")[0], "") if name.startswith("QUEUE_") else ("", "")


def _one(series: Series | None) -> list[Series]:
    return [] if series is None else [series]


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1


_MESSAGES: Final = 0
_BYTES: Final = 1
_SERIES: Final[dict[str, tuple[_Find, int]]] = {
    "TOPIC_PUT_NUMS": (_topic, _MESSAGES),
    "TOPIC_PUT_SIZE": (_topic, _BYTES),
    "GROUP_GET_NUMS": (_group_gets, _MESSAGES),
    "GROUP_GET_SIZE": (_group_gets, _BYTES),
    "SNDBCK_PUT_NUMS": (_send_backs, _MESSAGES),
    "QUEUE_PUT_NUMS": (_queue_puts, _MESSAGES),
    "QUEUE_PUT_SIZE": (_queue_puts, _BYTES),
    "QUEUE_GET_NUMS": (_queue_gets, _MESSAGES),
    "QUEUE_GET_SIZE": (_queue_gets, _BYTES),
    "GROUP_GET_LATENCY": (_latency, _MESSAGES),
}
"""RocketMQ counts queues only for delayed messages. Its statistics of disk reads and commercial use are never
counted.
"""


def windows_of(statistics: Statistics, name: str, key: str, cluster: str, elapsed_ms: int) -> Windows | None:
    """Return the figures of a RocketMQ name and key, or None if there are none."""
    found: Iterable[Series]
    if name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS"):
        series = statistics.broker_puts if name == "BROKER_PUT_NUMS" else statistics.broker_gets
        found, which = [series] if key == cluster and series.messages else [], _MESSAGES
    elif name in _SERIES:
        find, which = _SERIES[name]
        found = find(statistics, key)
    else:
        return None
    if not found:
        return None
    return tuple(_summed(found, window, which, elapsed_ms) for window in (MINUTE, HOUR, DAY))  # type: ignore[return-value]


def _summed(found: Iterable[Series], window: Window, which: int, elapsed_ms: int) -> Figures:
    each = [series.figures(window, elapsed_ms)[which] for series in found]
    if len(each) == 1:
        return each[0]
    total = sum(figures.sum for figures in each)
    times = sum(figures.sum / figures.avgpt for figures in each if figures.avgpt)
    return Figures(total, sum(figures.tps for figures in each), total / times if times else 0.0)
