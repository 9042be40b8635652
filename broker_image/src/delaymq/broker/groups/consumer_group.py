"""A consumer group as its members describe it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from delaymq.broker.requests.session import Session
from delaymq.protocol.bodies import SubscriptionData


@dataclass(slots=True)
class Client:
    """One connection's membership in one group."""

    session: Session
    client_id: str
    language: str
    version: int
    updated_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """A group with at least one member, or one that is remembered from the last run."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    members: dict[int, Client] = field(default_factory=dict)
    """By session id."""
    stated_bytes: int = 0
    """What it costs (stated.cost_of), as accounted."""
    sorted_ids: list[str] | None = None
    """Of the members; None after one came or went: when many do, each of them asks for all."""

    def subscribe(self, wanted: Iterable[SubscriptionData]) -> bool:
        """Takes a member's subscriptions; whether topics came or went. A newer version counts as no change."""
        changed = False
        topics = set()
        for subscription in wanted:
            topics.add(subscription.topic)
            known = self.subscriptions.get(subscription.topic)
            if known is None:
                changed = True
            elif subscription.sub_version <= known.sub_version:
                continue
            self.subscriptions[subscription.topic] = subscription
        for topic in [topic for topic in self.subscriptions if topic not in topics]:
            del self.subscriptions[topic]
            changed = True
        return changed
