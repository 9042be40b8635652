"""HTTP API of a broker: the table of routes in `routes`, and handlers by subject.

Handlers run on the event loop's thread; longer work runs in time slices or in separate threads.
"""
