"""Key index: hash files that map unique ids and keys to physical offsets.

This package defines the format of one file and manages all of them. Searches in time slices are in server/api/.
Invariant: the index can be rebuilt from the log and never names a record that is not in the log.
"""
