"""Delivery of due messages by the compiled kernel `CopyEncoder` (docs/kernels.md), many with one call.

The kernel copies messages whose records are as DelayMQ wrote them, as `plain_copies` does, and stops at the first other
one. That message, and those behind it in the batch, are delivered without the kernel, so their order is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Final

from delaymq import kernels
from delaymq.broker.delivery.copying.copies import Fate, fate_of_topic
from delaymq.broker.delivery.copying.plain_copies import MAX_MARK_BYTES
from delaymq.broker.delivery.queue_state import QueueState
from delaymq.broker.delivery.reader import DeliveryStore
from delaymq.broker.delivery.settings.promises import Promises
from delaymq.broker.delivery.tally import Tally
from delaymq.message import names
from delaymq.message.flags import HOST_MASK, TRANSACTION_MASK
from delaymq.message.levels import queue_of_level
from delaymq.message.record import QUEUE_OFFSET_AT
from delaymq.schedule import Entry
from delaymq.schedule.timeline import Pending, Timeline
from delaymq.store.plain_runs import Copied

_RULED: Final = (names.MARK, names.DELAY_SCHEDULE_ID)
_RULED_TIMED: Final = (*_RULED, names.DELAY_EXPIRE_MS, names.DELAY_CRON, names.DELAY_EVERY_MS)
_NAMES: Final = (
    names.MARK, names.DUE, names.ACCOUNT, names.REAL_TOPIC, names.REAL_QUEUE_ID, names.TIMER_OUT_MS,
)  # fmt: skip
_ENOUGH_BYTES: Final = 1 << 20
"""Size of records that are copied with one call; a single one may be larger."""
_QUEUE_OFFSET: Final = Struct(">q")


def _made() -> Any:
    kernel = kernels.compiled("CopyEncoder")
    if kernel is None:
        return None
    topics, ruled = (names.SCHEDULE_TOPIC, names.TIMER_TOPIC), (list(_RULED), list(_RULED_TIMED))
    return kernel(topics, _NAMES, ruled, HOST_MASK | TRANSACTION_MASK, MAX_MARK_BYTES)


encoder = _made()
"""The encoder of this process; None without compiled kernels."""


def by_topic(timeline: Timeline, batches: list[list[Entry]]) -> list[list[Entry]]:
    """Return batches of one topic and delay level each, in the order of their first entries."""
    taken = timeline.taken
    parts: list[list[Entry]] = []
    for batch in batches:
        of_partition: dict[int | None, list[Entry]] = {}
        for entry in batch:
            pending = taken(entry[2])
            of_partition.setdefault(pending.partition if pending is not None else None, []).append(entry)
        parts += of_partition.values()
    return parts


def encoded_deliveries(*parts: Any) -> EncodedDeliveries | None:
    """Return `EncodedDeliveries` with these arguments; None without compiled kernels."""
    return None if encoder is None else EncodedDeliveries(*parts)


class EncodedDeliveries:
    """Delivers the first messages of batches of one topic."""

    def __init__(
        self,
        store: DeliveryStore,
        timeline: Timeline,
        queues: Mapping[int, QueueState],
        promises: Promises,
        delivered: list[int],
        settled: Mapping[int, list[int]],
        tally: Tally,
        on_late_failure: Callable[[Exception, str], object],
    ) -> None:
        """`delivered`, `settled` and `tally` are those of the hand-over.

        `on_late_failure` is called with an error of a step after the append, and the topic.
        """
        self._store = store
        self._timeline = timeline
        self._queues = queues
        self._promises = promises
        self._delivered = delivered
        self._settled = settled
        self._tally = tally
        self._on_late_failure = on_late_failure

    def deliver(self, batch: list[Entry], now_ms: int, drop_up_to_ms: int | None) -> list[Entry]:
        """Deliver the first entries of a batch, all of one topic; return the others.

        Messages due at or before `drop_up_to_ms` are among the latter.
        """
        taken = self._timeline.taken
        has_pauses, hold_if_paused = self._timeline.queues.has_pauses, self._timeline.holding.hold_if_paused
        part: list[Pending] = []
        positions: list[int] = []
        for position, entry in enumerate(batch):
            pending = taken(entry[2])
            # It has ended while it waited for another attempt, or is held now.
            if pending is not None and not (has_pauses and hold_if_paused(pending)):
                part.append(pending)
                positions.append(position)
        done = self._deliver(part, now_ms, -1 if drop_up_to_ms is None else drop_up_to_ms) if part else 0
        return batch[positions[done] :] if done < len(part) else []

    def _deliver(self, part: list[Pending], now_ms: int, drop_up_to_ms: int) -> int:
        """Deliver the first messages; return their number."""
        done = 0
        while done < len(part):
            try:
                topic, _, level = self._timeline.partitions.key(part[0].partition)
                if self._promises.decide(topic) or fate_of_topic(topic) is not Fate.DELIVERED:
                    break
                datas, offsets = self._read(part[done:], level, drop_up_to_ms)
            except Exception:
                break  # the path without the kernel fails in the same way, and reports it
            copied = self._append(topic, level, datas, part[done : done + len(datas)], now_ms) if datas else None
            if copied is None:
                break
            count, store_ms = copied[0], self._store.last_store_timestamp_ms
            self._delivered += [pending.identity for pending in part[done : done + count]]
            if level:
                self._settled[level].extend(offsets[:count])
            for due_ms, messages, size in copied[5]:
                self._tally.add(topic, level, store_ms - due_ms, size, messages)
            done += count
            if count < len(datas):
                break
        return done

    def _read(self, part: list[Pending], level: int, drop_up_to_ms: int) -> tuple[list[bytes], list[int]]:
        """Return the records of the first messages, and with a delay level their offsets in the queue of the level.

        They end after about 1 MiB, and before a message to drop, one that cannot be read, or one of a level that was
        settled while it was not known to the index.
        """
        read, size = self._store.read_bytes, 0
        settled = self._queues[queue_of_level(level)].settled if level else None
        datas: list[bytes] = []
        offsets: list[int] = []
        for pending in part:
            data = read(pending.record, pending.size)
            if pending.due_ms <= drop_up_to_ms or len(data) <= QUEUE_OFFSET_AT + _QUEUE_OFFSET.size:
                break
            if settled is not None:
                (offset,) = _QUEUE_OFFSET.unpack_from(data, QUEUE_OFFSET_AT)
                if offset < settled.low or offset in settled.above:
                    break
                offsets.append(offset)
            datas.append(data)
            size += len(data)
            if size >= _ENOUGH_BYTES:
                break
        return datas, offsets

    def _append(self, topic: str, level: int, datas: list[bytes], part: list[Pending], now_ms: int) -> Copied | None:
        """Append copies of the first messages; None if there are none."""
        assert encoder is not None
        results: list[Copied] = []

        def encode(*place: object) -> Copied:
            results.append(encoder.encode(datas, part, topic, level, now_ms, *place))
            return results[0]

        last_before = self._store.last_offset
        try:
            return self._store.append_encoded_copies(topic, encode)
        except Exception as error:
            if not results or self._store.last_offset == last_before:
                return None  # as in `_deliver`
            # They are in the log, and only a later step failed: another attempt would deliver them twice.
            self._on_late_failure(error, topic)
            return results[0]
