"""Snapshots, from which recovery starts instead of from the oldest record.

This package defines their format, the times at which they are taken, and the checkpoint file. How a start uses them is
part of `recovery`. Invariant: a snapshot describes only durable data.
"""
