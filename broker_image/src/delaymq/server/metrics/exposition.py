"""Broker metrics in Prometheus' text format. Importing this module loads the client library, so import it lazily.

`Gathered` contains copies of changing data, made on the loop's thread in time slices. Everything else, including the
text, is generated in another thread. The number of series is limited by `metricsMaxTopics`.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from delaymq.server.metrics import access, accounts, audit, broker, delays, names, replication, transactions
from delaymq.server.metrics.gather import Gathered

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class Snapshot(Collector):
    """Metrics at one moment; can be formatted in any thread."""

    def __init__(self, gathered: Gathered) -> None:
        self._gathered = gathered

    def describe(self) -> Iterable[Metric]:
        """Return nothing, because the families vary."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        yield from broker.families(self._gathered)
        yield from delays.families(self._gathered)
        yield from names.families(self._gathered)
        yield from access.families(self._gathered)
        yield from accounts.families(self._gathered.accounts)
        yield from audit.families(self._gathered.server.auditing.log, "delaymq")
        yield from transactions.families(self._gathered)
        yield from replication.families(self._gathered.replication)

    def text(self) -> bytes:
        """Return the metrics as text."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)
