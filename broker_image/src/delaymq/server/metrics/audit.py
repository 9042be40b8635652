"""Metric families of the audit log, of brokers and NameServers."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from delaymq.audit.log import AuditLog
from delaymq.server.metrics.families import counter, counters


def families(log: AuditLog, prefix: str) -> Iterator[Metric]:
    """Yield the families; without an audit log, all are 0."""
    yield counters(f"{prefix}_audit_lines", "Lines written to the audit log.", "result", {**log.lines})
    yield counter(f"{prefix}_audit_suppressed", "Refused attempts beyond the rate limit.", log.suppressed)
    yield counter(f"{prefix}_audit_dropped", "Lines that could not be written to the audit log.", log.dropped)
