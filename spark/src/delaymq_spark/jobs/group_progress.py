"""Consumption progress: what every reader has consumed, and the lag of each group, by the positions next to the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from delaymq.message.names import HALF_TOPIC, OP_HALF_TOPIC, is_system_group

from delaymq_spark.store.positions import Positions

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""Group whose offsets in both transaction topics state up to where everything is settled."""


@dataclass(frozen=True, kw_only=True)
class GroupLag:
    """Lag of a group in a topic."""

    topic: str
    group: str
    lag: int
    """Number of messages in the topic's queues that it has not read; messages that are no longer in the log do not
    count.
    """
    queues: int
    unread_queues: int
    """Number of queues without an offset of the group, which count as unread."""


def read_by_all(positions: Positions) -> dict[str, dict[int, int]]:
    """Return topic → queue id → queue offset below which every group has read; only topics that a group reads.

    A missing queue has not been read by at least one group. The groups of the broker and its tools are ignored.
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
    """Return the lag of every group and topic with an offset, largest first."""
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
    """Return the queue offset below which every half message is settled or stored again."""
    return positions.consumer_offsets.get((HALF_TOPIC, TRANSACTION_GROUP), {}).get(0, 0)


def settled_operations(positions: Positions) -> int:
    """Return the queue offset below which no op mark is needed."""
    return positions.consumer_offsets.get((OP_HALF_TOPIC, TRANSACTION_GROUP), {}).get(0, 0)
