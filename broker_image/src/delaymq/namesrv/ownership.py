"""Which address a broker's name and id belong to while nobody has to sign: that of its last registration, for 45 s.

Nobody proves anything here. It keeps a second broker of the same name, and a passer-by, from taking clients away from a
broker that lives (docs/decisions/0040-a-broker-name-belongs-to-an-account.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeVar

from delaymq.protocol.codes import ResponseCode
from delaymq.protocol.errors import RequestError

HOLD_MS: Final = 45_000
"""One and a half of the 30 s between two registrations."""
LONGEST_HOLD_MS: Final = 90_000
"""The same for the longest `registerNameServerPeriod`."""
MAX_CLAIMS: Final = 20_000
"""Twice the brokers that may be registered: a claim outlives its broker for some seconds."""
_PRUNE_MS: Final = 1_000

NO_SESSION: Final = -1
Key = TypeVar("Key")
Place = tuple[str, int]
"""Broker name and id."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What a registration says of its broker."""

    place: Place
    address: str
    """What clients are told."""
    session_id: int
    """The connection that may take it back: the first one that is still open."""
    signed: bool
    """Whether an account vouched for it."""
    epoch: int = 0
    """Rises when a replica is promoted; 0 where nobody vouched for it."""
    seen_ms: int = 0
    """By a clock that nobody sets."""
    hold_ms: int = HOLD_MS
    """How long it counts from then on."""


class OwnedError(RequestError):
    """The name, or the address, is another's for now."""


class Ownership:
    """The claims of the last 45 s."""

    def __init__(self) -> None:
        self._claims: dict[Place, Claim] = {}
        self._at: dict[str, set[Place]] = {}
        """Address → whose it is said to be."""
        self._of_session: dict[int, set[Place]] = {}
        self._next_prune_ms = 0

    def check(self, claim: Claim) -> None:
        """Nothing, or OwnedError: a registration that another one forbids at `claim.seen_ms`."""
        self._check_name(claim, self._young(self._claims.get(claim.place), claim.seen_ms))
        self._check_address(claim)
        if claim.place not in self._claims and len(self._claims) >= MAX_CLAIMS:
            self._prune(claim.seen_ms)
            if len(self._claims) >= MAX_CLAIMS:
                raise OwnedError(
                    ResponseCode.SYSTEM_ERROR, f"{MAX_CLAIMS} brokers registered lately: register again in a minute"
                )

    def took(self, claim: Claim) -> None:
        """A registration was accepted."""
        before = self._claims.get(claim.place)
        if before is not None and before.address == claim.address:
            claim = _continued(before, claim)
        self._drop(claim.place)
        self._claims[claim.place] = claim
        self._at.setdefault(claim.address, set()).add(claim.place)
        self._of_session.setdefault(claim.session_id, set()).add(claim.place)

    def saw(self, place: Place, address: str, session_id: int, now_ms: int) -> None:
        """A sign of life without a registration, over the connection of the last one."""
        known = self._claims.get(place)
        if known is not None and (known.address, known.session_id) == (address, session_id):
            self._claims[place] = _continued(known, replace(known, seen_ms=now_ms))

    def closed(self, session_id: int) -> None:
        """A connection ended: the next registration's takes its place."""
        for place in self._of_session.pop(session_id, ()):
            self._claims[place] = replace(self._claims[place], session_id=NO_SESSION)

    def check_leave(self, leaving: Claim) -> None:
        """Nothing, or OwnedError: only the connection of the last registration takes an unsigned one back."""
        for known in self._touched(leaving):
            if not leaving.signed and known.session_id != leaving.session_id:
                raise OwnedError(
                    ResponseCode.SYSTEM_ERROR,
                    f"broker {_named(known.place)} registered over another connection, which alone unregisters it:"
                    f" its registration ends by itself, and its name is free in {HOLD_MS // 1000} s",
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
        for known in self._young_at(claim.address, claim.seen_ms):
            same = known.place == claim.place or known.session_id == claim.session_id
            vouched = claim.signed and known.place[0] == claim.place[0]
            if not same and not vouched:
                raise OwnedError(
                    ResponseCode.SYSTEM_ERROR,
                    f"{claim.address} is the address of broker {_named(known.place)}: correct brokerIP1 or listenPort,"
                    f" or stop that one; its address is free {HOLD_MS // 1000} s after its last registration",
                )

    def _touched(self, leaving: Claim) -> list[Claim]:
        """The young claims that an unregistration would end."""
        known = self._young(self._claims.get(leaving.place), leaving.seen_ms)
        found = {} if known is None else {known.place: known}
        return list((found | {each.place: each for each in self._young_at(leaving.address, leaving.seen_ms)}).values())

    def _young_at(self, address: str, now_ms: int) -> list[Claim]:
        found = (self._claims[place] for place in self._at.get(address, ()))
        return [each for each in found if self._young(each, now_ms) is not None]

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
        _discard(self._at, claim.address, place)
        _discard(self._of_session, claim.session_id, place)


def _continued(before: Claim, claim: Claim) -> Claim:
    """A claim that repeats `before`. Its connection stays: anybody can repeat it, and must not get to end it so."""
    interval_ms = claim.seen_ms - before.seen_ms
    hold_ms = before.hold_ms
    if interval_ms > HOLD_MS // 2:  # else something between two regular ones, as when a topic changes
        hold_ms = min(max(interval_ms * 3 // 2, HOLD_MS), LONGEST_HOLD_MS)
    stays = interval_ms < before.hold_ms and before.session_id != NO_SESSION
    return replace(claim, hold_ms=hold_ms, session_id=before.session_id if stays else claim.session_id)


def _discard(table: dict[Key, set[Place]], key: Key, place: Place) -> None:
    places = table.get(key, set())
    places.discard(place)
    if not places:
        table.pop(key, None)


def _named(place: Place) -> str:
    return f"{place[0]} (id {place[1]})"
