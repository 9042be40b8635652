"""What the positions beside the log say about what every reader is done with."""

from __future__ import annotations

from collections.abc import Mapping

from delaymq.message.names import HALF_TOPIC, OP_HALF_TOPIC, is_system_group

from delaymq_spark.positions import Positions

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""Its offsets in both topics of transactions say up to where everything is settled."""


def read_by_all(positions: Positions) -> dict[tuple[str, int], int]:
    """(topic, queue id) → queue offset below which every group has read; only topics that a group reads.

    The groups of the broker and of its tools hold nothing back and free nothing.
    """
    groups: dict[str, list[Mapping[int, int]]] = {}
    for (topic, group), offsets in positions.consumer_offsets.items():
        if not is_system_group(group):
            groups.setdefault(topic, []).append(offsets)
    read = {}
    for topic, of_groups in groups.items():
        for queue_id in set().union(*of_groups):
            read[topic, queue_id] = min(offsets.get(queue_id, 0) for offsets in of_groups)
    return read


def settled_halves(positions: Positions) -> int:
    """Queue offset below which every half message is settled or stored anew."""
    return positions.consumer_offsets.get((HALF_TOPIC, TRANSACTION_GROUP), {}).get(0, 0)


def settled_operations(positions: Positions) -> int:
    """Queue offset below which no op record is needed."""
    return positions.consumer_offsets.get((OP_HALF_TOPIC, TRANSACTION_GROUP), {}).get(0, 0)
