"""The store over HTTP (/api/v1/store): files, segments and leased pins, for remote readers and backups.

Invariant: no reader sees more of the log than is confirmed, and no read blocks the event loop.
"""
