"""Queue locks: an ordered consumer owns a queue exclusively while it renews its lock."""

from __future__ import annotations

from collections.abc import Iterable

LOCK_MS = 60_000
"""Clients renew every 20 s."""
MAX_LOCKS = 200_000
"""Limit for all groups, above any realistic number of queues of ordered consumers. Each lock takes memory for 60 s."""

Queue = tuple[str, str, int]
"""Broker name, topic and queue id, which identify a queue for clients."""


class QueueLocks:
    """Lock holders of queues, by group."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Queue, tuple[str, int]]] = {}
        self._count = 0

    def lock(self, group: str, client_id: str, queues: Iterable[Queue], now_ms: int) -> list[Queue]:
        """Acquire or renew locks that no other client holds. Returns those of `queues` that `client_id` now holds."""
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
        """Release the locks that `client_id` holds."""
        held = self._groups.get(group, {})
        for queue in queues:
            holder = held.get(queue)
            if holder is not None and holder[0] == client_id:
                del held[queue]
                self._count -= 1

    def expire(self, now_ms: int) -> None:
        """Remove expired locks."""
        for group in list(self._groups):
            held = self._groups[group]
            for queue in [queue for queue, (_, since_ms) in held.items() if now_ms - since_ms > LOCK_MS]:
                del held[queue]
                self._count -= 1
            if not held:
                del self._groups[group]
