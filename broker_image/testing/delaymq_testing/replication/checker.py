"""Invariants of a group, from what happened to its register, logs, responses and readers.

The checker does not use the state of the core: it compares bytes of logs.
"""

from __future__ import annotations

from delaymq.replication import Record
from delaymq.replication.effects import ReportLoss

from delaymq_testing.replication.disk import Disk
from delaymq_testing.replication.entries import PLAIN, SIZE, common_prefix, decode


class ViolationError(AssertionError):
    """An invariant does not hold."""


class Checker:
    """The one confirmed history, and what was promised about it."""

    def __init__(self, record: Record | None) -> None:
        """`record` is the register's content at the start."""
        self.history = bytearray()
        """Everything that was confirmed, except for losses that were stated."""
        self.lossy_epoch = 0
        """Newest epoch that began with a stated loss: members that do not know it yet may differ."""
        self.copies: dict[int, int] = {}
        self.counts: dict[str, int] = {}
        self._record = record
        self._given_up = b""
        """History before the newest stated loss: some of what it gave up may have survived."""
        self._began: dict[int, int] = {}
        """By epoch: length of the history when the register named its master."""
        self._confirming: dict[int, tuple[str, int]] = {}
        self._masters: dict[int, tuple[str, int]] = {}
        self._newest: tuple[int, Disk] | None = None

    def count(self, what: str) -> None:
        """Count an occurrence, so that tests can tell whether it was simulated."""
        self.counts[what] = self.counts.get(what, 0) + 1

    # The register

    def written(
        self, record: Record, disks: dict[str, Disk], stated_loss: ReportLoss | None, *, is_alive: bool
    ) -> None:
        """Check a write that took place. `is_alive`: the process that the record names as the master still runs."""
        old, self._record = self._record, record
        if old is None:
            self._founded(record, disks, stated_loss)
        else:
            if record.epoch < old.epoch:
                raise ViolationError(f"the epoch falls: {old} -> {record}")
            holder, old_holder = (record.master, record.incarnation), (old.master, old.incarnation)
            if record.epoch == old.epoch and holder != old_holder:
                raise ViolationError(f"two masters of an epoch: {old} -> {record}")
            if record.epoch > old.epoch:
                self._began[record.epoch] = len(self.history)
                self.count("epochs")
                if stated_loss is not None and (is_alive or stated_loss.is_ordered):
                    self._lose(old, record, disks, stated_loss.is_ordered)
                elif stated_loss is not None:
                    self.count("losses that did not take place")  # no process will begin the epoch
                elif record.master not in old.in_sync:
                    raise ViolationError(f"{record.master} takes over without being in sync: {old}")
        for name in record.in_sync:
            self.check_member(name, disks[name])

    def deleted(self) -> None:
        """Note that the register has no record any more."""
        self._record = None

    def _founded(self, record: Record, disks: dict[str, Disk], stated_loss: ReportLoss | None) -> None:
        """Check a record that replaces none. Epochs that only the register knew may be used again."""
        self.count("founded records")
        if record.master:
            raise ViolationError(f"a master without a record before: {record}")
        if all(disk.is_empty for disk in disks.values()):
            self._give_up(0, record)
        elif stated_loss is not None:
            founder = disks[min(record.in_sync)]
            kept = common_prefix(self.history, founder.log)
            has_lost = len(founder.log) < stated_loss.offset  # since it answered
            comparable = [disk.log for disk in disks.values() if not self._is_outdated(disk, founder)]
            if not has_lost and max(common_prefix(self.history, log) for log in comparable) > kept:
                raise ViolationError(f"a loss is larger than necessary: {record}")
            self._give_up(kept, record)
        elif record.epoch <= max(map(_newest_epoch, disks.values())):
            raise ViolationError(f"epoch {record.epoch} had a master")
        else:
            self._forget_epochs(record.epoch)

    def _lose(self, old: Record, record: Record, disks: dict[str, Disk], is_ordered: bool) -> None:
        """Give up what a stated loss allows: what the new master does not have."""
        kept = common_prefix(self.history, disks[record.master].log)
        if not is_ordered:
            self.count("takeovers after loss")
            for name in old.in_sync:
                if not disks[name].excuses():
                    raise ViolationError(f"a loss is stated although {name} has everything")
                if common_prefix(self.history, disks[name].log) > kept:
                    raise ViolationError(f"a loss is larger than necessary: {name} has more than {record.master}")
        else:
            self.count("unclean promotions")
            kept = min(kept, disks[record.master].flushed)
        self._give_up(kept, record)

    def _give_up(self, kept: int, record: Record) -> None:
        """Continue with a shorter history. Epochs that no disk has may be used again."""
        if kept < len(self.history):
            self.count("stated losses")
            self._given_up = bytes(self.history)
        del self.history[kept:]
        self.copies.clear()
        self._parse(0)
        self.lossy_epoch = record.epoch
        self._forget_epochs(record.epoch)

    def _forget_epochs(self, first: int) -> None:
        """Let epochs be used again from `first` on."""
        for epochs in (self._masters, self._confirming):
            for epoch in [epoch for epoch in epochs if epoch >= first]:
                del epochs[epoch]
        if self._newest is not None and self._newest[0] >= first:
            self._newest = None

    def check_member(self, name: str, disk: Disk) -> None:
        """Check that a member of the set has everything that is confirmed, unless its disk states otherwise."""
        if not disk.excuses() and not self._is_stale(disk) and not disk.log.startswith(self.history):
            end = common_prefix(disk.log, self.history)
            raise ViolationError(f"{name} is in sync, and has {end} of {len(self.history)} confirmed bytes")

    def _is_outdated(self, disk: Disk, founder: Disk) -> bool:
        """Return whether a disk has an older epoch than the founder, and a promoted member continued an older one.

        If this member has lost its volume, nobody knows which log it continued.
        """
        return _newest_epoch(disk) < _newest_epoch(founder) < self.lossy_epoch

    def _is_stale(self, disk: Disk) -> bool:
        newest = disk.history[-1].epoch if disk.history else 0
        return newest < self.lossy_epoch

    def failed(self, name: str, reason: str) -> None:
        """Check that a member stops only if confirmed messages were lost by a stated loss."""
        self.count("failed members")
        if not self.lossy_epoch:
            raise ViolationError(f"{name} stops: {reason}")

    # Masters and readers

    def became_master(self, name: str, incarnation: int, epoch: int, disk: Disk) -> None:
        """Check that a master has everything that was confirmed before, or before the next epoch if that has begun."""
        self.count("masters")
        if self._masters.setdefault(epoch, (name, incarnation)) != (name, incarnation):
            raise ViolationError(f"epoch {epoch} has two masters")
        if epoch < self.lossy_epoch:
            return
        end = min((end for later, end in self._began.items() if later > epoch), default=len(self.history))
        kept = common_prefix(disk.log, self.history[:end])
        if kept < min(end, len(self.history)):
            raise ViolationError(f"{name} became master with {kept} of {len(self.history)} confirmed bytes")
        if self._newest is None or epoch > self._newest[0]:
            self._newest = (epoch, disk)

    def confirmed(self, name: str, incarnation: int, epoch: int | None, start: int, end: int, disk: Disk) -> None:
        """Check that a member's log up to `end`, of which the part before `start` was checked, is the one history.

        `epoch` is that of a master, None for others.
        """
        if self._is_stale(disk) or (epoch is not None and epoch < self.lossy_epoch):
            return
        if epoch is not None and self._confirming.setdefault(epoch, (name, incarnation)) != (name, incarnation):
            raise ViolationError(f"two members confirm in epoch {epoch}")
        if end > len(disk.log):
            raise ViolationError(f"{name} confirms {end} of a log that ends at {len(disk.log)}")
        known = min(end, len(self.history))
        if disk.log[start:known] != self.history[start:known]:
            raise ViolationError(f"{name} confirms another history between {start} and {known}")
        if end > len(self.history):
            if epoch is None:
                if not self._survived(disk, end):
                    raise ViolationError(f"{name} knows that {end} is confirmed before the master")
                epoch = self.lossy_epoch
            old = len(self.history)
            self.history += disk.log[old:end]
            self._parse(old)
            if (
                self._newest is not None
                and self._newest[0] > epoch
                and not self._newest[1].log.startswith(self.history)
            ):
                raise ViolationError(f"{name} confirms {end} in epoch {epoch}, which the master of a later epoch lacks")

    def _survived(self, disk: Disk, end: int) -> bool:
        """Whether a log still has what the newest loss gave up, up to `end`."""
        return end <= len(self._given_up) and disk.log[:end] == self._given_up[:end]

    def _parse(self, start: int) -> None:
        """Check the records after `start`: queue offsets without gaps, one copy of each delayed record."""
        for index, entry in enumerate(decode(self.history[start:]), start // SIZE):
            if entry.number != index:
                raise ViolationError(f"queue offset {entry.number} at position {index}")
            if entry.origin > PLAIN:
                if entry.origin in self.copies:
                    raise ViolationError(f"two confirmed copies of {entry.origin}")
                self.copies[entry.origin] = entry.uid

    def acknowledged(self, name: str, epoch: int, end: int, data: bytes) -> None:
        """Check that a send with a positive response is in the confirmed history."""
        self.count("acknowledged")
        if epoch >= self.lossy_epoch and self.history[end - len(data) : end] != data:
            raise ViolationError(f"{name} acknowledges a send at {end} that is not confirmed")

    def consumed(self, name: str, disk: Disk, confirmed: int) -> None:
        """Check a consumer's offset after a read."""
        self.count("reads")
        end = disk.store.consumed * SIZE
        if not self._is_stale(disk) and end > max(confirmed, len(self.history)) and not self._survived(disk, end):
            raise ViolationError(f"the consumer's offset on {name} is beyond the confirmed history")


def _newest_epoch(disk: Disk) -> int:
    """Return the newest epoch whose start the log still reaches."""
    return max((each.epoch for each in disk.history if each.start <= len(disk.log)), default=0)
