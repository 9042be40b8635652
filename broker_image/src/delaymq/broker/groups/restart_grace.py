"""Members of the broker's last run that are expected back. For a limited time they count as connected."""

from __future__ import annotations

from delaymq.broker.groups.client_snapshot import BELIEVED_MS, REMEMBER_MS, RememberedClients
from delaymq.broker.groups.consumer_group import ConsumerGroup


class RestartGrace:
    """Consumer groups of the last run, and their members that have not yet returned."""

    def __init__(self) -> None:
        self._groups: dict[str, ConsumerGroup] = {}
        self._ids: dict[str, set[str]] = {}
        self._until_ms = 0

    def restore(self, stored: RememberedClients, now_ms: int) -> None:
        """Restore the last run for REMEMBER_MS, if it ended recently."""
        if now_ms - stored.saved_at_ms > BELIEVED_MS:
            return
        self._until_ms = now_ms + REMEMBER_MS
        for name, each in stored.groups.items():
            group = ConsumerGroup(name, each.consume_type, each.message_model, each.consume_from_where)
            group.subscribe(each.subscriptions)
            self._groups[name] = group
            self._ids[name] = set(each.client_ids)

    def names(self, now_ms: int) -> list[str]:
        """Return the groups of the last run."""
        return list(self._groups) if now_ms < self._until_ms else []

    def group(self, name: str, now_ms: int) -> ConsumerGroup | None:
        """Return a group of the last run."""
        return self._groups.get(name) if now_ms < self._until_ms else None

    def ids(self, name: str, now_ms: int) -> set[str]:
        """Return the client ids of a group's members that have not yet returned."""
        return self._ids.get(name, set()) if now_ms < self._until_ms else set()

    def expect_no_more(self, name: str, client_id: str) -> None:
        """Remove a member that returned or left."""
        self._ids.get(name, set()).discard(client_id)

    def end(self, now_ms: int) -> list[str] | None:
        """Discard the state if its time has passed.

        Returns the groups that lose a member, or None if nothing was discarded.
        """
        if not self._groups or now_ms < self._until_ms:
            return None
        missing = [name for name, ids in self._ids.items() if ids]
        self._groups.clear()
        self._ids.clear()
        return missing
