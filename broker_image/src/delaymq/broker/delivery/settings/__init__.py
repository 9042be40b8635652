"""Settings of delayed messages by topic and account: limits that are checked before a message is stored, and promises.

Totals of pending messages are those of the index. Invariant: a check takes constant time, and a message that must not
be lost, such as a retry or a commit, is never checked.
"""
