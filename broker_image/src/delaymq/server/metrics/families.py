"""Helpers to create metric families."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Buckets = list[tuple[str, float]]


def gauge(name: str, text: str, value: float | None) -> Metric:
    """Return a gauge with one value, or without a value if None."""
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric([], value)
    return family


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a gauge with a value for each label value."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def counter(name: str, text: str, value: float) -> Metric:
    """Return a counter with one value."""
    family = CounterMetricFamily(name, text)
    family.add_metric([], value)
    return family


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a counter with a value for each label value."""
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def cumulative(bounds: Iterable[float], counts: list[int]) -> Buckets:
    """Convert counts per bucket to cumulative buckets."""
    buckets: Buckets = []
    total = 0
    for bound, count in zip((*map(str, bounds), "+Inf"), counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
