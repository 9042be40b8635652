"""Backup and restore of a store.

Here: the manifest, copying from a folder or another source, checking a backup, restoring it. Not here: how a broker
serves its store over HTTP (server/api/). Invariant: the manifest is written last, and what it does not name does not
belong to the backup.
"""
