"""The store of a replica: the log of another broker, appended byte by byte, and the removal of a diverged tail.

This package knows neither connections nor roles: its callers decide which bytes belong to the log. Invariant: whatever
is in the log up to its end passed the checks of recovery, and has been dispatched exactly once.
"""
