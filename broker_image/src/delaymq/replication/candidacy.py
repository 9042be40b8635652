"""Decision whether and when a member takes over. Safety depends on the register's record only, not on the time."""

from __future__ import annotations

from typing import Final, NamedTuple

from delaymq.replication.effects import ReportLoss
from delaymq.replication.following import Following
from delaymq.replication.local import Local
from delaymq.replication.messages import Position
from delaymq.replication.model import Failover, NoteKind, Record
from delaymq.replication.positions import Positions
from delaymq.replication.register import RegisterView

UNABLE_DEFERS: Final = 4
"""Multiple of `defer_ms` for which others may take over before a member with a full disk, or after its crash."""


class Claim(NamedTuple):
    """A record with which a member takes over, and the loss that this may cause, if any."""

    record: Record
    loss: ReportLoss | None = None


class Candidacy:
    """Decision to take over, by the positions of other members, or by an order."""

    def __init__(self, local: Local, register: RegisterView, following: Following, positions: Positions) -> None:
        self._local = local
        self._register = register
        self._following = following
        self._positions = positions
        self._eligible_ms: int | None = None
        """Time since when this member has been able to take over."""
        self._ordered: tuple[int, int] | None = None
        """Epoch named by an unclean promotion, and its deadline."""
        self._handed: tuple[int, int] | None = None
        """Epoch of a switchover to this member, and its deadline."""

    def order(self, epoch: int) -> None:
        """Adopt an order to take over from `epoch` with a possible loss."""
        self._ordered = (epoch, self._local.now_ms + self._local.settings.lease_ms)
        self._register.hurry()

    def hand_over(self, epoch: int) -> None:
        """Adopt the offer of the master of `epoch`."""
        if self._handed is None or self._local.now_ms >= self._handed[1]:
            self._handed = (epoch, self._local.now_ms + self._local.settings.hand_over_ms)
            self._register.hurry()

    @property
    def is_pressed(self) -> bool:
        """Whether an order or an offer is in force."""
        now_ms = self._local.now_ms
        return any(pressing is not None and now_ms < pressing[1] for pressing in (self._ordered, self._handed))

    def reset(self) -> None:
        """Forget all, because there is a new epoch."""
        self._positions.reset()
        self._eligible_ms = self._ordered = self._handed = None

    def ask(self) -> None:
        """Ask the members of the set for their positions while this member has no master."""
        record = self._register.record
        if record is not None:
            self._positions.ask(record.in_sync)

    def claim(self) -> Claim | None:
        """Return the record with which this member takes over now; None if it does not."""
        local, record = self._local, self._register.record
        if record is None or record.epoch < local.epoch or not self._following.is_settled:
            return None
        if self._ordered is not None and self._ordered[0] == record.epoch and local.now_ms < self._ordered[1]:
            if local.acknowledged < local.log.confirmed:
                return None  # what this member showed to readers must be on its disk first
            loss = ReportLoss(record.epoch + 1, local.log.end, is_ordered=True)
            return Claim(self._record(frozenset({local.name})), loss)
        if local.name not in record.in_sync:
            return None
        if self._handed is not None and self._handed[0] == record.epoch and local.now_ms < self._handed[1]:
            return Claim(self._record(record.in_sync)) if local.log.note is None else None
        if not self._is_vacant(record):
            self._eligible_ms = None
            return None
        if self._eligible_ms is None:
            self._eligible_ms = local.now_ms
        if local.log.note is not None:
            return self._claim_after_loss(record)
        return Claim(self._record(record.in_sync)) if self._is_first(record) else None

    def _record(self, in_sync: frozenset[str]) -> Record:
        """Return a record of the next epoch.

        A former master remains in the set until the new one removes it: if this write takes place after the candidate
        has failed, the former master is a candidate.
        """
        return Record(self._local.epoch + 1, self._local.name, self._local.incarnation, in_sync)

    def _is_vacant(self, record: Record) -> bool:
        """Whether the master is gone, as far as this member can see: disconnected, and a renewal is missing."""
        settings = self._local.settings
        if record.master in ("", self._local.name):
            return True
        if settings.failover is Failover.MANUAL or self._following.is_connected:
            return False
        if any(position.is_master for position in self._fresh_positions(record).values()):
            return False
        patience_ms = settings.missing_ms if settings.waits_for_replicas else settings.lease_ms
        return self._register.unchanged_ms() >= patience_ms

    def _fresh_positions(self, record: Record) -> dict[str, Position]:
        """Return the newest positions of members of the set that know no other epoch."""
        fresh = self._positions.fresh(record.in_sync)
        return {name: position for name, position in fresh.items() if position.epoch == record.epoch}

    def _is_first(self, record: Record) -> bool:
        """Whether no member with a longer log should take over first. A member with a longer log has a limited time."""
        local = self._local
        if record.master == local.name and not self._leaves_to_replicas(record):
            return True
        positions = self._fresh_positions(record)
        waited_ms = local.now_ms - (self._eligible_ms or 0)
        if (not local.is_able or record.master == local.name) and waited_ms < UNABLE_DEFERS * local.settings.defer_ms:
            return False
        own = self._positions.own()
        candidates = [(each.last_epoch, each.end, name) for name, each in positions.items() if each.note is None]
        if max(candidates, default=(0, 0, "")) > (own.last_epoch, own.end, local.name):
            return waited_ms >= local.settings.defer_ms
        unknown = record.in_sync - positions.keys() - {local.name, record.master}
        return not unknown or waited_ms >= local.settings.retry_ms

    def _leaves_to_replicas(self, record: Record) -> bool:
        """Whether the former master, after a crash, lets a replica take over first, which has newer tables."""
        settings = self._local.settings
        takes_over = settings.waits_for_replicas and settings.failover is Failover.AUTOMATIC
        return self._local.log.was_killed and takes_over and record.in_sync != {self._local.name}

    def _claim_after_loss(self, record: Record) -> Claim | None:
        """Take over if all members of the set may have lost acknowledged bytes, and this one has the longest log."""
        local = self._local
        positions = self._fresh_positions(record)
        positions[local.name] = own = self._positions.own()
        if local.settings.failover is Failover.MANUAL and record.epoch > 0:
            return None
        if record.in_sync - positions.keys():
            return None
        kinds = {each.note.kind if each.note else None for each in positions.values()}
        if not kinds <= {NoteKind.LOST_TAIL, NoteKind.EMPTY}:
            return None
        if own.note is None or (own.note.kind is NoteKind.EMPTY and record.epoch > 0):
            return None
        longest = max((each.last_epoch, each.end, name) for name, each in positions.items())
        if longest != (own.last_epoch, own.end, local.name):
            return None
        if record.epoch == 0:
            return Claim(self._record(record.in_sync))
        loss = ReportLoss(record.epoch + 1, local.log.end, is_ordered=False)
        return Claim(self._record(record.in_sync), loss)
