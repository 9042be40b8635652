"""How far a running broker holds producers off, so that it can be restarted or removed without a failed send.

Not here: the timer that ends an unrenewed drain (server/jobs/drain_lease.py). It is not kept over a restart.
"""

from __future__ import annotations

from enum import StrEnum


class DrainMode(StrEnum):
    """What producers meet. Pulls, hand-overs of delayed messages and send-backs of consumers go on in all modes."""

    NONE = "none"
    WITHDRAW = "withdraw"
    """Routes say read-only; a send of a client that does not know yet is taken."""
    REFUSE = "refuse"
    """As withdraw, and sends are answered 14, on which clients try another broker."""


class DrainState:
    """The mode that holds now, and since when."""

    __slots__ = ("lease_ends_ms", "mode", "since_ms", "takes_sends")

    def __init__(self, now_ms: int) -> None:
        self.mode = DrainMode.NONE
        self.since_ms = now_ms
        """When this mode began; a renewal leaves it."""
        self.lease_ends_ms: int | None = None
        """When it ends if nobody renews it; None without a drain."""
        self.takes_sends = True

    @property
    def withdrawn(self) -> bool:
        """Whether routes must not offer the broker to producers."""
        return self.mode is not DrainMode.NONE

    def take(self, mode: DrainMode, lease_ms: int, now_ms: int) -> None:
        """Changes or renews the mode; `lease_ms` means nothing with NONE."""
        if mode is not self.mode:
            self.mode = mode
            self.since_ms = now_ms
        self.takes_sends = mode is not DrainMode.REFUSE
        self.lease_ends_ms = None if mode is DrainMode.NONE else now_ms + lease_ms
