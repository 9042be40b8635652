"""State that the parts of a member share: its log, the highest epoch that it knows, the time, and collected effects."""

from __future__ import annotations

from dataclasses import dataclass, field

from delaymq.replication.effects import Effect, PersistEpochs, PersistNote, SetConfirmed
from delaymq.replication.history import History
from delaymq.replication.model import LogState, Note, Settings


def incarnation_of(serial: int) -> int:
    """Return the incarnation that made a serial."""
    return serial >> 32


@dataclass(slots=True)
class Local:
    """A member, as its parts see it."""

    name: str
    incarnation: int
    """Number of this process, never used by another process."""
    settings: Settings
    log: LogState
    members: frozenset[str] = frozenset()
    """Names of all members, also of those that are not in sync."""
    is_able: bool = True
    """Whether it could store messages as master."""
    epoch: int = 0
    """Highest epoch that is known from the register or from other members."""
    now_ms: int = 0
    catch_up_bytes_per_s: int = 0
    """Limit of the bytes that a master sends to all members that are not in the set; 0: none."""
    effects: list[Effect] = field(default_factory=list)
    _serial: int = 0

    def emit(self, effect: Effect) -> None:
        """Add an effect."""
        self.effects.append(effect)

    def next_serial(self) -> int:
        """Return a positive number that was never returned before, on any member; those of a process ascend."""
        self._serial += 1
        return (self.incarnation << 32) + self._serial

    @property
    def acknowledged(self) -> int:
        """Offset up to which this member acknowledges its log."""
        return self.log.acknowledged(self.settings.acknowledge)

    def confirm(self, offset: int) -> None:
        """Raise the known confirmed offset."""
        if self.raise_confirmed(offset):
            self.emit(SetConfirmed(offset))

    def raise_confirmed(self, offset: int) -> bool:
        """Raise the known confirmed offset; return whether it rises, so that the caller has to emit SetConfirmed."""
        rises = offset > self.log.confirmed
        if rises:
            self.log.confirmed = offset
        return rises

    def persist_epochs(self, store_id: str, history: History) -> int:
        """Return the number of the write."""
        number = self.next_serial()
        self.emit(PersistEpochs(number, store_id, history))
        return number

    def persist_note(self, note: Note | None) -> int:
        """Adopt a note, or clear it, and return the number of the write."""
        self.log.note = note
        number = self.next_serial()
        self.emit(PersistNote(number, note))
        return number
