"""The metrics of a NameServer, in Prometheus' text format. Importing this loads the client library: do it late."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from delaymq.server.metrics.families import counters, gauge

if TYPE_CHECKING:
    from delaymq.namesrv import NameServer

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class NamesrvFamilies(Collector):
    """What it shows at the moment."""

    def __init__(self, namesrv: "NameServer") -> None:
        self._namesrv = namesrv

    def describe(self) -> Iterable[Metric]:
        """Nothing: what there is depends on the moment."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        namesrv = self._namesrv
        text = "Requests that the NameServer refused, by its rules or because a name or an address is another's."
        yield counters("delaymq_namesrv_refused", text, "reason", {**namesrv.refused})
        yield gauge("delaymq_namesrv_brokers", "Registered brokers.", len(namesrv.routes.live))
        text = "Files of rules that cannot be read; their last good rules are in force."
        problems = 0 if namesrv.rules is None else len(namesrv.rules.problems)
        yield gauge("delaymq_namesrv_files_broken", text, problems)

    def text(self) -> bytes:
        """The exposition."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)
