"""Statistics of a consumer: counters and rates.

Here: what the public API and administrators read. Not here: traces. Invariant: pure; time is passed in.
"""
