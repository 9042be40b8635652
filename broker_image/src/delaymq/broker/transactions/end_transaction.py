"""End of transactions: at most one copy, followed by the op mark, whatever fails in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from delaymq.broker.delivery.delay_rewrite import requested_level
from delaymq.broker.delivery.settlement import real_queue_id
from delaymq.broker.requests.errors import system_error
from delaymq.broker.transactions.ledger import Ledger
from delaymq.broker.transactions.records import (
    checks_of,
    committed_copy,
    given_up_copy,
    make_committed,
    op_mark,
    resumed_half,
)
from delaymq.message import names
from delaymq.message.errors import RecordError
from delaymq.message.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from delaymq.message.record import MAX_HEAD_BYTES, Record, decode_transaction
from delaymq.store.model import Dispatched, NewRecord

if TYPE_CHECKING:
    from delaymq.broker.delivery.delay_rewrite import DelayIngress
    from delaymq.store.message_store import MessageStore

_MAX_EXAMINED: Final = 64
"""Records with one unique key that are examined to find a committed copy. More of them are a flood of equal keys."""


class EndResult(Enum):
    """Outcome of ending a transaction."""

    COMMITTED = auto()
    ROLLED_BACK = auto()
    AGAIN = auto()
    """The transaction had already ended in this way."""


class EndTransaction:
    """Appends the records that end a transaction. A record in the log counts even if its append raised afterwards."""

    def __init__(
        self,
        ledger: Ledger,
        store: MessageStore,
        ingress: DelayIngress,
        store_host: bytes,
        on_committed: Callable[[str, int, int], None],
    ) -> None:
        """Create the service.

        `store_host` is the broker's address, as RocketMQ writes it into op marks. `on_committed` is called with topic,
        queue and size of each copy that makes a message visible.
        """
        self._ledger = ledger
        self._store = store
        self._ingress = ingress
        self._store_host = store_host
        self._on_committed = on_committed

    def commit(self, record: Record, properties: dict[str, str], now_ms: int) -> EndResult:
        """Commit a half message: make its message visible, once. Raises RequestError if this is not possible.

        `properties` are those of `record`, and may be changed. On StoreError and IllegalMessageError, nothing else has
        changed.
        """
        place = record.physical_offset
        found = self._ledger.pending.find(place)
        if found is None and place not in self._ledger.given_up:
            if self.is_committed(record):
                return EndResult.AGAIN
            raise system_error("The transaction has already been rolled back or given up")
        checks = found[0].checks[found[1]] if found is not None else 0
        account = properties.get(names.ACCOUNT, "")
        is_changed = make_committed(properties, max(checks, checks_of(properties)))
        topic, queue_id = properties.get(names.REAL_TOPIC, ""), real_queue_id(properties)
        if names.topic_problem(topic) is not None or topic in names.CLOSED_TO_CLIENTS or queue_id < 0:
            raise system_error("The half message names no valid topic for its commit")
        # The schedule was checked when the half message arrived. A level table or a limit that became shorter must not
        # fail the commit. A relative delay counts from now.
        level, statement = requested_level(properties), None
        due_ms = self._ingress.requested_time(properties, level, is_commit=True)
        if due_ms is not None:
            properties.pop(names.DELAY_ON_SAME_KEY, None)  # a commit must not fail, so it replaces
            statement = self._ingress.prepare_timed(properties, topic, queue_id, due_ms, account, is_commit=True)
            topic, queue_id = names.TIMER_TOPIC, 0
        elif level > 0:
            topic, queue_id, properties = self._ingress.prepare(properties, topic, queue_id, level, account, retry=True)
        is_changed = is_changed or due_ms is not None or level > 0
        property_bytes = None if is_changed else record.raw_properties
        appended = self._append(committed_copy(record, properties, topic, queue_id, statement, property_bytes))
        if appended is None:
            self._ledger.committed(place)  # the ledger may not have seen the copy
        else:
            self._on_committed(topic, queue_id, appended.size)
        self.mark(place, now_ms)
        return EndResult.COMMITTED

    def roll_back(self, record: Record, now_ms: int) -> EndResult:
        """Roll a half message back. Raises RequestError if it was committed."""
        place = record.physical_offset
        if not self._is_open(place):
            if self.is_committed(record):
                raise system_error("The transaction has already been committed")
            return EndResult.AGAIN
        self._append(op_mark(record.queue_offset, place, now_ms, self._store_host, copied=False))
        self._ledger.rolled_back(place)
        return EndResult.ROLLED_BACK

    def give_up(self, record: Record, checks: int, now_ms: int) -> None:
        """Give up a half message: move it to the topic of half messages that are no longer checked."""
        self._append(given_up_copy(record, checks))
        self._ledger.gave_up(record.physical_offset)
        self.mark(record.physical_offset, now_ms)

    def resume(self, record: Record, predecessor: int) -> None:
        """Store a given-up half message again, so that it is checked again."""
        self._append(resumed_half(record, predecessor))
        self._ledger.given_up.pop(predecessor, None)

    def mark(self, place: int, now_ms: int) -> None:
        """Write the op mark of a settled half message. If this fails, it is retried later."""
        offset = self._ledger.unmarked.get(place)
        if offset is None:
            return
        try:
            self._append(op_mark(offset, place, now_ms, self._store_host, copied=True))
        except Exception:
            return  # the copy is the proof; only RocketMQ's broker depends on the mark
        self._ledger.unmarked.pop(place, None)

    def _is_open(self, place: int) -> bool:
        return self._ledger.pending.find(place) is not None or place in self._ledger.given_up

    def is_committed(self, record: Record, *, by_any: bool = False) -> bool:
        """Return whether the log has a committed copy of a half message, according to the key index.

        With `by_any`, a copy of another half message of the same transaction counts too, which RocketMQ appended at a
        check.
        """
        topics = record.properties.get(names.REAL_TOPIC, ""), names.SCHEDULE_TOPIC, names.TIMER_TOPIC
        return any(
            self._is_copy(place, record, by_any=by_any) for topic in topics for place in self._indexed(topic, record)
        )

    def _is_copy(self, place: int, record: Record, *, by_any: bool) -> bool:
        # Read only the head: bodies of megabytes under one key would cost a tenth of a second each time.
        try:
            body_crc, sys_flag, prepared = decode_transaction(self._store.read_bytes(place, MAX_HEAD_BYTES))
        except RecordError:
            return False
        committed = body_crc == record.body_crc and sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
        return committed and (by_any or prepared == record.physical_offset)

    def of_same_message(self, topic: str, record: Record) -> Iterator[Record]:
        """Yield the records of a topic with the unique key and the body of `record`, the newest first."""
        for place in self._indexed(topic, record):
            found = self._store.record_at(place)
            if found is not None and found.body_crc == record.body_crc:
                yield found

    def _indexed(self, topic: str, record: Record) -> list[int]:
        unique_key = record.properties.get(names.UNIQUE_KEY)
        return self._store.query_index(topic, unique_key, _MAX_EXAMINED, 0, 1 << 62) if unique_key else []

    def _append(self, message: NewRecord) -> Dispatched | None:
        """Append a record. Returns None if the append raised although the record is in the log."""
        last_before = self._store.last_offset
        try:
            return self._store.append(message)
        except Exception:
            if self._store.last_offset != last_before:
                return None
            raise
