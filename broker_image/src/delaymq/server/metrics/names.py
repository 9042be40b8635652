"""Metric families by topic and by group, with a limited number of labels."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from delaymq.broker.delivery.topic_lateness import BOUNDS_MS
from delaymq.server.log_reader import clean_text
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
    yield from _of_settings(gathered)
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


def _of_settings(gathered: Gathered) -> Iterator[Metric]:
    due = GaugeMetricFamily(
        "delaymq_topic_delay_due",
        "Pending delayed messages by topic and time until they are due.",
        labels=["topic", "due_in"],
    )
    for topic, counts in (gathered.due or {}).items():
        for horizon, count in counts.items():
            due.add_metric([topic, horizon], count)
    yield due
    target = GaugeMetricFamily("delaymq_delay_objective_ratio", "Lateness objective: share.", labels=["topic"])
    within = GaugeMetricFamily("delaymq_delay_objective_seconds", "Lateness objective: lateness.", labels=["topic"])
    delivered = CounterMetricFamily(
        "delaymq_delay_objective_messages", "Delivered messages of topics with an objective.", labels=["topic"]
    )
    late = CounterMetricFamily(
        "delaymq_delay_objective_late", "Messages that were later than the objective.", labels=["topic"]
    )
    for topic, (objective, counted) in gathered.objectives.items():
        target.add_metric([topic], objective.percent / 100)
        within.add_metric([topic], objective.within_ms / 1000)
        delivered.add_metric([topic], counted.messages)
        late.add_metric([topic], counted.late)
    yield from (target, within, delivered, late)
    for name, label, values in (
        ("delaymq_topic_delay_limit_used_ratio", "topic", gathered.topic_limits),
        ("delaymq_account_delay_limit_used_ratio", "account", gathered.account_limits),
    ):
        used = GaugeMetricFamily(
            name, f"Used share of a limit of pending messages, by {label}.", labels=[label, "limit"]
        )
        for (key, limit), ratio in values.items():
            used.add_metric([clean_text(key), limit], ratio)
        yield used
