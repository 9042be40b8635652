"""Read-only tools above the reader: verify, inspect, and the outlook for a move back to RocketMQ.

Here: reports about a store. Not here: anything that a running broker needs. Invariant: no tool writes to the store or
takes its lock.
"""
