"""Consumer groups as described by their members."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from delaymq.broker.requests.session import Session
from delaymq.protocol.bodies import SubscriptionData


@dataclass(slots=True)
class Client:
    """Membership of one connection in one group."""

    session: Session
    client_id: str
    language: str
    version: int
    updated_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """A group with at least one member, or one remembered from the last run."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    members: dict[int, Client] = field(default_factory=dict)
    """Members by session id."""
    stated_bytes: int = 0
    """Accounted cost of the group (heartbeat_limits.cost_of)."""
    sorted_ids: list[str] | None = None
    """Cached client ids of the members; None after a change. When many members join, each of them requests all ids."""

    def subscribe(self, wanted: Iterable[SubscriptionData]) -> bool:
        """Apply a member's subscriptions. Returns whether topics were added or removed, not versions."""
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
