"""The asyncio edge: sockets, timers, threads, signals and HTTP around the domains of broker and NameServer.

Here: connections and sessions, held pulls, flushing, the delivery's clock, background work, registration, HTTP, the
processes' life. Not here: what a request means (broker/, namesrv/) and the bytes of frames (protocol/).

Invariant: one thread, the loop's, touches the domain; other threads run only a store task's system calls.
"""
