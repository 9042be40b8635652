"""Metric families of transactions."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from delaymq.server.metrics.families import counter, gauge
from delaymq.server.metrics.gather import Gathered


def families(gathered: Gathered) -> Iterator[Metric]:
    """Yield the families."""
    totals = gathered.server.broker.transactions.totals()
    yield gauge("delaymq_transactions_pending", "Half messages without an outcome.", totals.pending)
    for name, text, value in (
        ("committed", "Committed transactions.", totals.committed),
        ("rolled_back", "Rolled-back transactions.", totals.rolled_back),
        ("checked", "Checks sent to producers.", totals.checked),
        ("given_up", "Transactions that are no longer checked.", totals.given_up),
    ):
        yield counter(f"delaymq_transactions_{name}", text, value)
