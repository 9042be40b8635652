"""How far transactions are settled on the disk: the stated progress, and what retention must keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from delaymq.broker.delivery.durable_value import DurableValue
from delaymq.broker.transactions.ledger import Ledger

if TYPE_CHECKING:
    from delaymq.store.message_store import MessageStore


class _Moment(NamedTuple):
    half: int
    """Queue offset below which no half message is unsettled."""
    op: int
    oldest: int | None
    """Physical offset of the oldest unsettled half message."""


class TransactionProgress:
    """What held when the log ended where it is flushed to: a loss of power must not take a copy that was counted on."""

    def __init__(self, ledger: Ledger, store: MessageStore, stated_half: int | None, stated_op: int | None) -> None:
        self._ledger = ledger
        self._stated = (stated_half, stated_op)
        self._oldest_at_start = self._now().oldest
        self._as_on_disk: DurableValue[_Moment | None] = DurableValue(store, self._now, None)

    def progress(self) -> tuple[int | None, int | None]:
        """Consumer offsets of CID_RMQ_SYS_TRANS in the half topic and in the op topic; None: not known yet."""
        moment = self._as_on_disk.advance()
        return self._stated if moment is None else (moment.half, moment.op)

    def oldest(self) -> int | None:
        """The pin; None when nothing holds anything."""
        moment = self._as_on_disk.advance()
        return self._oldest_at_start if moment is None else moment.oldest

    def _now(self) -> _Moment:
        ledger = self._ledger
        first = ledger.pending.first()
        # A half message whose op mark is missing would look unsettled to RocketMQ.
        half = min([first[0] if first is not None else ledger.half_end, *ledger.unmarked.values()])
        done = first is None and not ledger.unmarked
        op = ledger.op_progress.low(half, ledger.op_end, all_settled=done)
        return _Moment(half, op, first[1] if first is not None else None)
