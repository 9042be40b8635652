"""Limits of sign-ins: failed ones by network and by account, successful ones by account.

There is a fixed number of slots, selected by a keyed hash, so that neither many addresses nor many names take memory,
and nobody can choose names that share a slot.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final, NamedTuple

SLOTS: Final = 4_096
"""Slots of each limit; networks or accounts in the same slot share its limit."""
MAX_KNOWN: Final = 4_096
"""Pairs of network and account that are remembered."""


class Rate(NamedTuple):
    """A number of attempts, and the seconds after which one more is possible."""

    burst: int
    interval_s: float


OF_NETWORK: Final = Rate(20, 6)
"""Failed sign-ins from an IPv4 address or an IPv6 /64 network."""
OF_ACCOUNT: Final = Rate(50, 12)
"""Failed sign-ins to an account from networks that have never signed in to it."""
OF_KNOWN: Final = Rate(20, 6)
"""Failed sign-ins to an account from a network that has signed in to it."""
SUCCESSFUL: Final = Rate(120, 0.5)
"""Successful sign-ins of an account."""


class _Limit:
    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._full_at_s: dict[int, float] = {}
        """Time at which a slot has its whole burst again."""

    def wait_s(self, slot: int, now_s: float) -> float:
        """Return the time until an attempt is possible; 0 if it is."""
        debt_s = self._full_at_s.get(slot, 0.0) - now_s
        return max(debt_s - (self._rate.burst - 1) * self._rate.interval_s, 0.0)

    def take(self, slot: int, now_s: float) -> None:
        """Count an attempt."""
        self._full_at_s[slot] = max(self._full_at_s.get(slot, 0.0), now_s) + self._rate.interval_s


class Attempts:
    """Limits of one server. The caller provides the time, in seconds."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._networks = _Limit(OF_NETWORK)
        self._accounts = _Limit(OF_ACCOUNT)
        self._known_pairs = _Limit(OF_KNOWN)
        self._successes = _Limit(SUCCESSFUL)
        self._known: dict[bytes, None] = {}
        """Hashes of networks and accounts that have signed in, the least recent one first."""

    def wait_s(self, network: bytes, access_key: str, now_s: float) -> float:
        """Return the time until a sign-in is possible; 0 if it is."""
        limit, slot = self._of_account(network, access_key)
        return max(
            self._networks.wait_s(self._slot(network), now_s) if limit is self._accounts else 0.0,
            limit.wait_s(slot, now_s),
            self._successes.wait_s(self._slot(_bytes(access_key)), now_s),
        )

    def failed(self, network: bytes, access_key: str, now_s: float) -> None:
        """Count a failed sign-in."""
        limit, slot = self._of_account(network, access_key)
        limit.take(slot, now_s)
        self._networks.take(self._slot(network), now_s)

    def succeeded(self, network: bytes, access_key: str, now_s: float) -> None:
        """Count a successful sign-in."""
        pair = self._pair(network, access_key)
        self._known.pop(pair, None)
        self._known[pair] = None
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._successes.take(self._slot(_bytes(access_key)), now_s)

    def _of_account(self, network: bytes, access_key: str) -> tuple[_Limit, int]:
        pair = self._pair(network, access_key)
        if pair in self._known:
            return self._known_pairs, self._slot(pair)
        return self._accounts, self._slot(_bytes(access_key))

    def _pair(self, network: bytes, access_key: str) -> bytes:
        name = _bytes(access_key)
        return self._hash(len(network).to_bytes(1) + network + name)

    def _slot(self, name: bytes) -> int:
        return int.from_bytes(self._hash(name)) % SLOTS

    def _hash(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._key, digest_size=16).digest()


def _bytes(access_key: str) -> bytes:
    return access_key.encode(errors="surrogatepass")
