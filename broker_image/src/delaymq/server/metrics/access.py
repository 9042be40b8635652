"""Metric families of access control: rejected requests, and unreadable rule files."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from delaymq.broker.access import REASONS
from delaymq.server.metrics.families import counters, gauge
from delaymq.server.metrics.gather import Gathered


def families(gathered: Gathered) -> Iterator[Metric]:
    """Yield the families; without access control, all are 0."""
    access = gathered.server.broker.access
    refused = dict.fromkeys(REASONS, 0.0) if access is None else {**access.refused}
    yield counters("delaymq_access_refused", "Requests that access control rejected.", "reason", refused)
    text = "Unreadable rule files, whose last valid rules stay in effect."
    yield gauge("delaymq_access_files_broken", text, 0 if access is None else len(access.rules.problems))
    accounts = 0 if access is None else len(access.rules.accounts)
    yield gauge("delaymq_access_accounts", "Accounts of access control.", accounts)
