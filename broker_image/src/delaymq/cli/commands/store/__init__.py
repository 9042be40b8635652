"""`delaymq store`: tools for the files of a store, and backups of a running broker.

Invariant: a store that a broker has open is never written to.
"""
