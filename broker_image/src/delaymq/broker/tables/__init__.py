"""Tables of a replicated broker: a master provides their entries, and a replica applies them.

Decision 70 states which tables these are, and why they are sent by entry.
"""
