"""Producers, with and without transactions.

Here: the public classes and their limits on sends in flight. Not here: how a send reaches a broker (sending/).
Invariant: consumers are not imported.
"""
