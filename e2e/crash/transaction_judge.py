"""Outcome of a run's transactions, according to the store's log and to a new consumer group."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from crash.transaction_load import TOPIC, Told, is_committed
from harness.commitlog import records

HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
COMMIT_BIT, TRANSACTION_BITS = 8, 12


@dataclass(frozen=True, kw_only=True)
class TransactionVerdict:
    """Keys of transactions with another outcome than intended; all empty if everything is correct."""

    lost: tuple[str, ...]
    """Acknowledged half messages that are not in the log."""
    never_seen: tuple[str, ...]
    """To be committed, but missing in their topic."""
    twice: tuple[str, ...]
    """Several times in their topic."""
    wrongly_seen: tuple[str, ...]
    """Rolled back or unknown, but in their topic."""
    read_otherwise: tuple[str, ...]
    """Messages read by the consumer that differ from those in the log."""
    unsettled: tuple[str, ...]
    """Half messages that no op mark settles."""
    halves: int
    committed: int

    @property
    def is_clean(self) -> bool:
        return not (
            self.lost or self.never_seen or self.twice or self.wrongly_seen or self.read_otherwise or self.unsettled
        )

    def text(self) -> str:
        named = ("lost", "never_seen", "twice", "wrongly_seen", "read_otherwise", "unsettled")
        breaches = [f"{name}: {len(keys)} {list(keys[:5])}" for name in named if (keys := getattr(self, name))]
        return f"{self.halves} half messages, {self.committed} committed; {'; '.join(breaches) or 'no breach'}"


def judge_transactions(store_path: Path, told: Told, read_keys: Counter[str] | None) -> TransactionVerdict:
    """Compare the log and the read messages, unless they are None, with the responses to the producers."""
    halves: dict[str, int] = {}
    copies: Counter[str] = Counter()
    marked = set()
    for record in records(store_path, with_bodies=True):
        if record.topic == HALF_TOPIC:
            halves[record.unique_key] = record.queue_offset
        elif record.topic == OP_TOPIC:
            marked.add(int(record.body))
        elif record.topic == TOPIC:
            copies[record.unique_key] += 1
            assert record.sys_flag & TRANSACTION_BITS == COMMIT_BIT, record
    read_keys = copies if read_keys is None else read_keys
    committed = {key for key in halves if is_committed(key)}
    return TransactionVerdict(
        lost=_sorted(told.acknowledged - halves.keys()),
        never_seen=_sorted(committed - copies.keys()),
        twice=_sorted({key for key, count in copies.items() if count > 1}),
        wrongly_seen=_sorted(copies.keys() - committed),
        read_otherwise=_sorted({key for key in copies.keys() | read_keys.keys() if copies[key] != read_keys[key]}),
        unsettled=_sorted({key for key, offset in halves.items() if offset not in marked}),
        halves=len(halves),
        committed=len(copies),
    )


def _sorted(keys: set[str]) -> tuple[str, ...]:
    return tuple(sorted(keys))
