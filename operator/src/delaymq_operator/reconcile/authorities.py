"""CAs of a Broker: the active one, the next one before it issues certificates, and former ones until they expire.

A CA is replaced after two thirds of its lifetime, in two steps. Clients and servers receive the next CA first; only
`OVERLAP_MS` later does it issue certificates. Certificates of the former CA remain valid.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from delaymq_operator.api.broker import CA_VALIDITY_RATIO
from delaymq_operator.api.names import CA_KEY
from delaymq_operator.manifests.certificates import AUTHORITY_KEY, FORMER_CERTIFICATES, NEXT_CERTIFICATE, NEXT_KEY
from delaymq_operator.reconcile.certificates import (
    DAY_MS,
    Pair,
    belong_together,
    facts_of,
    new_authority,
    split_bundle,
)

OVERLAP_MS: Final = 30 * DAY_MS
"""Time between the publication of a CA and its first certificate; less for a CA with a short lifetime."""
_MAX_FORMER: Final = 4


@dataclass(frozen=True, kw_only=True)
class Authorities:
    """The CAs of a Broker."""

    active: Pair
    next: Pair | None = None
    former: tuple[str, ...] = ()
    """Certificates of former CAs, the newest first."""

    @property
    def certificates(self) -> tuple[str, ...]:
        """Certificates to be trusted, as PEM."""
        current = (self.active.certificate, *((self.next.certificate,) if self.next is not None else ()))
        return tuple(dict.fromkeys((*current, *self.former)))

    @property
    def bundle(self) -> str:
        """The same as one text."""
        return "".join(self.certificates)

    @property
    def texts(self) -> dict[str, str]:
        """Contents of the CA's Secret."""
        found = {CA_KEY: self.active.certificate, AUTHORITY_KEY: self.active.key}
        if self.next is not None:
            found |= {NEXT_CERTIFICATE: self.next.certificate, NEXT_KEY: self.next.key}
        if self.former:
            found[FORMER_CERTIFICATES] = "".join(self.former)
        return found


def read_authorities(texts: Mapping[str, str]) -> Authorities | None:
    """Return the CAs in a Secret; None if the active one is missing or unreadable."""
    active, following = _pair(texts, CA_KEY, AUTHORITY_KEY), _pair(texts, NEXT_CERTIFICATE, NEXT_KEY)
    if active is None:
        return None
    return Authorities(active=active, next=following, former=split_bundle(texts.get(FORMER_CERTIFICATES, "")))


def _pair(texts: Mapping[str, str], certificate: str, key: str) -> Pair | None:
    if certificate not in texts or key not in texts:
        return None
    found = Pair(certificate=texts[certificate], key=texts[key])
    return found if belong_together(found) else None


def advance(
    found: Authorities | None, published: Collection[str], common_name: str, now_ms: int, days: int
) -> Authorities:
    """Return the CAs after the steps that are due.

    `published` are the certificates that servers and clients have received. If the CA was lost, they remain trusted,
    so that what it issued remains valid. A next CA that was not published is replaced, since its time has not begun.
    """
    if found is None:
        found = Authorities(active=new_authority(common_name, now_ms, days), former=tuple(published))
    if found.next is not None and found.next.certificate not in published:
        found = replace(found, next=None)
    facts = facts_of(found.active.certificate)
    if found.next is None and now_ms >= facts.due_ms:
        found = replace(found, next=new_authority(common_name, now_ms, days))
    if found.next is not None and (now_ms >= facts.ends_ms or _has_overlapped(found.next, now_ms)):
        found = Authorities(active=found.next, former=(found.active.certificate, *found.former))
    kept = [each for each in found.former if facts_of(each).ends_ms > now_ms and each != found.active.certificate]
    return replace(found, former=tuple(kept[:_MAX_FORMER]))


def _has_overlapped(following: Pair, now_ms: int) -> bool:
    facts = facts_of(following.certificate)
    lifetime_ms = facts.ends_ms - facts.created_ms
    return now_ms - facts.created_ms >= min(OVERLAP_MS, lifetime_ms // CA_VALIDITY_RATIO)
