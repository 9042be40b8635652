"""The metrics, in Prometheus' text format. Importing this module loads the client library: do it late.

`Gathered` is what the loop's thread hands over: copies, made in turns, of what changes. Everything else, and the text,
is made in another thread. The number of series is bounded by `metricsMaxTopics`.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from delaymq.server.metrics import access, broker, delays, names, transactions
from delaymq.server.metrics.gather import Gathered

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class Snapshot(Collector):
    """The metrics at one moment; written in any thread."""

    def __init__(self, gathered: Gathered) -> None:
        self._gathered = gathered

    def describe(self) -> Iterable[Metric]:
        """Nothing: what there is depends on the moment."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        yield from broker.families(self._gathered)
        yield from delays.families(self._gathered)
        yield from names.families(self._gathered)
        yield from access.families(self._gathered)
        yield from transactions.families(self._gathered)

    def text(self) -> bytes:
        """The exposition."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)
