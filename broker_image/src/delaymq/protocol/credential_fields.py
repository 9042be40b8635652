"""Names of the fields that signatures add to requests."""

from __future__ import annotations

from typing import Final

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
SECOND_COUNTER: Final = "DmqCounter"
SECOND_SIGNATURE: Final = "DmqSignature"
"""Fields of `second_signature`; RocketMQ's servers ignore them."""
CREDENTIAL_FIELDS: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, SECOND_COUNTER, SECOND_SIGNATURE})
COMMON_FIELDS: Final = frozenset({"bname", "oway", "ns", "nsd", "lo", "OnsChannel"})
"""Fields that RocketMQ 5's clients add to any request."""

NEW_CHALLENGE: Final = "ask for a new challenge"
"""Part of an error remark: the second signature is no longer valid on this connection."""


def broker_server(cluster: str, name: str, broker_id: int, address: str) -> str:
    """Return the name that a broker states with a challenge; `address` is its advertised address."""
    return f"broker/{cluster}/{name}/{broker_id}/{address}"


def is_broker(server: str, name: str, address: str) -> bool:
    """Return whether `server`, stated with a challenge, is the broker `name` at its advertised `address`."""
    return server.startswith("broker/") and server.endswith(f"/{address}") and f"/{name}/" in server
