"""Snapshots: where recovery may begin instead of at the oldest record.

Here: their format, when they are made, and the checkpoint file. Not here: how a start uses them (recovery/).
Invariant: a snapshot states nothing that is not on disk.
"""
