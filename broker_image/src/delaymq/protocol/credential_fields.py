"""The fields that signatures add to requests, for those who sign and check nothing themselves."""

from __future__ import annotations

from typing import Final

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
SECOND_COUNTER: Final = "DmqCounter"
SECOND_SIGNATURE: Final = "DmqSignature"
"""Of `second_signature`; RocketMQ's servers ignore them."""
CREDENTIAL_FIELDS: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, SECOND_COUNTER, SECOND_SIGNATURE})
COMMON_FIELDS: Final = frozenset({"bname", "oway", "ns", "nsd", "lo", "OnsChannel"})
"""RocketMQ 5's clients add them to any request."""

NEW_CHALLENGE: Final = "ask for a new challenge"
"""In the remark of a refusal: the second signature does not count on this connection any more."""


def broker_server(cluster: str, name: str, broker_id: int, address: str) -> str:
    """What a broker calls itself when it gives a challenge; `address` is the one that it advertises."""
    return f"broker/{cluster}/{name}/{broker_id}/{address}"


def is_broker(server: str, name: str, address: str) -> bool:
    """Whether the server of a challenge is the broker of a name at an advertised address."""
    return server.startswith("broker/") and server.endswith(f"/{address}") and f"/{name}/" in server
