"""Access control as RocketMQ 4.9 has it: who may ask what of the broker.

Here: what each request needs (`requirements`), its form (`forms`), what an account owns (`permissions`), the rules that
hold (`rules`), and the check (`access`). Not here: accounts and rule files (delaymq/access), signatures
(protocol/signatures.py, protocol/second_signature.py) and requests 50 to 53 (processors/access.py). Invariant: no
secret is in an answer, a log or an error, and what cannot be read lets nobody in.

Most brokers run without it: whoever needs `access` imports it when it is switched on.
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
"""Why a request is refused."""

__all__ = ["REASONS", "AccessError"]
