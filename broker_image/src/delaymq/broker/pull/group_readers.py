"""Members of a replicated group that consumers may read from, as pulls need to know them."""

from __future__ import annotations

from collections.abc import Callable, Collection


class GroupReaders:
    """The broker's own state as a reader, and the broker ids of the replicas. Without a group, there are none."""

    def __init__(self) -> None:
        self.own_id = 0
        """Broker id under which this broker is registered while it is a replica; 0 without a group."""
        self.is_current: Callable[[], bool] = lambda: False
        """Returns whether this replica is in sync, and has everything that its master stated as confirmed."""
        self.may_be_outdated: Callable[[], bool] = lambda: False
        """Returns whether another member may be the master instead of this one, and have more messages."""
        self.replica_ids: Callable[[], Collection[int]] = lambda: ()
        """Returns the broker ids of the replicas in sync of this master."""

    def suggested(self, wanted: int, *, follows: bool) -> int:
        """Return the id of the broker that a consumer should use, if its group's settings state `wanted`.

        Ids of a group belong to members, so `wanted` may be the master's own, or that of a member that is not in sync.
        """
        if not (self.own_id and wanted):
            return wanted
        if follows:
            return self.own_id
        ids = self.replica_ids()
        return wanted if wanted in ids else min(ids, default=0)
