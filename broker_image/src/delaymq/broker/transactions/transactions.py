"""The transactions of a broker: the observer of its store, and what its requests and timers call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from delaymq.broker.requests.errors import no_permission
from delaymq.broker.transactions.check_service import CheckService, CheckSettings
from delaymq.broker.transactions.end_transaction import EndResult, EndTransaction
from delaymq.broker.transactions.ledger import Ledger
from delaymq.broker.transactions.progress import TransactionProgress
from delaymq.broker.transactions.records import make_half
from delaymq.broker.transactions.recovery import finish
from delaymq.message import names
from delaymq.message.record import Record

if TYPE_CHECKING:
    from delaymq.broker.delivery.delay_rewrite import DelayIngress
    from delaymq.broker.groups.consumer_offsets import OffsetTable
    from delaymq.broker.topics import Topics
    from delaymq.broker.transactions.producers import Producers
    from delaymq.store.message_store import MessageStore

PROGRESS_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""Its consumer offsets in both topics say up to where everything is settled."""
# Op marks that an append failed for, tried again in one call.
_MARKS_AT_ONCE: Final = 64


class TransactionSettings(CheckSettings, Protocol):
    """The part of the broker's configuration that transactions need."""

    @property
    def reject_transaction_message(self) -> bool:
        """Whether half messages are refused."""

    @property
    def broker_ip1(self) -> str:
        """Named in refusals."""


@dataclass(frozen=True, slots=True)
class TransactionTotals:
    """For metrics and the console; all but `pending` count since the start."""

    pending: int
    committed: int
    rolled_back: int
    checked: int
    given_up: int


class Transactions:
    """What the end of a half message needs, once the log is replayed; the observer of the store is the ledger."""

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
        """Takes up an open store whose consumer offsets are read: decides what the ledger's replay left open.

        `store_host` is the broker's address, packed. `on_committed` is called with topic, queue and size of each copy
        that makes a message visible.
        """
        self.settings = settings
        self.ledger = ledger
        self.committed = 0
        self.rolled_back = 0
        self._now_ms = now_ms
        self._topics = topics
        self._offsets = offsets
        half = offsets.get(names.HALF_TOPIC, PROGRESS_GROUP, 0)
        op = offsets.get(names.OP_HALF_TOPIC, PROGRESS_GROUP, 0)
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
        """Takes a changed configuration."""
        self.settings = settings
        self.ledger.timeout_ms = settings.transaction_time_out

    # Sends

    def prepare(
        self, properties: dict[str, str], topic: str, queue_id: int, *, delayed: bool = False
    ) -> tuple[str, int, dict[str, str]]:
        """Topic, queue and properties under which a half message is stored; RequestError when it is refused."""
        if self.settings.reject_transaction_message:
            raise no_permission(f"the broker[{self.settings.broker_ip1}] sending transaction message is forbidden")
        make_half(properties, topic, queue_id, delayed=delayed)
        self._make_topic(names.HALF_TOPIC)
        return names.HALF_TOPIC, 0, properties

    # The end

    def commit(self, record: Record) -> EndResult:
        """Commits a half message. RequestError; StoreError, IllegalMessageError: nothing changed."""
        ended = self._ending.commit(record, self._now_ms())
        self.committed += ended is EndResult.COMMITTED
        return ended

    def roll_back(self, record: Record) -> EndResult:
        """Rolls a half message back. RequestError; StoreError: nothing changed."""
        ended = self._ending.roll_back(record, self._now_ms())
        self.rolled_back += ended is EndResult.ROLLED_BACK
        return ended

    def resume(self, record: Record) -> bool:
        """Has producers asked about a half message again from the first time on; False when it has ended.

        `record` is the half message, or its copy among the given up.
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
        """A given-up copy that was asked about again already; or RocketMQ's, which says nothing of its half message."""
        for half in self._ending.of_same_message(names.HALF_TOPIC, record):
            if self._recheck(half.physical_offset):
                return True
        if record.prepared_transaction_offset or self._ending.is_committed(record, by_any=True):
            return False
        self._ending.resume(record, record.physical_offset)
        return True

    def _recheck(self, physical_offset: int) -> bool:
        """Forgets how often was asked about an unsettled half message; False when it is none."""
        found = self.ledger.pending.find(physical_offset)
        if found is None:
            return False
        chunk, index = found
        chunk.checks[index] = 0
        return True

    # Timers

    def check(self, now_ms: int, budget: int) -> int:
        """Asks producers about at most `budget` half messages; how many were asked about or given up.

        Keeps its own rounds (transactionCheckInterval): to be called some times a second. Call again at once while it
        answers `budget`, but let others run in between.
        """
        if self.ledger.unmarked:
            for place in list(self.ledger.unmarked)[:_MARKS_AT_ONCE]:
                self._ending.mark(place, now_ms)
        return self._checking.run(now_ms, budget)

    def state_progress(self) -> None:
        """Has consumerOffset.json say how far everything is settled, as RocketMQ's check-back reads it."""
        if not (self.ledger.half_end or self.ledger.op_end):
            return
        offsets = self._offsets
        for topic, offset in zip((names.HALF_TOPIC, names.OP_HALF_TOPIC), self._kept.progress(), strict=True):
            # Whatever a client committed for this group: only what is settled counts.
            if offset is not None and offsets.get(topic, PROGRESS_GROUP, 0) != offset:
                offsets.commit(topic, PROGRESS_GROUP, 0, offset, own=True)

    def pin(self) -> int | None:
        """Oldest physical offset that unsettled half messages, or copies not yet on the disk, still need."""
        return self._kept.oldest()

    # Figures

    def totals(self) -> TransactionTotals:
        """How many are pending, and what became of the others."""
        counters = self._checking.counters
        pending = len(self.ledger.pending)
        return TransactionTotals(pending, self.committed, self.rolled_back, counters.checked, counters.given_up)

    def _make_topic(self, topic: str) -> None:
        if topic not in self._topics.table:
            self._topics.create_for_group(topic, 1, own=True)
