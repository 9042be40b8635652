"""Metric families by account."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from delaymq.server.metrics.account_counts import AccountCounts


def families(counts: AccountCounts) -> Iterator[Metric]:
    """Yield the families; without access control, all are empty."""
    for name, text, label, values in (
        ("requests", "Accepted requests of an account.", "kind", counts.requests),
        ("transferred_bytes", "Bytes that an account sent and pulled.", "direction", counts.transferred),
        ("event_loop_seconds", "Time of the event loop that requests of an account took.", "", counts.loop_s),
        ("delays", "Requests after which a connection was not read for a time.", "quota", counts.delays),
        ("delay_seconds", "Time for which connections were not read.", "quota", counts.delayed_s),
        ("refused", "Requests that were rejected because of a quota.", "quota", counts.refused),
    ):
        labels = ["account", label] if label else ["account"]
        family = CounterMetricFamily(f"delaymq_account_{name}", text, labels=labels)
        for key, value in values.items():
            family.add_metric(list(key[: len(labels)]), value)
        yield family
    for name, text, values in (
        ("used", "Number of what a quota counts.", counts.used),
        ("quota", "Quota of an account: its value in the rule file.", counts.quotas),
    ):
        gauge = GaugeMetricFamily(f"delaymq_account_{name}", text, labels=["account", "quota"])
        for key, value in values.items():
            gauge.add_metric(list(key), value)
        yield gauge
