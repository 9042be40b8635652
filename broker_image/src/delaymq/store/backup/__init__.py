"""Backup and restore of a store.

This package copies a store from a folder or another source, checks and restores backups, and defines their manifest.
The HTTP endpoints through which a broker serves its store are in server/api/. Invariant: the manifest is written last,
and files that it does not name are not part of the backup.
"""
