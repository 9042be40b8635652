"""Messages over HTTP: search, bodies, history, pending ones and dead letters.

Invariant: records of the log are read in threads, in bounded numbers; walks over queues and the index yield to others.
"""
