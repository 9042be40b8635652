"""Settled entries of one queue of the schedule topic: delivered, dropped, cancelled or rescheduled."""

from __future__ import annotations

from delaymq.schedule.ranges import OffsetRanges


class Settled:
    """Set of settled offsets: all below `low`, and the ranges in `above`.

    RocketMQ's delayOffset.json contains one number per level, which is exact only if deliveries follow the queue order.
    After an out-of-order delivery (following a failed hand-over or a shortened level), the ranges contain the rest.
    """

    __slots__ = ("above", "low")

    def __init__(self, low: int = 0) -> None:
        self.low = low
        """First offset that is not settled."""
        self.above = OffsetRanges()
        """Settled offsets above it."""

    def __contains__(self, offset: int) -> bool:
        return offset < self.low or offset in self.above

    def settle(self, offset: int) -> bool:
        """Add `offset`; return False if it was already settled. Takes constant time in queue order."""
        low = self.low
        if offset == low:
            self.low = low + 1
            if self.above.count:
                self._absorb()
            return True
        if offset < low:
            return False
        return self.above.add(offset)

    def raise_low(self, low: int) -> int:
        """Settle everything below `low`; return the number of offsets that were not settled before."""
        if low <= self.low:
            return 0
        added = low - self.low - self.above.count_below(low)
        self.low = low
        self.above.drop_below(low)
        self._absorb()
        return added

    def cut(self, end: int) -> None:
        """Remove all offsets from `end` on, where the queue ends."""
        self.low = min(self.low, end)
        self.above.drop_from(end)

    def _absorb(self) -> None:
        lowest = self.above.first()
        if lowest is not None and lowest[0] == self.low:
            self.low = lowest[1]
            self.above.drop_below(self.low)

    def state(self) -> dict[str, object]:
        """Return the state for JSON: `{"low": n, "above": [first, end, …]}`, with exclusive ends."""
        return {"low": self.low, "above": self.above.state()}

    @classmethod
    def from_state(cls, state: object) -> Settled:
        """Return the set that `state()` described. Raises ValueError if it is invalid."""
        if not isinstance(state, dict) or type(state.get("low")) is not int or not 0 <= state["low"] < 1 << 63:
            raise ValueError("the settled entries of a queue must be an object with a whole number `low`")
        settled = cls(state["low"])
        settled.above = OffsetRanges.from_state(state.get("above"))
        lowest = settled.above.first()
        if lowest is not None and lowest[0] <= settled.low:
            raise ValueError("`above` contains offsets that `low` already covers")
        return settled
