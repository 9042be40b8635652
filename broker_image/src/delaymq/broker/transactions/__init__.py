"""Transactions: half messages are stored until their producers commit them or roll them back.

If a producer does neither, the broker sends it checks.

Contents: unsettled half messages, the end of a transaction, checks, progress and retention pin, and recovery from the
log. Elsewhere: the requests (processors/transactions.py) and the log (store/).

Invariants: a half message is settled by a record in the log that names it (a committed copy, an op mark, or a given-up
copy), and never by two of them. The state in memory is derived from the log alone.
"""

from delaymq.broker.transactions.transactions import (
    PROGRESS_GROUP,
    Transactions,
    TransactionSettings,
    TransactionTotals,
)

__all__ = ["PROGRESS_GROUP", "TransactionSettings", "TransactionTotals", "Transactions"]
