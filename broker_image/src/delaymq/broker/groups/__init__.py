"""Consumer and producer groups: their configuration, connected members, offsets and queue locks.

Contents: the statements of clients in heartbeats and commits, and their limits. Elsewhere: requests (processors/) and
messages (pull/). Invariants: clients' statements take bounded memory, and a member counts while it sends heartbeats or
is expected back.
"""
