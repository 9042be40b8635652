"""Messages over HTTP: search, bodies, history, pending messages and dead letters.

Invariant: records are read in threads, in limited numbers; iterations over queues and the index use time slices.
"""
