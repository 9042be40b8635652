"""Reading of consume queues for pulls: selection of records, and notification of arrivals.

Contents: the limits of a response, filters applied to records, notification of arrivals. Elsewhere: waiting of held
pulls (server/). Invariant: a pull does a bounded amount of work, whatever its filter matches.
"""
