"""Signatures of requests as in RocketMQ's access control: made by clients, verified by brokers.

A signed request carries the fields `AccessKey`, `Signature` and optionally `SecurityToken`. The signature is the base64
of HMAC-SHA1 with the secret key, over the values of all other fields in the order of their names, and the body.
"""

from __future__ import annotations

import hmac
from binascii import b2a_base64
from collections.abc import Mapping
from typing import Final

from delaymq.protocol.command import Command
from delaymq.protocol.credential_fields import ACCESS_KEY, SECOND_COUNTER, SECOND_SIGNATURE, SECURITY_TOKEN, SIGNATURE

__all__ = ["ACCESS_KEY", "SECURITY_TOKEN", "SIGNATURE", "UNIQUE_KEY_QUERY", "Signer"]

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""RocketMQ's broker excludes this field from verification, although its 4.9 clients sign it."""


class Signer:
    """Signatures with one secret key, which is never shown."""

    __slots__ = ("_keyed",)

    def __init__(self, secret_key: str) -> None:
        self._keyed = hmac.new(secret_key.encode(errors="replace"), digestmod="sha1")

    def sign(self, command: Command, access_key: str, security_token: str | None = None) -> None:
        """Replace the fields by a signed copy; an earlier signature is replaced, too."""
        fields = {**command.fields, ACCESS_KEY: access_key}
        if SECOND_SIGNATURE in fields:  # signed for an earlier connection
            del fields[SECOND_SIGNATURE], fields[SECOND_COUNTER]
        if security_token is not None:
            fields[SECURITY_TOKEN] = security_token
        fields[SIGNATURE] = self.signature(fields, command.body).decode()
        command.fields = fields

    def signed(self, fields: Mapping[str, str], body: bytes) -> bool:
        """Return whether the fields carry a signature with this secret key, in constant time."""
        stated = fields.get(SIGNATURE, "").encode(errors="replace")
        if hmac.compare_digest(stated, self.signature(fields, body)):
            return True
        if UNIQUE_KEY_QUERY not in fields:
            return False
        checked = {name: value for name, value in fields.items() if name != UNIQUE_KEY_QUERY}
        return hmac.compare_digest(stated, self.signature(checked, body))

    def signature(self, fields: Mapping[str, str], body: bytes) -> bytes:
        """Return the base64 of the signature of the body and of all fields except the signature."""
        names = sorted(fields)
        if SIGNATURE in fields:
            names.remove(SIGNATURE)
        keyed = self._keyed.copy()
        # A lone surrogate has no UTF-8 form; the request is sent with a question mark in its place, too.
        keyed.update("".join([fields[name] for name in names]).encode(errors="replace"))
        if body:
            keyed.update(body)
        return b2a_base64(keyed.digest(), newline=False)
