"""Which address a broker's name and id belong to while nobody has to sign: that of its last registration, for 45 s.

Nobody proves anything here. It keeps a second broker of the same name, and a passer-by, from taking clients away from a
broker that lives (docs/decisions/0040-bind-broker-names-to-accounts.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from delaymq.namesrv.links import Links
from delaymq.namesrv.shares import SIGNED, Shares
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import RequestError

HOLD_MS: Final = 45_000
"""One and a half of the 30 s between two registrations."""
MAX_HOLD_MS: Final = 90_000
"""The same for the longest `registerNameServerPeriod`."""
MAX_CLAIMS: Final = 20_000
"""Twice the brokers that may be registered: a claim outlives its broker for some seconds."""
_PRUNE_MS: Final = 1_000

Place = tuple[str, int]
"""Broker name and id."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What a registration says of its broker."""

    place: Place
    address: str
    """What clients are told."""
    session_id: int
    """The connection that says so now."""
    host: bytes
    """The IP address that it is from."""
    signed: bool
    """Whether an account vouched for it."""
    epoch: int = 0
    """Rises when a replica is promoted; 0 where nobody vouched for it."""
    seen_ms: int = 0
    """By a clock that nobody sets."""
    hold_ms: int = HOLD_MS
    """How long it counts from then on."""
    other_ms: int | None = None
    """When another host said it last."""
    payer: bytes = SIGNED
    """Who brought it."""


class OwnedError(RequestError):
    """The name, or the address, is another's for now."""


