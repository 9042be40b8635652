"""Avoidance of brokers that were slow or failed.

Pure: times are passed in as milliseconds of any monotonic clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _Fault:
    latency_ms: float
    until_ms: float


class BrokerFaults:
    """Last observed latency of each broker. A latency of at least `latencies_ms[i]` causes a pause of
    `pauses_ms[i]`.
    """

    def __init__(self, latencies_ms: Sequence[int], pauses_ms: Sequence[int], failure_latency_ms: int) -> None:
        self._latencies_ms = latencies_ms
        self._pauses_ms = (0, *pauses_ms)
        self._failure_latency_ms = failure_latency_ms
        self._faults: dict[str, _Fault] = {}
        self._turn = 0

    def answered(self, broker_name: str, latency_ms: float, now_ms: float) -> None:
        """Record that the broker stored a message after `latency_ms`."""
        self._faults[broker_name] = _Fault(latency_ms, now_ms + self._pause_ms(latency_ms))

    def failed(self, broker_name: str, latency_ms: float, now_ms: float) -> None:
        """Record a failed attempt, which counts as the latency in the options."""
        pause_ms = self._pause_ms(max(latency_ms, self._failure_latency_ms))
        self._faults[broker_name] = _Fault(latency_ms, now_ms + pause_ms)

    def is_usable(self, broker_name: str, now_ms: float) -> bool:
        """Return whether the broker is not paused."""
        fault = self._faults.get(broker_name)
        return fault is None or fault.until_ms <= now_ms

    def least_bad(self, broker_names: Collection[str], now_ms: float) -> str:
        """Return one of the better half of `broker_names` in turn: usable first, then by latency, then by the end of
        the pause.
        """
        ranked = sorted(broker_names, key=lambda name: self._rank(name, now_ms))
        self._turn += 1
        return ranked[self._turn % max(len(ranked) // 2, 1)]

    def _rank(self, broker_name: str, now_ms: float) -> tuple[bool, float, float]:
        fault = self._faults.get(broker_name)
        return (False, 0, 0) if fault is None else (fault.until_ms > now_ms, fault.latency_ms, fault.until_ms)

    def _pause_ms(self, latency_ms: float) -> int:
        return self._pauses_ms[bisect_right(self._latencies_ms, latency_ms)]
