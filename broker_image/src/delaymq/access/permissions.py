"""Permissions of an account for a topic or group, and the precedence of its rules.

A group's retry topic and dead-letter topic belong to the group: they hold messages of all topics that it consumed. The
cluster's reply topic holds the replies to all clients. Every account may send to it, and no default permission allows
consuming it.
"""

from __future__ import annotations

from typing import Final

from delaymq.access import DENY, PUB, SUB
from delaymq.access.accounts import Account
from delaymq.message.names import DLQ_PREFIX, INTERNAL_TOPICS, RETRY_PREFIX

NOTHING: Final = 0


def owned(account: Account, resource: str, reply_topic: str) -> int:
    """Return the PUB and SUB permissions of the account, 0 for DENY. A group is represented by its retry topic."""
    permissions = account.permissions
    found = permissions.get(resource)
    if resource.startswith(DLQ_PREFIX):
        group = permissions.get(RETRY_PREFIX + resource[len(DLQ_PREFIX) :])
        if group is not None and group & DENY:
            return NOTHING
        if found is None:
            # As for a retry topic: an account that may consume as the group may also return messages.
            found = account.group_permission if group is None else group
            found = found | PUB if found & SUB else found
    elif resource == reply_topic:
        found = PUB if found is None else found | PUB
    elif found is None:
        if resource.startswith(RETRY_PREFIX):
            found = account.group_permission
        elif resource in INTERNAL_TOPICS:
            found = DENY
        else:
            found = account.topic_permission
    return NOTHING if found & DENY else found
