"""Metric families of the schedule."""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import HistogramMetricFamily, Metric

from delaymq.broker.delivery.control import DeliveryMode
from delaymq.broker.delivery.status import LatenessHistogram
from delaymq.broker.delivery.timed.carrying import Carrier
from delaymq.broker.delivery.topic_lateness import BOUNDS_MS
from delaymq.message.levels import level_of_queue
from delaymq.schedule.timeline import TIMELINE_QUEUE
from delaymq.server.metrics.families import Buckets, counter, counters, cumulative, gauge, gauges
from delaymq.server.metrics.gather import Gathered

_TIMED: Final = "timed"
"""In place of a level, for timed messages."""


def families(gathered: Gathered) -> Iterator[Metric]:
    """Yield the families."""
    delivery = gathered.server.broker.delivery
    counted = delivery.counters
    for name, text, value in (
        ("clamped", "Messages whose delay level was above the highest level of the table.", counted.clamped),
        ("dead", "Delayed messages without a valid topic, moved to the dead-letter topic.", counted.dead),
        ("failed", "Deliveries that failed and are retried.", counted.failed),
        ("dropped", "Delayed messages for the half topic, dropped.", counted.dropped),
        ("refused", "Overdue messages dropped on request or after a downtime.", counted.refused),
        ("expired", "Messages dropped because they were later than their producers allowed.", counted.expired),
        ("repeated", "Delivered runs of repeating messages.", counted.repeated),
        ("skipped", "Runs of repeating messages that were missed or late, and not delivered.", counted.skipped),
        ("corrupt", "Delayed messages with an unreadable record.", counted.corrupt),
        ("gone", "Pending messages whose log segment is missing or damaged.", counted.gone),
        ("foreign", "Messages delayed by another broker and delivered here.", counted.foreign),
        ("disbelieved", "Origin marks that match no record.", counted.disbelieved),
    ):
        yield counter(f"delaymq_delay_{name}", text, value)
    yield counters(
        "delaymq_delay_corrected", "Delay positions corrected from the log.", "reason", dict(counted.corrected)
    )
    limited = "Messages rejected because of a limit of their topic or account."
    yield counters("delaymq_delay_limited", limited, "limit", dict(counted.limited))
    gone = "Due messages that were not delivered because their topic had been deleted."
    yield counters("delaymq_delay_topic_gone", gone, "treatment", dict(counted.topic_gone))
    yield counters("delaymq_delay_changed", "Pending messages changed on request.", "kind", dict(counted.changed))
    pending = {str(level): float(count) for level, count in delivery.pending().items()}
    pending[_TIMED] = float(gathered.timed_pending)
    yield gauges("delaymq_delay_pending", "Pending delayed messages.", "level", pending)
    lateness = HistogramMetricFamily(
        "delaymq_delay_lateness_seconds", "Store time of the copy minus due time.", labels=["level"]
    )
    for queue_id, histogram in list(delivery.lateness.items()):
        level = _TIMED if queue_id == TIMELINE_QUEUE else str(level_of_queue(queue_id))
        lateness.add_metric([level], _buckets(histogram), histogram.sum_ms / 1000)
    yield lateness
    yield from _of_timeline(gathered)
    yield from _of_carrying(delivery.carrier)
    due_ms = min(gathered.next_due_ms.values(), default=None)
    due_s = None if due_ms is None else due_ms / 1000
    yield gauge("delaymq_delay_next_due_timestamp_seconds", "Next due time.", due_s)
    skew_s = delivery.clock_skew_ms() / 1000
    yield gauge("delaymq_clock_skew_seconds", "Lag of the clock behind the newest record.", skew_s)
    control = delivery.control
    held = {mode.value: float(control.policy is not None and control.policy.mode is mode) for mode in DeliveryMode}
    held[DeliveryMode.PAUSED.value] = float(control.is_paused)
    yield gauges("delaymq_delay_held", "1 for the active mode of paused, spread or dropped deliveries.", "mode", held)
    yield gauges("delaymq_delay_pauses", "Pauses of topics, of groups, and of all deliveries.", "kind", gathered.pauses)


def _of_timeline(gathered: Gathered) -> Iterator[Metric]:
    for name, text, value in (
        ("runs", "Sorted parts of the index of pending messages.", gathered.timeline.runs),
        ("bytes", "Bytes of the files of that index.", gathered.timeline.file_bytes),
        ("merging_entries", "Entries of that index that are being merged.", gathered.timeline.merging_entries),
        ("pending_bytes", "Bytes of the records of pending messages.", gathered.pending_bytes),
    ):
        yield gauge(f"delaymq_timeline_{name}", text, float(value))
    merged = "Entries of that index that were merged into larger runs."
    yield counter("delaymq_timeline_merged_entries", merged, gathered.timeline_merged_entries)


def _of_carrying(carrier: Carrier) -> Iterator[Metric]:
    for name, text, value in (
        ("messages", "Pending messages that were appended to the log again.", carrier.carried_messages),
        ("bytes", "Bytes of the records that were appended for this.", carrier.carried_bytes),
    ):
        yield counter(f"delaymq_timeline_carried_{name}", text, value)
    backlog = "Records in expired segments that still hold pending messages."
    yield gauge("delaymq_timeline_carry_backlog", backlog, float(carrier.backlog))


def _buckets(histogram: LatenessHistogram) -> Buckets:
    counts = [0] * (len(BOUNDS_MS) + 1)
    for bucket, count in enumerate(histogram.counts):
        if count:
            highest_ms = histogram.highest_ms(bucket)
            fits = (at for at, bound in enumerate(BOUNDS_MS) if highest_ms <= bound)
            counts[next(fits, len(BOUNDS_MS))] += count
    return cumulative([bound / 1000 for bound in BOUNDS_MS], counts)
