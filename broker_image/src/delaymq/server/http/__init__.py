"""HTTP server: listening, time and size limits, access checks, and response formats. To be imported lazily.

Here: everything that all routes share. Not here: routes and handlers (server/api, namesrv_http). Invariants: a handler
runs only for a request that `guard` accepted and whose body has arrived completely, unless it receives the body itself.
Connections, bodies and the time that a peer takes to send or receive are limited.
"""
