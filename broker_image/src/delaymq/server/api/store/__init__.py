"""/api/v1/store: files, segments and leased pins of the store, for remote readers and backups.

Invariant: readers see only the confirmed part of the log, and no read blocks the event loop.
"""
