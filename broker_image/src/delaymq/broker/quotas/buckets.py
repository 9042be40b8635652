"""Token buckets, refilled when they are used: they need no timers."""

from __future__ import annotations

from typing import Final

BURST_S: Final = 1.0
"""Unused quota is kept for this time."""


class Bucket:
    """Balance of one rate. It may become negative: a debt, for whose time the account is delayed.

    Times are monotonic seconds, and amounts have the unit of the rate.
    """

    __slots__ = ("_at", "_balance", "_most", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        """Amount per second."""
        self._balance = self._most = rate * BURST_S
        self._at = now

    def set_rate(self, rate: float, now: float) -> None:
        """Change the rate from now on. A debt remains."""
        self.debt_s(now)
        self.rate = rate
        self._most = rate * BURST_S
        self._balance = min(self._balance, self._most)

    def debt_s(self, now: float) -> float:
        """Return the seconds until the debt is paid; 0.0 without a debt. `now` never decreases."""
        rate = self.rate
        balance = self._balance + (now - self._at) * rate
        self._at = now
        if balance > self._most:  # faster than min()
            balance = self._most
        self._balance = balance
        return -balance / rate if balance < 0.0 else 0.0

    def has(self, amount: float) -> bool:
        """Return whether `charge` would leave no debt, as of the last `debt_s`."""
        return self._balance >= amount

    def charge(self, amount: float) -> float:
        """Take an amount, even if it is more than the balance; return the debt in seconds as of the last `debt_s`."""
        self._balance = balance = self._balance - amount
        return -balance / self.rate if balance < 0.0 else 0.0
