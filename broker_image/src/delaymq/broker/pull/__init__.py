"""Reading a queue for a pull: which records a consumer gets, and who hears of new ones.

Here: the limits of one answer, filters applied to records, notification of arrivals. Not here: how a held pull waits
(server/). Invariant: one pull does a bounded amount of work, whatever its filter matches.
"""
