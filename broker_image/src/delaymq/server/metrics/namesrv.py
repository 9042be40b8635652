"""NameServer metrics in Prometheus' text format. Importing this module loads the client library; import it lazily."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from delaymq.server.metrics import audit
from delaymq.server.metrics.families import counters, gauge

if TYPE_CHECKING:
    from delaymq.audit.log import AuditLog
    from delaymq.namesrv import NameServer

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class NamesrvFamilies(Collector):
    """Current metrics of a NameServer."""

    def __init__(self, namesrv: "NameServer", audit_log: "AuditLog") -> None:
        self._namesrv = namesrv
        self._audit_log = audit_log

    def describe(self) -> Iterable[Metric]:
        """Return nothing, because the families vary."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        namesrv = self._namesrv
        text = "Requests rejected by rules, or because a name or an address belongs to another broker."
        yield counters("delaymq_namesrv_refused", text, "reason", {**namesrv.refused})
        yield gauge("delaymq_namesrv_brokers", "Registered brokers.", len(namesrv.routes.live))
        text = "Unreadable rule files, whose last valid rules stay in effect."
        problems = 0 if namesrv.rules is None else len(namesrv.rules.problems)
        yield gauge("delaymq_namesrv_files_broken", text, problems)
        yield from audit.families(self._audit_log, "delaymq_namesrv")

    def text(self) -> bytes:
        """Return the metrics as text."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)
