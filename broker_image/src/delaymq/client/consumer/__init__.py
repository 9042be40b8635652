"""Consumers: push, lite pull, and pull.

Here: the public classes and what they share; their parts are in the rooms below. Invariant: an offset is committed only
when all messages before it are done.
"""
