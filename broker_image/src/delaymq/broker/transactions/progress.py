"""Durable progress of settled transactions: the stored consumer offsets, and the retention pin."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from delaymq.broker.delivery.durable_value import DurableValue
from delaymq.broker.transactions.ledger import Ledger

if TYPE_CHECKING:
    from delaymq.store.message_store import MessageStore


class _Moment(NamedTuple):
    half: int
    """Queue offset below which all half messages are settled."""
    op: int
    oldest: int | None
    """Physical offset of the oldest unsettled half message."""


class TransactionProgress:
    """Progress as of the flushed end of the log, so that it never covers a copy that a loss of power could remove."""

    def __init__(self, ledger: Ledger, store: MessageStore, stated_half: int | None, stated_op: int | None) -> None:
        self._ledger = ledger
        self._stated = (stated_half, stated_op)
        self._oldest_at_start = self._now().oldest
        self._as_on_disk: DurableValue[_Moment | None] = DurableValue(store, self._now, None)

    def progress(self) -> tuple[int | None, int | None]:
        """Return the consumer offsets of CID_RMQ_SYS_TRANS in the half topic and the op topic; None if unknown."""
        moment = self._as_on_disk.advance()
        return self._stated if moment is None else (moment.half, moment.op)

    def oldest(self) -> int | None:
        """Return the retention pin; None if nothing is pinned."""
        moment = self._as_on_disk.advance()
        return self._oldest_at_start if moment is None else moment.oldest

    def _now(self) -> _Moment:
        ledger = self._ledger
        first = ledger.pending.first()
        # For RocketMQ, a half message without its op mark is unsettled.
        half = min([first[0] if first is not None else ledger.half_end, *ledger.unmarked.values()])
        done = first is None and not ledger.unmarked
        op = ledger.op_progress.low(half, ledger.op_end, all_settled=done)
        return _Moment(half, op, first[1] if first is not None else None)
