"""Brokers of a group, and which of them is the master."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from delaymq.api_types.replication import GroupMember, Replication

from delaymq_operator.api.names import MAX_REPLICAS, MEMBERS_ANNOTATION
from delaymq_operator.reconcile.broker.model.pods import Pod
from delaymq_operator.reconcile.ports import Endpoint, Manifest


@dataclass
class Member:
    """A broker of a group as observed; without replicas, a group has one, which is no member."""

    ordinal: int
    name: str
    """Its pod."""
    claim: Manifest | None
    pod: Pod | None
    known_members: str = ""
    """Members with which its pod was created; empty: without replicas."""
    surplus: bool = False
    """Whether its ordinal is beyond spec.replicasPerGroup."""
    endpoint: Endpoint | None = None
    state: Replication | None = None
    """Its response; None without replicas, and if it did not respond."""
    unreachable: str | None = None

    @property
    def leads(self) -> bool:
        """Whether it reports that it is the master."""
        return self.state is not None and self.state.role == "Master"


def recorded_members(claims: Iterable[Manifest | None]) -> int:
    """Return the number of brokers of a group according to its volumes; 0: it was never replicated.

    Volumes outlive the Broker: a new one with fewer replicas starts with all of them, and removes some afterwards.
    """
    return max((_recorded(claim) for claim in claims), default=0)


def _recorded(claim: Manifest | None) -> int:
    text = (((claim or {}).get("metadata") or {}).get("annotations") or {}).get(MEMBERS_ANNOTATION, "")
    return min(int(text), MAX_REPLICAS) if text.isascii() and text.isdecimal() and len(text) <= 2 else 0


def find_master(members: Iterable[Member]) -> Member | None:
    """Return the master: the member that reports so in the highest epoch."""
    leading = [member for member in members if member.leads]
    return max(leading, key=lambda member: member.state.epoch if member.state is not None else 0, default=None)


def progress_of(master: Member | None, name: str) -> GroupMember | None:
    """Return a member as its master sees it."""
    if master is None or master.state is None:
        return None
    return next((each for each in master.state.members if each.name == name), None)


def is_in_sync(master: Member | None, name: str) -> bool:
    """Return whether the master counts a member."""
    return master is not None and master.state is not None and name in master.state.in_sync
