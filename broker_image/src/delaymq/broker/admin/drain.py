"""Drain state: keeps producers away from a running broker, so that it can be restarted or removed without failed sends.

It does not survive a restart. The timer that ends an unrenewed drain is in server/jobs/drain_lease.py.
"""

from __future__ import annotations

from enum import StrEnum


class DrainMode(StrEnum):
    """Drain modes. Pulls, deliveries of delayed messages and consumers' send-backs continue in all of them."""

    NONE = "none"
    WITHDRAW = "withdraw"
    """Routes mark the broker as read-only. Sends of clients with an outdated route are accepted."""
    REFUSE = "refuse"
    """As WITHDRAW, and sends are rejected with code 14, after which clients try another broker."""


class DrainState:
    """The current drain mode and its start."""

    __slots__ = ("lease_ends_ms", "mode", "since_ms", "takes_sends")

    def __init__(self, now_ms: int) -> None:
        self.mode = DrainMode.NONE
        self.since_ms = now_ms
        """Start of this mode. A renewal does not change it."""
        self.lease_ends_ms: int | None = None
        """End of the mode unless it is renewed; None without a drain."""
        self.takes_sends = True

    @property
    def withdrawn(self) -> bool:
        """Whether routes must not offer the broker to producers."""
        return self.mode is not DrainMode.NONE

    def take(self, mode: DrainMode, lease_ms: int, now_ms: int) -> None:
        """Change or renew the mode. `lease_ms` has no meaning with NONE."""
        if mode is not self.mode:
            self.mode = mode
            self.since_ms = now_ms
        self.takes_sends = mode is not DrainMode.REFUSE
        self.lease_ends_ms = None if mode is DrainMode.NONE else now_ms + lease_ms
