"""Handlers of /api/v1/session, of a broker and of a supervisor.

Here: what these requests receive and return. Not here: accounts, sessions and limits (server/http/sign_in).
"""
