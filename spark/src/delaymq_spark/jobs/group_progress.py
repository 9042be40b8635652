"""What the positions beside the log say about what every reader is done with, and how far behind each group is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from delaymq.message.names import HALF_TOPIC, OP_HALF_TOPIC, is_system_group

from delaymq_spark.store.positions import Positions

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""Its offsets in both topics of transactions say up to where everything is settled."""


@dataclass(frozen=True, kw_only=True)
class GroupLag:
    """How far a group is behind in a topic."""

    topic: str
    group: str
    lag: int
    """Messages of the topic's queues that it has yet to read; those that are no longer in the log do not count."""
    queues: int
    unread_queues: int
    """Queues that it has no offset for: it counts as having read nothing of them."""


def read_by_all(positions: Positions) -> dict[str, dict[int, int]]:
    """Topic → queue id → queue offset below which every group has read; only topics that a group reads.

    A queue that is not there has not been read by some group, and one is enough. The groups of the broker and of its
    tools hold nothing back and free nothing.
    """
    groups: dict[str, list[Mapping[int, int]]] = {}
    for (topic, group), offsets in positions.consumer_offsets.items():
        if not is_system_group(group):
            groups.setdefault(topic, []).append(offsets)
    return {
        topic: {
            queue: min(offsets[queue] for offsets in of_groups) for queue in set(of_groups[0]).intersection(*of_groups)
        }
        for topic, of_groups in groups.items()
    }


def lags(positions: Positions) -> list[GroupLag]:
    """Of every group and topic with an offset, the furthest behind first."""
    queues: dict[str, dict[int, tuple[int, int]]] = {}
    for (topic, queue_id), bounds in positions.queues.items():
        queues.setdefault(topic, {})[queue_id] = bounds.min_number, bounds.max_number
    found = []
    for (topic, group), offsets in positions.consumer_offsets.items():
        if is_system_group(group):
            continue
        of_topic = queues.get(topic, {})
        lag = sum(max(0, end - max(start, offsets.get(queue, 0))) for queue, (start, end) in of_topic.items())
        unread = sum(queue not in offsets for queue in of_topic)
        found.append(GroupLag(topic=topic, group=group, lag=lag, queues=len(of_topic), unread_queues=unread))
    return sorted(found, key=lambda each: (-each.lag, each.topic, each.group))


def settled_halves(positions: Positions) -> int:
    """Queue offset below which every half message is settled or stored anew."""
    return positions.consumer_offsets.get((HALF_TOPIC, TRANSACTION_GROUP), {}).get(0, 0)


def settled_operations(positions: Positions) -> int:
    """Queue offset below which no op record is needed."""
    return positions.consumer_offsets.get((OP_HALF_TOPIC, TRANSACTION_GROUP), {}).get(0, 0)
