"""End of a replay: decisions about half messages that need an open store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from delaymq.broker.transactions.ledger import Ledger, OpProgress
from delaymq.broker.transactions.pending import PendingHalves
from delaymq.message import names
from delaymq.message.record import Record
from delaymq.store.consume_queue import BLANK_SIZE, ENTRY

if TYPE_CHECKING:
    from delaymq.store.message_store import MessageStore

_ENTRIES_AT_ONCE: Final = 4_096

_logger = logging.getLogger(__name__)


def finish(ledger: Ledger, store: MessageStore, stated_half: int | None, stated_op: int | None) -> None:
    """Load the snapshot's half messages, decide open cases of the replay, and drop those below the stored progress.

    `stated_half` and `stated_op` are the consumer offsets of CID_RMQ_SYS_TRANS. RocketMQ appends a half message again
    at each check, and only its progress shows that the older one is obsolete.
    """
    _load_stated_runs(ledger, store, stated_op)
    ledger.replaying = False
    for physical_offset in ledger.copies_before:
        ledger.committed(physical_offset)
    for physical_offset in ledger.given_up_before:
        ledger.gave_up(physical_offset)
    for physical_offset in ledger.completed_before:
        ledger.unmarked.pop(physical_offset, None)
    for physical_offset in ledger.rolled_back_before:
        ledger.rolled_back(physical_offset)
    for physical_offset in ledger.unread_marks:
        take_mark(ledger, store.record_at(physical_offset))
    settle_stated(ledger, store, stated_half, stated_op)


def settle_stated(ledger: Ledger, store: MessageStore, stated_half: int | None, stated_op: int | None) -> None:
    """Drop the half messages below the stored progress, and those that RocketMQ replaced by newer ones."""
    first, end = store.stored_bounds(names.HALF_TOPIC, 0)
    ledger.half_end = max(ledger.half_end, end)
    dropped = _drop_below(ledger.pending, stated_half if stated_half is not None and stated_half <= end else first)
    if dropped:
        _logger.info(
            "another broker has already processed %d half messages (they are below its position): they are not checked"
            " again",
            dropped,
        )
    for physical_offset, offset in list(ledger.unmarked.items()):
        if offset < (stated_half if stated_half is not None and stated_half <= end else first):
            del ledger.unmarked[physical_offset]  # nothing reads this mark
    drop_superseded(ledger, store)
    _forget(ledger)
    _start_op_progress(ledger, store, stated_op)


def _start_op_progress(ledger: Ledger, store: MessageStore, stated_op: int | None) -> None:
    first, end = store.stored_bounds(names.OP_HALF_TOPIC, 0)
    ledger.op_end = end
    ledger.op_progress = OpProgress(stated_op if stated_op is not None and first <= stated_op <= end else first)
    if end > first:
        ledger.op_progress.advance(end - 1, ledger.half_end)


def _forget(ledger: Ledger) -> None:
    ledger.told_runs = []
    ledger.told_last = -1
    for numbers in (
        ledger.copies_before,
        ledger.completed_before,
        ledger.rolled_back_before,
        ledger.given_up_before,
    ):
        del numbers[:]
    del ledger.unread_marks[:], ledger.stored_anew[:]


def _load_stated_runs(ledger: Ledger, store: MessageStore, stated_op: int | None) -> None:
    """Load the half messages that were pending in the snapshot, before those that the replay added."""
    if not ledger.told_runs:
        return
    loaded = PendingHalves()
    for first, end, checks in ledger.told_runs:
        for offset, physical_offset in _entries(store, names.HALF_TOPIC, first, end):
            loaded.add(offset, physical_offset, checks=checks)
    if ledger.told_up_to is not None:
        _load_unstated(ledger, loaded, store, ledger.told_up_to, stated_op)
    for chunk in ledger.pending.chunks:
        for values in zip(chunk.offsets, chunk.physical_offsets, chunk.due_s, chunk.groups, chunk.checks, strict=True):
            loaded.add(*values)
    ledger.pending = loaded


def _load_unstated(
    ledger: Ledger, loaded: PendingHalves, store: MessageStore, first: int, stated_op: int | None
) -> None:
    """Load half messages that exceeded the ranges of the snapshot. The op marks show which of them are settled."""
    settled = set(ledger.unmarked.values())
    first_op, op_end = store.stored_bounds(names.OP_HALF_TOPIC, 0)
    for _, physical_offset in _entries(store, names.OP_HALF_TOPIC, max(first_op, stated_op or 0), op_end):
        offset = _named(store.record_at(physical_offset))
        if offset is not None and offset >= first:
            settled.add(offset)
    for offset, physical_offset in _entries(
        store, names.HALF_TOPIC, first, store.stored_bounds(names.HALF_TOPIC, 0)[1]
    ):
        if physical_offset > ledger.told_last:
            break
        if offset not in settled:
            loaded.add(offset, physical_offset)


def take_mark(ledger: Ledger, record: Record | None) -> None:
    """Apply an op mark that names its half message only in its body."""
    offset = _named(record)
    if offset is None or ledger.pending.settle_offset(offset) is not None:
        return
    for settled in (ledger.unmarked, ledger.given_up):
        for physical_offset, known in settled.items():
            if known == offset:
                del settled[physical_offset]
                return


def _named(record: Record | None) -> int | None:
    if record is None or record.topic != names.OP_HALF_TOPIC or not record.body[:20].isdigit():
        return None
    return int(record.body[:20])


def _drop_below(pending: PendingHalves, offset: int) -> int:
    count = 0
    while (first := pending.first()) is not None and first[0] < offset:
        pending.settle_offset(first[0])
        count += 1
    return count


def drop_superseded(ledger: Ledger, store: MessageStore) -> None:
    """Keep only the newest of several half messages that RocketMQ stored for one transaction.

    RocketMQ was killed before it stored its progress. It would check all of them, and each response would create a
    copy.
    """
    anew = {offset for offset in ledger.stored_anew if offset >= (ledger.pending.first() or (0, 0))[0]}
    if not anew:
        return
    newest: dict[tuple[str, int], int] = {}
    superseded = []
    for chunk in ledger.pending.chunks:
        for offset, physical_offset in zip(chunk.offsets, chunk.physical_offsets, strict=True):
            record = store.record_at(physical_offset)
            unique_key = record.properties.get(names.UNIQUE_KEY) if record is not None else None
            if record is None or unique_key is None:
                continue
            identity = (unique_key, record.body_crc)
            if offset in anew and identity in newest:
                superseded.append(newest[identity])
            newest[identity] = offset
    for offset in superseded:
        physical = ledger.pending.settle_offset(offset)
        if physical is not None:
            ledger.unmarked[physical] = offset
    del ledger.stored_anew[:]


def _entries(store: MessageStore, topic: str, offset: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield queue offset and physical offset of the entries of queue 0 whose records exist."""
    first, last = store.stored_bounds(topic, 0)
    offset, end = max(offset, first), min(end, last)
    while offset < end and (entries := store.read_entries(topic, 0, offset, min(end - offset, _ENTRIES_AT_ONCE))):
        for physical_offset, size, _ in ENTRY.iter_unpack(entries):
            if 0 < size < BLANK_SIZE and physical_offset >= store.min_offset:
                yield offset, physical_offset
            offset += 1
