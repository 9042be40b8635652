"""Ownership of broker names and ids without signatures: by the address of the last registration, for 45 s.

It proves nothing, but prevents a second broker of the same name, or a stranger, from taking over the clients of a live
broker (docs/decisions/0040-bind-broker-names-to-accounts.md). Members of a replicated group know common tokens, so a
promoted replica replaces the former master immediately.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from delaymq.namesrv.links import Links
from delaymq.namesrv.shares import SIGNED, Shares
from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import RequestError

HOLD_MS: Final = 45_000
"""One and a half times the 30 s between two registrations."""
MAX_HOLD_MS: Final = 90_000
"""The same for the longest `registerNameServerPeriod`."""
MAX_CLAIMS: Final = 20_000
"""Twice the maximum number of brokers, because a claim outlives its broker for some seconds."""
_PRUNE_MS: Final = 1_000

Place = tuple[str, int]
"""Broker name and id."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """Claim of a registration."""

    place: Place
    address: str
    """Address advertised to clients."""
    session_id: int
    """Connection of the latest registration."""
    host: bytes
    """IP address of the connection."""
    signed: bool
    """Whether it was signed by an account."""
    epoch: int = 0
    """Increases when a replica is promoted; 0 for registrations without a signature and tokens."""
    tokens: frozenset[str] = frozenset()
    """What only members of the broker's replicated group know."""
    seen_ms: int = 0
    """Time by a monotonic clock."""
    hold_ms: int = HOLD_MS
    """Validity from `seen_ms`."""
    other_ms: int | None = None
    """Time of the last registration from another host."""
    payer: bytes = SIGNED
    """Payer of the claim (`shares`)."""


class OwnedError(RequestError):
    """The name or the address is currently owned by another broker."""


class Ownership:
    """The claims of the last 45 s."""

    def __init__(self, links: Links) -> None:
        """`links`: connections that registered each address."""
        self.shares = Shares(MAX_CLAIMS, "brokers of the last minute")
        self._links = links
        self._claims: dict[Place, Claim] = {}
        self._at: dict[str, Place] = {}
        """Address → its claimed owner."""
        self._next_prune_ms = 0

    def check(self, claim: Claim) -> None:
        """Raise OwnedError if another claim forbids this registration at `claim.seen_ms`."""
        known = self._young(self._claims.get(claim.place), claim.seen_ms)
        self._check_name(claim, known)
        self._check_address(claim)
        if known is None and self.shares.problem(claim.payer) is not None:
            self._prune(claim.seen_ms)

    def room_problem(self, claim: Claim) -> str | None:
        """Return why a claim that passed `check` exceeds a limit; None: `took` may be called."""
        known = self._young(self._claims.get(claim.place), claim.seen_ms)
        return None if known is not None else self.shares.problem(claim.payer)

    def took(self, claim: Claim) -> None:
        """Record an accepted registration."""
        before = self._claims.get(claim.place)
        if self._young(before, claim.seen_ms) is not None and before is not None:
            claim = self._of_group(before, claim)
        if before is not None and before.address == claim.address:
            claim = _continued(before, claim)
        elif self._young(before, claim.seen_ms) is not None and before is not None:
            claim = replace(claim, payer=before.payer)
        self._drop(claim.place)
        if claim.address in self._at:
            self._drop(self._at[claim.address])  # the previous claim of this address
        self._claims[claim.place] = claim
        self._at[claim.address] = claim.place
        self.shares.add(claim.payer)

    def _of_group(self, before: Claim, claim: Claim) -> Claim:
        """Return a claim with the group of the one before, unless a member or the only host and connection changes it.

        A stranger may repeat a registration, and must not make itself a member by that.
        """
        if claim.signed or not claim.tokens.isdisjoint(before.tokens) or self._is_alone(before, claim):
            return claim
        return replace(claim, tokens=before.tokens, epoch=before.epoch)

    def is_signed(self, place: Place) -> bool:
        """Return whether the last registration of a broker was signed."""
        known = self._claims.get(place)
        return known is not None and known.signed

    def saw(self, place: Place, address: str, session_id: int, now_ms: int) -> None:
        """Record a sign of life without a registration, over a registering connection."""
        known = self._claims.get(place)
        if known is not None and known.address == address and session_id in self._links.of(address):
            self._claims[place] = _continued(known, replace(known, seen_ms=now_ms))

    def check_leave(self, leaving: Claim) -> None:
        """Raise OwnedError for an unsigned unregistration of a broker that other connections registered, too."""
        for known in self._touched(leaving):
            if not leaving.signed and not self._is_alone(known, leaving):
                raise OwnedError(
                    ResponseCode.SYSTEM_ERROR,
                    f"broker {_named(known.place)} is registered over another connection, or was recently registered"
                    " from another host, so it is not unregistered: its registration expires automatically, and its"
                    f" name is free {HOLD_MS // 1000} s after its last registration",
                )

    def left(self, leaving: Claim) -> None:
        """Release the name of an unregistered broker."""
        for known in self._touched(leaving):
            if known.place[0] == leaving.place[0]:
                self._drop(known.place)

    def _check_name(self, claim: Claim, known: Claim | None) -> None:
        if known is None:
            return
        is_member = not claim.tokens.isdisjoint(known.tokens)
        epoch = claim.epoch if claim.signed or is_member else 0
        if epoch < known.epoch:
            raise OwnedError(
                ResponseCode.SYSTEM_ERROR,
                f"broker {_named(claim.place)} is registered with epoch {known.epoch}: a replica was promoted and has"
                f" replaced this broker (epoch {epoch}); stop this broker",
            )
        is_promoted = is_member and epoch > known.epoch
        if known.address != claim.address and not claim.signed and not is_promoted:
            raise OwnedError(
                ResponseCode.SYSTEM_ERROR,
                f"broker {_named(claim.place)} is registered at {known.address}: change this broker's brokerName, or"
                f" stop the other one; the name is free {HOLD_MS // 1000} s after its last registration",
            )

    def _check_address(self, claim: Claim) -> None:
        # Otherwise an attacker could first take the address away from the name, and then the name.
        known = self._young_at(claim.address, claim.seen_ms)
        if known is None or known.place == claim.place or self._is_alone(known, claim):
            return
        is_member = known.place[0] == claim.place[0] and not claim.tokens.isdisjoint(known.tokens)
        if is_member and claim.epoch > known.epoch:
            return  # a replica that was registered as a slave was promoted, or a former master has become a replica
        if not claim.signed or (known.signed and known.place[0] != claim.place[0]):
            raise OwnedError(
                ResponseCode.SYSTEM_ERROR,
                f"{claim.address} is the address of broker {_named(known.place)}: correct brokerIP1 or listenPort,"
                f" or stop the other broker; the address is free {HOLD_MS // 1000} s after its last registration",
            )

    def _is_alone(self, known: Claim, by: Claim) -> bool:
        """Return whether only the connection and host of `by` registered what `known` claims.

        A client that repeats a registration, perhaps while the broker reconnects, must not be able to end it.
        """
        others_said = known.other_ms is not None and by.seen_ms - known.other_ms < known.hold_ms
        return self._links.of(known.address) == {by.session_id} and known.host == by.host and not others_said

    def _touched(self, leaving: Claim) -> list[Claim]:
        """Return the valid claims that an unregistration would end."""
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
    """Return a claim that repeats `before`; as anyone can repeat it, the validity is not shortened."""
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
