"""Judgement of a history by the final log, in one pass over its bytes. No code is shared with the broker."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.commitlog import Record, delays_ms, due_ms, held_by, records
from replication.history import TOPIC, Cancel, History, Kind, Outcome, Send, is_committed

HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_BITS, COMMITTED = 12, 8
EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class Lateness:
    """Delivery of a delayed message: its due time, and the delay of its copy after it."""

    due_ms: int
    late_ms: int


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Counts, and violations by kind; a violation is shown as a key or a position."""

    counts: dict[str, int]
    breaches: dict[str, list[str]]
    """Without kinds that did not occur."""
    lost: list[Send]
    """Acknowledged sends without effect; they are also breaches."""
    deliveries: list[Lateness]

    def late_ms(self, from_ms: int, until_ms: int) -> int:
        """Return the largest lateness of the messages that came due in a period; 0 without one."""
        return max((each.late_ms for each in self.deliveries if from_ms <= each.due_ms < until_ms), default=0)

    def text(self) -> str:
        """Return the counts, then examples of each kind of violation."""
        counts = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        examples = [f"{name}: {len(keys)}, {', '.join(keys[:EXAMPLES])}" for name, keys in self.breaches.items()]
        return "; ".join([counts, *(examples or ["no breach"])])


@dataclass
class _Log:
    """What the log contains about the messages of a history."""

    copies: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    """Records of the topic, by key."""
    stored: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    """First records of delayed messages, by key."""
    due: dict[str, int] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    halves: dict[str, int] = field(default_factory=dict)
    """Queue offsets of half messages."""
    settled: set[int] = field(default_factory=set)
    """Queue offsets of half messages that op marks name."""
    at: dict[int, str] = field(default_factory=dict)
    """Keys of the records at the places that responses stated."""
    ends: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Number of messages of each queue."""
    breaches: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def judge(
    history: History,
    store_path: Path,
    level_table: str,
    *,
    has_one_clock: bool = True,
    until_ms: int = 1 << 62,
) -> Verdict:
    """Compare a history with the log of any member, after all of them have stopped.

    Stored messages that are due at `until_ms` or later may be pending.
    Without `has_one_clock`, delays are judged by the times of the log alone. BadLogError if the log is damaged.
    """
    log = _read(history, store_path, level_table)
    breaches = log.breaches
    known = {send.key: send for send in history.sends}
    cancels = {cancel.key: cancel for cancel in history.cancels}
    lost = [send for send in history.sends if send.outcome is Outcome.DONE and _is_lost(send, log, until_ms)]
    breaches["lost"] = [send.key for send in lost]
    breaches["duplicated"] = [key for key, found in log.copies.items() if len(found) > 1]
    breaches["stored twice"] = [key for key, found in log.stored.items() if len(found) > 1]
    breaches["phantom"] = [key for key in log.copies.keys() | log.stored.keys() | log.halves.keys() if key not in known]
    breaches["refused, but stored"] = [
        send.key for send in history.sends
        if send.outcome is Outcome.REFUSED and (send.key in log.copies or send.key in log.stored)
    ]  # fmt: skip
    breaches["early"] = [key for key, found in log.copies.items() if key in known and _is_early(
        known[key], found, log.due.get(key, 0), has_one_clock)]  # fmt: skip
    breaches["stored elsewhere than acknowledged"] = [
        operation.key for operation in history.stored
        if operation.outcome is Outcome.DONE and operation.place >= 0 and log.at.get(operation.place) != operation.key
    ]  # fmt: skip
    _judge_cancels(cancels, log)
    _judge_transactions(history, known, log)
    _judge_order(history, known, log)
    _judge_consumers(history, log)
    return Verdict(
        counts={
            **Counter(f"{send.outcome.value} sends" for send in history.sends),
            **Counter(f"{cancel.outcome.value} cancels" for cancel in history.cancels),
            "delayed": len(log.stored),
            "cancelled": len(log.cancelled),
            "transactions": len(log.halves),
            "read": sum(map(len, history.seen.values())),
            "committed offsets": history.commits,
            "responses of replicas": history.read_from_replicas,
        },
        breaches={name: found for name, found in breaches.items() if found},
        lost=lost,
        deliveries=[
            Lateness(due_ms=log.due[key], late_ms=found[0].stored_ms - log.due[key])
            for key, found in log.copies.items() if key in log.due
        ],
    )  # fmt: skip


def without(history: History, is_gone: Callable[[Send | Cancel], bool]) -> History:
    """Return the history with requests of which nothing may be expected, as if they had no response.

    The same applies to the ends of such transactions.
    """
    gone = {send.key for send in history.sends if is_gone(send)}
    return History(
        sends=[_doubted(send) if send.key in gone else send for send in history.sends],
        cancels=[Cancel(key=each.key, outcome=Outcome.UNKNOWN) if is_gone(each) else each for each in history.cancels],
        ends=[replace(end, outcome=Outcome.UNKNOWN) if end.key in gone else end for end in history.ends],
        seen=history.seen,
        offsets=history.offsets,
        commits=history.commits,
        read_from_replicas=history.read_from_replicas,
        moved=history.moved,
    )


def _doubted(send: Send) -> Send:
    return replace(send, outcome=Outcome.UNKNOWN, place=-1, queue_offset=-1)


def _read(history: History, store_path: Path, level_table: str) -> _Log:
    log, levels_ms = _Log(), delays_ms(level_table)
    places = {operation.place for operation in history.stored}
    seen = {record.physical_offset: record for found in history.seen.values() for record in found}
    for record in records(store_path, with_bodies=True):
        key, place = record.unique_key, record.physical_offset
        if place in places:
            log.at[place] = key
        if place in seen and seen.pop(place) != record:
            log.breaches["changed after it was read"].append(f"{key} at {place}")
        if record.sys_flag & TRANSACTION_BITS in (0, COMMITTED):
            queue = record.topic, record.queue_id
            if record.queue_offset != log.ends[queue]:
                log.breaches["queue offset"].append(f"{queue} at {place}: {record.queue_offset}, not {log.ends[queue]}")
            log.ends[queue] = record.queue_offset + 1
        if ":cancelled:" in record.properties.get("__DMQ_MARK", ""):
            log.cancelled.add(key)
        if record.topic == TOPIC:
            log.copies[key].append(record)
        elif record.topic == HALF_TOPIC:
            log.halves[key] = record.queue_offset
        elif record.topic == OP_TOPIC:
            log.settled.update(int(word) for word in record.body.decode().split(",") if word)
        elif record.is_scheduled and ":carried:" not in record.properties.get("__DMQ_MARK", ""):
            log.stored[key].append(record)
            log.due[key] = due_ms(record, levels_ms)
        elif record.is_timed:
            held = held_by(record)
            if held is not None and held.identity == place:
                log.stored[key].append(record)
                log.due[key] = held.due_ms
    log.breaches["read, but gone"] = [f"{record.unique_key} at {place}" for place, record in seen.items()]
    return log


def _is_lost(send: Send, log: _Log, until_ms: int) -> bool:
    if send.kind is Kind.HALF:
        return send.key not in log.halves
    return send.key not in log.copies and send.key not in log.cancelled and log.due.get(send.key, 0) < until_ms


def _is_early(send: Send, copies: list[Record], due: int, has_one_clock: bool) -> bool:
    earliest_ms = max(due, send.asked_ms + send.delay_ms) if has_one_clock else due
    return any(copy.stored_ms < earliest_ms for copy in copies)


def _judge_cancels(cancels: dict[str, Cancel], log: _Log) -> None:
    breaches = log.breaches
    for key, cancel in cancels.items():
        if cancel.outcome is Outcome.DONE and key in log.copies:
            breaches["delivered after a cancel"].append(key)
        if cancel.outcome is Outcome.DONE and key not in log.cancelled:
            breaches["lost cancel"].append(key)
        if cancel.outcome is Outcome.REFUSED and key in log.cancelled:
            breaches["refused, but cancelled"].append(key)
    breaches["cancelled without a request"] = sorted(log.cancelled - cancels.keys())
    breaches["cancelled and delivered"] = sorted(log.cancelled & log.copies.keys())


def _judge_transactions(history: History, known: dict[str, Send], log: _Log) -> None:
    breaches = log.breaches
    asked = {end.key for end in history.ends}
    halves = {key for key, send in known.items() if send.kind is Kind.HALF}
    breaches["committed against the producer's will"] = [
        key for key in halves if key in log.copies and not (is_committed(key) and key in asked)
    ]  # fmt: skip
    breaches["lost commit"] = [
        end.key for end in history.ends
        if end.outcome is Outcome.DONE and end.is_commit and end.key not in log.copies
    ]  # fmt: skip
    breaches["unsettled"] = [
        key for key, queue_offset in log.halves.items() if queue_offset not in log.settled and key in known
    ]  # fmt: skip


def _judge_order(history: History, known: dict[str, Send], log: _Log) -> None:
    """A plain message that was sent after another one was acknowledged follows it in their queue."""
    newest_s: dict[int, float] = defaultdict(float)
    plain = [(found[0].physical_offset, found[0], known[key]) for key, found in log.copies.items() if key in known]
    plain.sort(key=lambda each: each[0])
    for _, record, send in plain:
        if send.kind is not Kind.PLAIN or send.outcome is not Outcome.DONE:
            continue
        if send.answered_s < newest_s[record.queue_id]:
            log.breaches["order"].append(send.key)
        if (send.queue_id, send.queue_offset) != (record.queue_id, record.queue_offset):
            log.breaches["another queue offset than acknowledged"].append(send.key)
        newest_s[record.queue_id] = max(newest_s[record.queue_id], send.asked_s)


def _judge_consumers(history: History, log: _Log) -> None:
    breaches = log.breaches
    breaches["committed offset"] = list(history.offsets)
    breaches["position beyond the end of a queue"] = [moved.text for moved in history.moved]
    for queue_id, found in history.seen.items():
        for expected, record in enumerate(found):
            if record.queue_offset != expected:
                breaches["skipped or repeated for the consumer"].append(f"queue {queue_id} at {expected}")
                break
        unread = log.ends[TOPIC, queue_id] - len(found)
        if unread:
            breaches["unread"].append(f"queue {queue_id}: {unread}")
