"""The key index: hash files that lead from unique ids and keys to physical offsets.

Here: the format of one file, and all files together. Not here: searches in time slices (server/api/).
Invariant: the index can be rebuilt from the log, and states nothing that the log does not hold.
"""
