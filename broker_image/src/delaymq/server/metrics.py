"""The metrics, in Prometheus' text format. Importing this module loads the client library: do it late."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from delaymq.broker.delivery.status import LatenessHistogram
from delaymq.message.levels import level_of_queue
from delaymq.server.flushing import FLUSH_BUCKETS_S

if TYPE_CHECKING:
    from delaymq.server.broker_server import BrokerServer

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
LATENESS_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 30_000, 300_000)

Buckets = list[tuple[str, float]]


class Snapshot(Collector):
    """The metrics at one moment; made on the loop's thread, where nothing changes meanwhile, and written in any."""

    def __init__(self, server: "BrokerServer") -> None:
        self._families = list(BrokerMetrics(server).collect())

    def describe(self) -> Iterable[Metric]:
        """Nothing: what there is depends on the moment."""
        return []

    def collect(self) -> Iterable[Metric]:
        """The families."""
        return self._families

    def text(self) -> bytes:
        """The exposition."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)


class BrokerMetrics:
    """Reads the broker's own counters when it is asked; nothing is counted twice."""

    def __init__(self, server: "BrokerServer") -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        yield from self._messages()
        yield from self._delays()
        yield from self._store()
        yield from self._process()

    def _messages(self) -> Iterator[Metric]:
        broker = self._server.broker
        stored = CounterMetricFamily("delaymq_messages_stored", "Messages that producers stored.", labels=["topic"])
        for topic, count in broker.stats.stored.items():
            stored.add_metric([topic], count)
        yield stored
        counters = broker.delivery.counters
        delivered = CounterMetricFamily("delaymq_messages_delivered", "Delayed messages handed over.", labels=["topic"])
        for topic, count in counters.delivered.items():
            delivered.add_metric([topic], count)
        yield delivered
        yield _counter("delaymq_delay_clamped", "Messages whose delay level was above the table.", counters.clamped)
        yield _counter("delaymq_delay_dead", "Delayed messages that can never be delivered.", counters.dead)
        yield _counter("delaymq_delay_failed", "Hand-overs that failed and are tried again.", counters.failed)
        yield _counter("delaymq_delay_dropped", "Delayed messages for the half topic, dropped.", counters.dropped)
        yield _counter("delaymq_delay_corrupt", "Delayed messages whose record cannot be read.", counters.corrupt)
        yield _counter("delaymq_delay_gone", "Pending messages whose log another broker deleted.", counters.gone)
        yield _counter(
            "delaymq_delay_foreign", "Messages delayed by another broker and handed over here.", counters.foreign
        )
        yield _counter("delaymq_delay_disbelieved", "Origin marks that match no record.", counters.disbelieved)
        corrected = CounterMetricFamily(
            "delaymq_delay_corrected", "Delay positions corrected from the log.", labels=["reason"]
        )
        for reason, count in counters.corrected.items():
            corrected.add_metric([reason], count)
        yield corrected

    def _delays(self) -> Iterator[Metric]:
        delivery = self._server.broker.delivery
        pending = GaugeMetricFamily("delaymq_delay_pending", "Delayed messages that wait.", labels=["level"])
        for level, count in delivery.pending().items():
            pending.add_metric([str(level)], count)
        yield pending
        lateness = HistogramMetricFamily(
            "delaymq_delay_lateness_seconds", "Store time of the copy minus due time.", labels=["level"]
        )
        for queue_id, histogram in delivery.lateness.items():
            lateness.add_metric([str(level_of_queue(queue_id))], _lateness_buckets(histogram), histogram.sum_ms / 1000)
        yield lateness
        due_ms = min(delivery.next_due_ms().values(), default=None)
        next_due = GaugeMetricFamily("delaymq_delay_next_due_timestamp_seconds", "When something is due next.")
        if due_ms is not None:
            next_due.add_metric([], due_ms / 1000)
        yield next_due
        skew = GaugeMetricFamily("delaymq_clock_skew_seconds", "How far the clock is behind the newest record.")
        skew.add_metric([], delivery.clock_skew_ms() / 1000)
        yield skew

    def _store(self) -> Iterator[Metric]:
        store = self._server.broker.store
        pinned = GaugeMetricFamily(
            "delaymq_store_pinned_bytes", "Log bytes that a holder keeps from deletion.", labels=["holder"]
        )
        for pin in store.pins.report():
            pinned.add_metric([pin.holder], pin.pinned_bytes)
        yield pinned
        times = self._server.flushing.times
        flush = HistogramMetricFamily("delaymq_flush_seconds", "How long syncs of the log took.")
        flush.add_metric([], _cumulative(FLUSH_BUCKETS_S, times.counts), times.sum_s)
        yield flush
        yield _counter("delaymq_flush_failures", "Syncs of the log that failed.", self._server.flushing.failures)
        end = GaugeMetricFamily("delaymq_log_offset_bytes", "Offsets of the log.", labels=["which"])
        end.add_metric(["min"], store.min_offset)
        end.add_metric(["end"], store.end_offset)
        end.add_metric(["flushed"], store.flushed_offset)
        yield end
        corrections = CounterMetricFamily(
            "delaymq_store_corrected", "What the last start put right in files.", labels=["what"]
        )
        counts: dict[str, int] = {}
        for correction in store.recovery.corrections:
            counts[correction.what] = counts.get(correction.what, 0) + 1
        for what, count in counts.items():
            corrections.add_metric([what], count)
        yield corrections

    def _process(self) -> Iterator[Metric]:
        server = self._server
        yield _gauge("delaymq_event_loop_lag_seconds", "Longest lag of the last 10 s.", server.background.lag_s)
        yield _gauge("delaymq_connections", "Open connections.", len(server.sessions))
        yield _gauge("delaymq_held_pulls", "Pulls that wait for messages.", len(server.held_pulls))
        yield _gauge("delaymq_ready", "1 when /readyz answers 200.", 0 if server.not_ready() else 1)


def _gauge(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value)
    return family


def _counter(name: str, text: str, value: float) -> Metric:
    family = CounterMetricFamily(name, text)
    family.add_metric([], value)
    return family


def _cumulative(bounds: Iterable[float], counts: list[int]) -> Buckets:
    buckets: Buckets = []
    total = 0
    for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets


def _lateness_buckets(histogram: LatenessHistogram) -> Buckets:
    counts = [0] * (len(LATENESS_BOUNDS_MS) + 1)
    for bucket, count in enumerate(histogram.counts):
        if count:
            highest_ms = histogram.highest_ms(bucket)
            fits = (at for at, bound in enumerate(LATENESS_BOUNDS_MS) if highest_ms <= bound)
            counts[next(fits, len(LATENESS_BOUNDS_MS))] += count
    return _cumulative([bound / 1000 for bound in LATENESS_BOUNDS_MS], counts)
