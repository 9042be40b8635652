"""Queue locks: an ordered consumer owns a queue exclusively while it renews its lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

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
        self.on_change: Callable[[str, str], None] = lambda group, client_id: None
        """Called with group and client when a client's locks have changed."""

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
        if locked:
            self.on_change(group, client_id)
        return locked

    def unlock(self, group: str, client_id: str, queues: Iterable[Queue]) -> None:
        """Release the locks that `client_id` holds."""
        held = self._groups.get(group, {})
        for queue in queues:
            holder = held.get(queue)
            if holder is not None and holder[0] == client_id:
                del held[queue]
                self._count -= 1
        self.on_change(group, client_id)

    def holders(self) -> Iterator[tuple[str, str]]:
        """Iterate over the pairs of group and client that hold locks."""
        for group, held in self._groups.items():
            for client_id in {holder for holder, _ in held.values()}:
                yield group, client_id

    def held_by(self, group: str, client_id: str) -> dict[Queue, int]:
        """Return the time in ms since when a client holds each of its queues."""
        held = self._groups.get(group, {})
        return {queue: since_ms for queue, (holder, since_ms) in held.items() if holder == client_id}

    def replicate(self, group: str, client_id: str, queues: Mapping[Queue, int]) -> None:
        """Adopt the locks of a client that the master states, with the time in ms since when it holds each queue."""
        held = self._groups.setdefault(group, {})
        for queue in self.held_by(group, client_id).keys() - queues.keys():
            del held[queue]
            self._count -= 1
        for queue, since_ms in queues.items():
            self._count += queue not in held
            held[queue] = (client_id, since_ms)
        if not held:
            del self._groups[group]

    def clear(self) -> None:
        """Remove all locks."""
        self._groups.clear()
        self._count = 0

    def expire(self, now_ms: int) -> None:
        """Remove expired locks."""
        for group in list(self._groups):
            held = self._groups[group]
            for queue in [queue for queue, (_, since_ms) in held.items() if now_ms - since_ms > LOCK_MS]:
                del held[queue]
                self._count -= 1
            if not held:
                del self._groups[group]