class Ownership:
    """The claims of the last 45 s."""

    def __init__(self, links: Links) -> None:
        """`links`: which connections say now what was claimed."""
        self.shares = Shares(MAX_CLAIMS, "brokers of the last minute")
        self._links = links
        self._claims: dict[Place, Claim] = {}
        self._at: dict[str, Place] = {}
        """Address → whose it is said to be."""
        self._next_prune_ms = 0

    def check(self, claim: Claim) -> None:
        """Nothing, or OwnedError: a registration that another one forbids at `claim.seen_ms`."""
        known = self._young(self._claims.get(claim.place), claim.seen_ms)
        self._check_name(claim, known)
        self._check_address(claim)
        if known is None and self.shares.problem(claim.payer) is not None:
            self._prune(claim.seen_ms)

    def room_problem(self, claim: Claim) -> str | None:
        """Why there is no room for what `check` let pass; None: `took` may take it."""
        known = self._young(self._claims.get(claim.place), claim.seen_ms)
        return None if known is not None else self.shares.problem(claim.payer)

    def took(self, claim: Claim) -> None:
        """A registration was accepted."""
        before = self._claims.get(claim.place)
        if before is not None and before.address == claim.address:
            claim = _continued(before, claim)
        elif self._young(before, claim.seen_ms) is not None and before is not None:
            claim = replace(claim, payer=before.payer)
        self._drop(claim.place)
        if claim.address in self._at:
            self._drop(self._at[claim.address])  # what the broker there was before
        self._claims[claim.place] = claim
        self._at[claim.address] = claim.place
        self.shares.add(claim.payer)

    def saw(self, place: Place, address: str, session_id: int, now_ms: int) -> None:
        """A sign of life without a registration, over a connection of one."""
        known = self._claims.get(place)
        if known is not None and known.address == address and session_id in self._links.of(address):
            self._claims[place] = _continued(known, replace(known, seen_ms=now_ms))

    def check_leave(self, leaving: Claim) -> None:
        """Nothing, or OwnedError: a broker that others registered too is not unregistered without a signature."""
        for known in self._touched(leaving):
            if not leaving.signed and not self._is_alone(known, leaving):
                raise OwnedError(
                    ResponseCode.SYSTEM_ERROR,
                    f"broker {_named(known.place)} is registered over another connection, or was from another host"
                    f" lately: its registration ends by itself, and its name is free in {HOLD_MS // 1000} s",
                )

    def left(self, leaving: Claim) -> None:
        """A broker unregistered: its name is free."""
        for known in self._touched(leaving):
            if known.place[0] == leaving.place[0]:
                self._drop(known.place)

    def _check_name(self, claim: Claim, known: Claim | None) -> None:
        if known is None:
            return
        if claim.epoch < known.epoch:
            raise OwnedError(
                ResponseCode.SYSTEM_ERROR,
                f"broker {_named(claim.place)} is registered with epoch {known.epoch}: a replica was promoted, and"
                f" epoch {claim.epoch} is an older master's",
            )
        if known.address != claim.address and not claim.signed:
            raise OwnedError(
                ResponseCode.SYSTEM_ERROR,
                f"broker {_named(claim.place)} is registered at {known.address}: give this one another brokerName, or"
                f" stop that one; its name is free {HOLD_MS // 1000} s after its last registration",
            )

    def _check_address(self, claim: Claim) -> None:
        # Otherwise somebody takes the address away from the name first, and then the name.
        known = self._young_at(claim.address, claim.seen_ms)
        if known is None or known.place == claim.place or self._is_alone(known, claim):
            return
        if not claim.signed or (known.signed and known.place[0] != claim.place[0]):
            raise OwnedError(
                ResponseCode.SYSTEM_ERROR,
                f"{claim.address} is the address of broker {_named(known.place)}: correct brokerIP1 or listenPort,"
                f" or stop that one; its address is free {HOLD_MS // 1000} s after its last registration",
            )

    def _is_alone(self, known: Claim, by: Claim) -> bool:
        """Whether the connection of `by`, and for as long as `known` counts its host, alone said what is known.

        Who repeats a registration, perhaps while the broker connects again, does not get to end it.
        """
        others_said = known.other_ms is not None and by.seen_ms - known.other_ms < known.hold_ms
        return self._links.of(known.address) == {by.session_id} and known.host == by.host and not others_said

    def _touched(self, leaving: Claim) -> list[Claim]:
        """The young claims that an unregistration would end."""
        by_name = self._young(self._claims.get(leaving.place), leaving.seen_ms)
        by_address = self._young_at(leaving.address, leaving.seen_ms)
        return list({each.place: each for each in (by_name, by_address) if each is not None}.values())

    def _young_at(self, address: str, now_ms: int) -> Claim | None:
        place = self._at.get(address)
        return None if place is None else self._young(self._claims[place], now_ms)

    @staticmethod
    def _young(claim: Claim | None, now_ms: int) -> Claim | None:
        return claim if claim is not None and now_ms - claim.seen_ms < claim.hold_ms else None

    def _prune(self, now_ms: int) -> None:
        if self._next_prune_ms - _PRUNE_MS <= now_ms < self._next_prune_ms:
            return
        self._next_prune_ms = now_ms + _PRUNE_MS
        for claim in list(self._claims.values()):
            if self._young(claim, now_ms) is None:
                self._drop(claim.place)

    def _drop(self, place: Place) -> None:
        claim = self._claims.pop(place, None)
        if claim is None:
            return
        del self._at[claim.address]
        self.shares.drop(claim.payer)


def _continued(before: Claim, claim: Claim) -> Claim:
    """A claim that repeats `before`, as anybody can: what was held stays held for as long."""
    interval_ms = claim.seen_ms - before.seen_ms
    hold_ms = HOLD_MS
    if interval_ms <= MAX_HOLD_MS:
        hold_ms = min(max(interval_ms * 3 // 2, before.hold_ms), MAX_HOLD_MS)
    other_ms = before.other_ms if before.host == claim.host else before.seen_ms
    if interval_ms >= before.hold_ms:
        return replace(claim, hold_ms=hold_ms, other_ms=other_ms)
    signed = before.signed or claim.signed
    return replace(claim, hold_ms=hold_ms, other_ms=other_ms, signed=signed, payer=before.payer)


def _named(place: Place) -> str:
    return f"{place[0]} (id {place[1]})"
