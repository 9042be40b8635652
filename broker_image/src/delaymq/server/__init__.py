"""The asyncio edge: sockets, timers, threads, signals and HTTP around the domains of broker and NameServer.

Here: the servers and processes, registration, and rooms: `requests` (sessions, held pulls, flushing, flow control),
`jobs` (background work, the delivery's timer), `tls`, `http`, `api`, `metrics`, `console`, `logs`.
Not here: what a request means (broker/, namesrv/) and the bytes of frames (protocol/).

Invariant: one thread, the loop's, touches the domain; other threads run only a store task's system calls.
"""
