"""Access control as in RocketMQ 4.9: permissions of accounts for the broker's requests.

Contents: the requirements of each request (`requirements`), its form (`forms`), the permissions of an account
(`permissions`), the rules in force (`rules`), and the check (`access`). Elsewhere: accounts and rule files
(delaymq/access), signatures (protocol/signatures.py, protocol/second_signature.py) and requests 50 to 53
(processors/access.py). Invariants: responses, logs and errors contain no secrets, and unreadable rules never grant
access.

Most brokers run without access control, so `access` is imported only if it is enabled.
"""

from typing import Final

from delaymq.access.errors import AccessError

REASONS: Final = (
    "unsigned",
    "unknown_key",
    "signature",
    "second",
    "replay",
    "silence",
    "second_required",
    "admin",
    "permission",
    "form",
    "plain",
)
"""Reasons for which a request is rejected."""

__all__ = ["REASONS", "AccessError"]
