"""What the watches see, and when something is reconciled.

`watches` and `deletion` are the kopf handlers, a few lines each: they fill the cache and name keys. `controller` (which
knows no kopf) reconciles each key, one run at a time, with backoff and a resync.
"""
