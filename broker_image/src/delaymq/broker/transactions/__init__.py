"""Transactions: a half message is kept until its producer commits it or rolls it back, and its producer is asked.

Here: what is unsettled, the end of a transaction, the check-back, progress and pin, what a start finds in the log.
Not here: the requests (processors/transactions.py), the log (store/).

Invariant: what settles a half message is a record of the log that names it (a committed copy, an op mark, a copy among
the given up), and no half message is settled by two of them. What is in memory is only what the log says.
"""

from delaymq.broker.transactions.transactions import (
    PROGRESS_GROUP,
    Transactions,
    TransactionSettings,
    TransactionTotals,
)

__all__ = ["PROGRESS_GROUP", "TransactionSettings", "TransactionTotals", "Transactions"]
