"""Allocation strategies: each member gets an equal share of the queues, without a coordinator.

All members sort the same queues and the same IDs, so they agree as soon as they have the same lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from delaymq.client.options import Allocation
from delaymq.protocol.bodies import MessageQueue


def queue_order(queue: MessageQueue) -> tuple[str, str, int]:
    """Return the sort key of queues in RocketMQ's clients."""
    return queue.topic, queue.broker_name, queue.queue_id


def allocate_averagely(
    client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]
) -> Sequence[MessageQueue]:
    """Return consecutive queues for `client_id`; if the division has a remainder, the first members get one more. []
    for a non-member.
    """
    members = sorted(set(client_ids))
    if client_id not in members:
        return []
    ordered = sorted(queues, key=queue_order)
    index = members.index(client_id)
    share, more = divmod(len(ordered), len(members))
    start = index * share + min(index, more)
    return ordered[start : start + share + (1 if index < more else 0)]


def allocate_by_circle(
    client_id: str, client_ids: Iterable[str], queues: Iterable[MessageQueue]
) -> Sequence[MessageQueue]:
    """Return every n-th queue for `client_id`, one of n members, so that each gets queues of every broker. [] for a
    non-member.
    """
    members = sorted(set(client_ids))
    if client_id not in members:
        return []
    return sorted(queues, key=queue_order)[members.index(client_id) :: len(members)]


ALLOCATIONS: dict[Allocation, Callable[[str, Iterable[str], Iterable[MessageQueue]], Sequence[MessageQueue]]] = {
    Allocation.AVERAGELY: allocate_averagely,
    Allocation.CIRCLE: allocate_by_circle,
}
