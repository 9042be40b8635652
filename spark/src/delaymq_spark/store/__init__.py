"""A store on disk or behind a broker's HTTP: its address, its segments, the positions beside its log.

Only reads; needs no Spark. `segments` opens either kind, `remote` is the broker's, over `broker_client`.
"""
