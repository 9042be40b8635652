"""Quotas of accounts: rates, counts, and what each account has used.

Contents: the names of quotas (`names`), token buckets (`buckets`), the usage of one account with its quotas (`usage`),
and the usage of all accounts (`accounts`). Elsewhere: the quotas in rule files (delaymq/access/quotas.py), the check of
each request that calls this package (broker/access/access.py), and the pause of a connection (transport/inbound.py).
Invariants: an account without quotas is never delayed, each delay ends after a time, and a rejected request changes no
bucket.

Without access control, only `names` is imported.
"""
