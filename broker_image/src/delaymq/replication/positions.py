"""Positions of the members: how far their logs are, as they answer when this member asks."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from delaymq.replication.effects import Send
from delaymq.replication.history import last_epoch, trimmed
from delaymq.replication.local import Local
from delaymq.replication.messages import Ask, Position
from delaymq.replication.register import RegisterView


class Positions:
    """Newest answers of other members, and the position of this one."""

    def __init__(self, local: Local, register: RegisterView) -> None:
        self._local = local
        self._register = register
        self._round = 0
        self._asked_ms = 0
        self._answers: dict[str, tuple[Position, int]] = {}
        """Answers to the newest question, with the times at which they arrived."""

    def own(self, round_: int = 0, *, is_master: bool = False) -> Position:
        """Return the position of this member: the log that it acknowledges, so that a power loss does not change it.

        Before the first epoch, nothing is acknowledged, and it is the whole log.
        """
        log = self._local.log
        end = self._local.acknowledged if log.history else log.end
        newest = last_epoch(trimmed(log.history, end))
        vacant = self._register.version if self._register.record is None and not is_master else ""
        is_able = self._local.is_able
        return Position(self._local.epoch, round_, newest, end, log.note, is_master, vacant, is_able)

    def on_position(self, sender: str, position: Position) -> None:
        """Adopt an answer to the newest question."""
        if position.round == self._round:
            self._answers[sender] = (position, self._local.now_ms)

    def reset(self) -> None:
        """Forget all, because there is a new epoch."""
        self._answers.clear()

    def ask(self, members: AbstractSet[str]) -> None:
        """Ask other members from time to time."""
        local = self._local
        if local.now_ms - self._asked_ms < local.settings.retry_ms:
            return
        self._asked_ms = local.now_ms
        self._round = local.next_serial()
        for member in sorted(members - {local.name}):
            local.emit(Send(member, Ask(local.epoch, self._round)))

    def fresh(self, members: AbstractSet[str]) -> dict[str, Position]:
        """Return the answers of members that are not too old."""
        oldest_ms = self._local.now_ms - self._local.settings.replica_timeout_ms
        return {
            name: position
            for name, (position, arrived_ms) in self._answers.items()
            if arrived_ms >= oldest_ms and name in members
        }
