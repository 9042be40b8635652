"""Founding of the register's record if there is none: before the first epoch, or after the record was deleted."""

from __future__ import annotations

from typing import NamedTuple

from delaymq.replication.effects import ReportLoss
from delaymq.replication.local import Local
from delaymq.replication.messages import Position
from delaymq.replication.model import Record
from delaymq.replication.positions import Positions


class Foundation(NamedTuple):
    """A record without a master, and the loss that it may cause, if any."""

    record: Record
    loss: ReportLoss | None = None


class Founding:
    """Decides on the record by the answers of all members, each of which has found the register without one.

    Such a member is not the master. It can become the master only by a record that replaces the version that it found,
    which is the same for all. Therefore, no log grows, and the last master's is the longest.
    """

    def __init__(self, local: Local, positions: Positions) -> None:
        self._local = local
        self._positions = positions
        self.problem = ""
        """Why there is no record yet."""

    def foundation(self) -> Foundation | None:
        """Ask, and return the record as soon as all members have answered."""
        local = self._local
        self._positions.ask(local.members)
        positions = self._positions.fresh(local.members)
        positions[local.name] = self._positions.own()
        self.problem = self._obstacle(positions)
        if self.problem:
            return None
        epoch = max(each.epoch for each in positions.values())
        if epoch == 0:
            used = [name for name, each in positions.items() if each.end]
            return Foundation(Record(0, "", 0, frozenset(used or positions)))
        longest = max((each.last_epoch, each.end) for each in positions.values())
        having = {name: each.note for name, each in positions.items() if (each.last_epoch, each.end) == longest}
        founders = [name for name, note in having.items() if note is None] or list(having)
        loss = None
        if any(each.note is not None for each in positions.values()):
            # The member with the note may have been the only one that had everything.
            loss = ReportLoss(epoch + 1, longest[1], is_ordered=False)
        return Foundation(Record(epoch + 1, "", 0, frozenset(founders)), loss)

    def _obstacle(self, positions: dict[str, Position]) -> str:
        missing = self._local.members - positions.keys()
        if missing:
            return f"the register has no record yet, and these members do not answer: {', '.join(sorted(missing))}"
        version = positions[self._local.name].vacant
        occupied = [name for name, each in positions.items() if each.vacant != version]
        if occupied:
            return f"the register has no record yet, and these members have not noticed: {', '.join(sorted(occupied))}"
        used = sorted(name for name, each in positions.items() if each.end)
        if len(used) > 1 and not any(each.epoch for each in positions.values()):
            return (
                f"{' and '.join(used)} have messages that were stored before they belonged to a group: empty the"
                " volumes of all but one of them"
            )
        return ""
