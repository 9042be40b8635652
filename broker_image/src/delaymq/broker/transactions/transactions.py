"""Transactions of a broker: entry points for its requests and timers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from delaymq.broker.requests.errors import no_permission
from delaymq.broker.transactions.check_service import CheckService, CheckSettings
from delaymq.broker.transactions.end_transaction import EndResult, EndTransaction
from delaymq.broker.transactions.ledger import Ledger
from delaymq.broker.transactions.progress import TransactionProgress
from delaymq.broker.transactions.records import CHECK_ROOM_BYTES, make_half
from delaymq.broker.transactions.recovery import drop_superseded, finish, settle_stated, take_mark
from delaymq.message import names
from delaymq.message.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from delaymq.message.record import Record

if TYPE_CHECKING:
    from delaymq.broker.delivery.delay_rewrite import DelayIngress
    from delaymq.broker.groups.consumer_offsets import OffsetTable
    from delaymq.broker.topics import Topics
    from delaymq.broker.transactions.producers import Producers
    from delaymq.store.message_store import MessageStore
    from delaymq.store.plain_runs import TransactionStep

PROGRESS_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""Group whose consumer offsets in both topics state the settled progress."""
_MARKS_AT_ONCE: Final = 64
"""Op marks whose append failed that are retried in one call."""


class TransactionSettings(CheckSettings, Protocol):
    """Settings of transactions."""

    @property
    def reject_transaction_message(self) -> bool:
        """Whether half messages are rejected."""

    @property
    def broker_ip1(self) -> str:
        """Address for error texts."""


@dataclass(frozen=True, slots=True)
class TransactionTotals:
    """Totals for metrics and the console. All but `pending` count since the start."""

    pending: int
    committed: int
    rolled_back: int
    checked: int
    given_up: int


