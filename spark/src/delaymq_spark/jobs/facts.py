"""What the jobs know of a store beside its log: read on the driver before the log, so never ahead of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from delaymq.message.names import HALF_TOPIC, OP_HALF_TOPIC, is_system_group

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""Its offsets in both topics of transactions say up to where everything is settled."""


@dataclass(frozen=True, kw_only=True)
class LogFile:
    """One file of the log."""

    base: int
    """Physical offset of its first byte."""
    file_bytes: int


@dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """Positions and files of one store."""

    path: str
    store_id: str | None = None
    """Of delaymq/state.json; None in a store that only RocketMQ's own broker wrote."""
    segments: tuple[LogFile, ...] = ()
    consumer_offsets: Mapping[tuple[str, str], Mapping[int, int]] = field(default_factory=dict)
    """(topic, group) → queue id → next queue offset that the group reads."""
    delay_offsets: Mapping[int, int] = field(default_factory=dict)
    """Level → queue offset; what lies below is settled."""
    deleted_topics: Mapping[str, int] = field(default_factory=dict)
    """Topic → end of the log when it was deleted; older records of it are in no queue."""

    def read_by_all(self) -> dict[tuple[str, int], int]:
        """(topic, queue id) → queue offset below which every group has read; only topics that a group reads.

        The groups of the broker and of its tools hold nothing back and free nothing.
        """
        groups: dict[str, list[Mapping[int, int]]] = {}
        for (topic, group), offsets in self.consumer_offsets.items():
            if not is_system_group(group):
                groups.setdefault(topic, []).append(offsets)
        read = {}
        for topic, of_groups in groups.items():
            for queue_id in set().union(*of_groups):
                read[topic, queue_id] = min(offsets.get(queue_id, 0) for offsets in of_groups)
        return read

    @property
    def settled_halves(self) -> int:
        """Queue offset below which every half message is settled or stored anew."""
        return self.consumer_offsets.get((HALF_TOPIC, TRANSACTION_GROUP), {}).get(0, 0)

    @property
    def settled_operations(self) -> int:
        """Queue offset below which no op record is needed."""
        return self.consumer_offsets.get((OP_HALF_TOPIC, TRANSACTION_GROUP), {}).get(0, 0)
