"""Accounts on HTTP: sign-in, sessions, and what a caller may do.

Here: sessions (`sessions`), limits of failed sign-ins (`attempts`), the rights of a caller (`callers`), what a route
may need (`needs`), the client of a request that passed through a proxy (`peers`), and their use (`accounts`). Not here:
the needs of each route (server/api/routes). Invariants: only hashes of tokens are kept; secret keys appear in no
response, log line or error; an account is read from the rules in force for each request.
"""