class Transactions:
    """Transactions after the replay of the log. The ledger is the store's observer."""

    def __init__(
        self,
        store: MessageStore,
        ledger: Ledger,
        settings: TransactionSettings,
        now_ms: Callable[[], int],
        topics: Topics,
        offsets: OffsetTable,
        ingress: DelayIngress,
        producers: Producers,
        store_host: bytes,
        on_committed: Callable[[str, int, int], None],
    ) -> None:
        """Take over an open store after its consumer offsets are loaded, and decide the replay's open cases.

        `store_host` is the broker's address, packed. `on_committed` is called with topic, queue and size of each copy
        that makes a message visible.
        """
        self.settings = settings
        self.ledger = ledger
        self.committed = 0
        self.rolled_back = 0
        self.is_following = False
        """Whether another broker checks transactions, and this one only follows its log."""
        self._store = store
        self._now_ms = now_ms
        self._topics = topics
        self._ingress = ingress
        self._offsets = offsets
        half, op = self._stated()
        finish(ledger, store, half, op)
        self._ending = EndTransaction(ledger, store, ingress, store_host, on_committed)
        self._kept = TransactionProgress(ledger, store, half, op)
        self._checking = CheckService(
            ledger,
            store,
            self._ending,
            lambda: self.settings,
            producers,
            lambda: self._make_topic(names.TRANS_CHECK_MAX_TOPIC),
            now_ms,
        )

    def apply(self, settings: TransactionSettings) -> None:
        """Apply a changed configuration."""
        self.settings = settings
        self.ledger.timeout_ms = settings.transaction_time_out

    def _stated(self) -> tuple[int | None, int | None]:
        """Return the stored progress in the half topic and in the op topic."""
        offsets = self._offsets
        return offsets.get(names.HALF_TOPIC, PROGRESS_GROUP, 0), offsets.get(names.OP_HALF_TOPIC, PROGRESS_GROUP, 0)

    # Roles

    def follow(self) -> None:
        """Follow the log of another broker, and check nothing meanwhile."""
        self.is_following = True
        self.ledger.on_unread_mark = lambda place: take_mark(self.ledger, self._store.record_at(place))

    def decide(self) -> None:
        """Drop half messages that RocketMQ's master has stored again, as far as the log goes."""
        drop_superseded(self.ledger, self._store)

    def lead(self) -> None:
        """Continue as the only broker that checks transactions."""
        self.ledger.on_unread_mark = None
        settle_stated(self.ledger, self._store, *self._stated())
        self.is_following = False

    # Sends

    def prepare(self, properties: dict[str, str], topic: str, queue_id: int) -> tuple[str, int, dict[str, str]]:
        """Return topic, queue and properties of a half message for the store. Raises RequestError if it is rejected."""
        if self.settings.reject_transaction_message:
            raise no_permission(f"the broker[{self.settings.broker_ip1}] sending transaction message is forbidden")
        make_half(properties, topic, queue_id)
        self._make_topic(names.HALF_TOPIC)
        return names.HALF_TOPIC, 0, properties

    @property
    def max_half_body_bytes(self) -> int:
        """Size of the body up to which a half message without a delay is accepted whatever its properties; -1: none."""
        if self.settings.reject_transaction_message:
            return -1
        return max(self._ingress.surely_fits_bytes(CHECK_ROOM_BYTES), -1)

    # End of transactions

    def take_steps(self, steps: Sequence[TransactionStep], store_ms: int, end: int) -> None:
        """Process encoded records that store, commit and roll back half messages, up to the offset `end` in the log."""
        self.ledger.take_steps(steps, store_ms, end)
        for _, _, outcome, group in steps:
            if not group:
                self.committed += outcome == TRANSACTION_COMMIT
                self.rolled_back += outcome == TRANSACTION_ROLLBACK

    def commit(self, record: Record, properties: dict[str, str]) -> EndResult:
        """Commit a half message with its properties. On RequestError, StoreError and IllegalMessageError, nothing has
        changed.
        """
        ended = self._ending.commit(record, properties, self._now_ms())
        self.committed += ended is EndResult.COMMITTED
        return ended

    def roll_back(self, record: Record) -> EndResult:
        """Roll a half message back. On RequestError and StoreError, nothing has changed."""
        ended = self._ending.roll_back(record, self._now_ms())
        self.rolled_back += ended is EndResult.ROLLED_BACK
        return ended

    def resume(self, record: Record) -> bool:
        """Restart the checks of a half message from the first one. Returns False if its transaction has ended.

        `record` is the half message, or its given-up copy.
        """
        if record.topic == names.HALF_TOPIC:
            place = record.physical_offset
            if self._recheck(place):
                return True
        else:
            place = record.prepared_transaction_offset
        if place in self.ledger.given_up:
            self._ending.resume(record, place)
            return True
        return record.topic == names.TRANS_CHECK_MAX_TOPIC and self._resume_by_key(record)

    def _resume_by_key(self, record: Record) -> bool:
        """Resume from a given-up copy that was already resumed, or that RocketMQ wrote.

        RocketMQ's copies do not name their half message.
        """
        for half in self._ending.of_same_message(names.HALF_TOPIC, record):
            if self._recheck(half.physical_offset):
                return True
        if record.prepared_transaction_offset or self._ending.is_committed(record, by_any=True):
            return False
        self._ending.resume(record, record.physical_offset)
        return True

    def _recheck(self, physical_offset: int) -> bool:
        """Reset the number of checks of an unsettled half message. Returns False if there is none."""
        found = self.ledger.pending.find(physical_offset)
        if found is None:
            return False
        chunk, index = found
        chunk.checks[index] = 0
        return True

    # Timers

    def check(self, now_ms: int, budget: int) -> int:
        """Check at most `budget` half messages. Returns the number of those that were checked or given up.

        Keeps its own rounds (transactionCheckInterval), so call it a few times per second. While it returns `budget`,
        call it again immediately, but let other work run in between.
        """
        if self.is_following:
            return 0
        if self.ledger.unmarked:
            for place in list(self.ledger.unmarked)[:_MARKS_AT_ONCE]:
                self._ending.mark(place, now_ms)
        return self._checking.run(now_ms, budget)

    def state_progress(self) -> None:
        """Store the settled progress as consumer offsets, as RocketMQ's checks read it."""
        if self.is_following or not (self.ledger.half_end or self.ledger.op_end):
            return
        offsets = self._offsets
        for topic, offset in zip((names.HALF_TOPIC, names.OP_HALF_TOPIC), self._kept.progress(), strict=True):
            # Overrides offsets that a client committed for this group.
            if offset is not None and offsets.get(topic, PROGRESS_GROUP, 0) != offset:
                offsets.commit(topic, PROGRESS_GROUP, 0, offset, own=True)

    def pin(self) -> int | None:
        """Return the oldest physical offset that unsettled half messages, or copies not yet flushed, still need."""
        return self._kept.oldest()

    # Figures

    def totals(self) -> TransactionTotals:
        """Return the number of pending transactions and the outcomes of the others."""
        counters = self._checking.counters
        pending = len(self.ledger.pending)
        return TransactionTotals(pending, self.committed, self.rolled_back, counters.checked, counters.given_up)

    def _make_topic(self, topic: str) -> None:
        if topic not in self._topics.table:
            self._topics.create_for_group(topic, 1, own=True)
