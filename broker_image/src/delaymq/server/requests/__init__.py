"""Requests from a session to their response: immediate, or when the disk, a message, another client or a file is ready.

Here: sessions, long polling, group commit, requests relayed to clients, file writes, flow control. Not here: what a
request means (broker/). Invariant: whatever waits here has limits, in all and for each connection.
"""
