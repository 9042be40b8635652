"""Metric families by topic and by group, with a limited number of labels."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from delaymq.broker.delivery.topic_lateness import BOUNDS_MS
from delaymq.server.metrics.families import cumulative
from delaymq.server.metrics.gather import Gathered


def families(gathered: Gathered) -> Iterator[Metric]:
    """Yield the families."""
    stored = CounterMetricFamily("delaymq_messages_stored", "Messages stored for producers.", labels=["topic"])
    for topic, count in gathered.stored.items():
        stored.add_metric([topic], count)
    yield stored
    delivered = CounterMetricFamily("delaymq_messages_delivered", "Delivered delayed messages.", labels=["topic"])
    for topic, count in gathered.delivered.items():
        delivered.add_metric([topic], count)
    yield delivered
    pending = GaugeMetricFamily("delaymq_topic_delay_pending", "Pending delayed messages, by topic.", labels=["topic"])
    for topic, count in (gathered.pending or {}).items():
        pending.add_metric([topic], count)
    yield pending
    lateness = HistogramMetricFamily(
        "delaymq_topic_delay_lateness_seconds", "Store time of the copy minus due time, by topic.", labels=["topic"]
    )
    bounds_s = [bound / 1000 for bound in BOUNDS_MS]
    for topic, counts in gathered.lateness.items():
        lateness.add_metric([topic], cumulative(bounds_s, counts.counts), counts.sum_ms / 1000)
    yield lateness
    for name, text, values in (
        ("delaymq_group_lag_messages", "Lag of a consumer group.", gathered.lag),
        ("delaymq_group_dead_letters", "Dead letters of a consumer group.", gathered.dead_letters),
        ("delaymq_group_members", "Connected members of a group.", gathered.members),
    ):
        family = GaugeMetricFamily(name, text, labels=["group"])
        for group, value in values.items():
            family.add_metric([group], value)
        yield family
