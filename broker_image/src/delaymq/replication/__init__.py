"""Replication of a group: who is master, what is confirmed, and what is cut.

This package is pure: it has no sockets, files, clock or randomness. A `Member` receives events and the time, and
returns effects, which the server performs. Decision 65 states the invariants and their reasons.
"""

from delaymq.replication.member import Member, Role
from delaymq.replication.model import Acknowledge, Failover, LogState, Note, NoteKind, Record, SendAnswer, Settings

__all__ = [
    "Acknowledge",
    "Failover",
    "LogState",
    "Member",
    "Note",
    "NoteKind",
    "Record",
    "Role",
    "SendAnswer",
    "Settings",
]
