"""Which entries of one queue of the schedule topic are settled: delivered, dropped, cancelled or moved on."""

from __future__ import annotations

from delaymq.schedule.ranges import OffsetRanges


class Settled:
    """All offsets below `low`, and the ranges in `above`.

    RocketMQ's delayOffset.json keeps one number a level, which is exact only for deliveries in queue order; out of it
    (a failed hand-over, a shortened level) the ranges say what else is done.
    """

    __slots__ = ("above", "low")

    def __init__(self, low: int = 0) -> None:
        self.low = low
        """The first offset that is not settled."""
        self.above = OffsetRanges()
        """What is settled above it."""

    def __contains__(self, offset: int) -> bool:
        return offset < self.low or offset in self.above

    def settle(self, offset: int) -> bool:
        """Adds `offset`; False when it was settled before. In queue order this takes constant time."""
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
        """Settles everything below `low`; the number of offsets that were not settled before."""
        if low <= self.low:
            return 0
        added = low - self.low - self.above.count_below(low)
        self.low = low
        self.above.drop_below(low)
        self._absorb()
        return added

    def cut(self, end: int) -> None:
        """Forgets everything from `end` on, where the queue itself ends."""
        self.low = min(self.low, end)
        self.above.drop_from(end)

    def _absorb(self) -> None:
        lowest = self.above.first()
        if lowest is not None and lowest[0] == self.low:
            self.low = lowest[1]
            self.above.drop_below(self.low)

    def state(self) -> dict[str, object]:
        """JSON-able: `{"low": n, "above": [first, first behind, …]}`."""
        return {"low": self.low, "above": self.above.state()}

    @classmethod
    def from_state(cls, state: object) -> Settled:
        """What `state()` described; ValueError when it describes nothing."""
        if not isinstance(state, dict) or type(state.get("low")) is not int or not 0 <= state["low"] < 1 << 63:
            raise ValueError("the settled entries of a queue must be an object with a whole number `low`")
        settled = cls(state["low"])
        settled.above = OffsetRanges.from_state(state.get("above"))
        lowest = settled.above.first()
        if lowest is not None and lowest[0] <= settled.low:
            raise ValueError("`above` contains offsets that `low` already covers")
        return settled
