"""Settled and foreign entries of one queue of the schedule topic."""

from __future__ import annotations

from dataclasses import dataclass, field

from delaymq.schedule import OffsetRanges, Settled


@dataclass(slots=True)
class QueueState:
    """State of one queue of the schedule topic."""

    settled: Settled = field(default_factory=Settled)
    foreign: OffsetRanges = field(default_factory=OffsetRanges)
    """Foreign entries, whose copies must be identified without a mark."""
    known_from: int | None = None
    """Entries below this offset were settled when the state was saved; None without a saved state."""

    def as_json(self) -> dict[str, object]:
        """Return the state for the snapshot."""
        self.foreign.drop_below(self.settled.low)
        return {**self.settled.state(), "foreign": self.foreign.state()}

    @classmethod
    def from_json(cls, state: object) -> QueueState:
        """Decode a state. Raises ValueError if it is invalid."""
        settled = Settled.from_state(state)
        assert isinstance(state, dict)
        return cls(settled, OffsetRanges.from_state(state.get("foreign")), settled.low)
