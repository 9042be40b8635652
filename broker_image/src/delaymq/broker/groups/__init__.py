"""Consumer and producer groups: their configuration, connected members, offsets and queue locks.

Here: what clients state by heartbeats and commits, and its limits. Not here: requests (processors/) and messages
(pull/). Invariant: what a client states takes bounded memory, and a member counts while it is heard of or
expected back.
"""
