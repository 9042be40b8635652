"""Queue locks: an orderly consumer has a queue for itself as long as it renews its lock."""

from __future__ import annotations

from collections.abc import Iterable

# Clients renew every 20 s.
LOCK_MS = 60_000
# Of all groups; more queues than this nobody consumes in order, and each lock costs memory for a minute.
MAX_LOCKS = 200_000

Queue = tuple[str, str, int]
"""Broker name, topic, queue id: what clients mean by a queue."""


class QueueLocks:
    """Who holds which queue, by group."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Queue, tuple[str, int]]] = {}
        self._count = 0

    def lock(self, group: str, client_id: str, queues: Iterable[Queue], now_ms: int) -> list[Queue]:
        """Takes or renews what nobody else holds; returns what `client_id` holds now, of the queues that it named."""
        held = self._groups.get(group, {})
        locked = []
        for queue in queues:
            holder = held.get(queue)
            if holder is not None and holder[0] != client_id and now_ms - holder[1] <= LOCK_MS:
                continue
            if holder is None:
                if self._count >= MAX_LOCKS:
                    continue
                self._count += 1
            held[queue] = (client_id, now_ms)
            locked.append(queue)
        if held:
            self._groups[group] = held
        return locked

    def unlock(self, group: str, client_id: str, queues: Iterable[Queue]) -> None:
        """Gives up those that `client_id` holds."""
        held = self._groups.get(group, {})
        for queue in queues:
            holder = held.get(queue)
            if holder is not None and holder[0] == client_id:
                del held[queue]
                self._count -= 1

    def expire(self, now_ms: int) -> None:
        """Forgets locks that were not renewed."""
        for group in list(self._groups):
            held = self._groups[group]
            for queue in [queue for queue, (_, since_ms) in held.items() if now_ms - since_ms > LOCK_MS]:
                del held[queue]
                self._count -= 1
            if not held:
                del self._groups[group]
