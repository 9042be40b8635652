"""`delaymq store`: a store's files without a broker, and backups of a running one.

Invariant: nothing is written into a store that a broker has open.
"""
