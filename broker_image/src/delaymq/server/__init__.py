"""The asyncio layer: sockets, timers, threads, signals and HTTP around the domains of broker and NameServer.

Here: servers, processes and registration, and the packages `requests` (sessions, held pulls, flushing, flow control),
`jobs` (background jobs, the delivery timer), `tls`, `http`, `api`, `metrics`, `console` and `logs`.
Not here: the semantics of requests (broker/, namesrv/) and the encoding of frames (protocol/).

Invariant: only the loop's thread accesses the domain; other threads run only the system calls of store tasks.
"""
