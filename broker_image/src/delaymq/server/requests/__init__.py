"""Requests of sessions until their response: immediate, or waiting for the disk, a message, another client or a file.

Here: sessions, long polling, group commit, requests relayed to clients, file writes, flow control. Not here: the
semantics of requests (broker/). Invariant: everything that waits here is limited, in total and per connection.
"""
