"""Families of transactions."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from delaymq.server.metrics.families import counter, gauge
from delaymq.server.metrics.gather import Gathered


def families(gathered: Gathered) -> Iterator[Metric]:
    """One after the other."""
    totals = gathered.server.broker.transactions.totals()
    yield gauge("delaymq_transactions_pending", "Half messages that nobody has ended.", totals.pending)
    for name, text, value in (
        ("committed", "Transactions that were committed.", totals.committed),
        ("rolled_back", "Transactions that were rolled back.", totals.rolled_back),
        ("checked", "Questions to producers how a transaction ended.", totals.checked),
        ("given_up", "Transactions that nobody is asked about any more.", totals.given_up),
    ):
        yield counter(f"delaymq_transactions_{name}", text, value)
