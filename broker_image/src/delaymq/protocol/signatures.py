"""Signatures of requests, as RocketMQ's access control has them: made by clients, checked by brokers.

A signed request carries the fields `AccessKey`, `Signature` and perhaps `SecurityToken`. The signature is the base64
of HMAC-SHA1 over the values of all other fields, in the order of their names, and the body, by the account's secret.
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
"""RocketMQ's broker leaves this field out of what it checks, though its clients of 4.9 sign it."""


class Signer:
    """Signatures by one secret, which is shown nowhere."""

    __slots__ = ("_keyed",)

    def __init__(self, secret_key: str) -> None:
        self._keyed = hmac.new(secret_key.encode(errors="replace"), digestmod="sha1")

    def sign(self, command: Command, access_key: str, security_token: str | None = None) -> None:
        """Adds the fields; a command that was signed before is signed anew. Its dictionary of fields is not touched."""
        fields = {**command.fields, ACCESS_KEY: access_key}
        if SECOND_SIGNATURE in fields:  # it was signed for a connection that is gone
            del fields[SECOND_SIGNATURE], fields[SECOND_COUNTER]
        if security_token is not None:
            fields[SECURITY_TOKEN] = security_token
        fields[SIGNATURE] = self.signature(fields, command.body).decode()
        command.fields = fields

    def signed(self, fields: Mapping[str, str], body: bytes) -> bool:
        """Whether the fields carry this secret's signature; it takes the same time whatever is wrong with one."""
        stated = fields.get(SIGNATURE, "").encode(errors="replace")
        if hmac.compare_digest(stated, self.signature(fields, body)):
            return True
        if UNIQUE_KEY_QUERY not in fields:
            return False
        checked = {name: value for name, value in fields.items() if name != UNIQUE_KEY_QUERY}
        return hmac.compare_digest(stated, self.signature(checked, body))

    def signature(self, fields: Mapping[str, str], body: bytes) -> bytes:
        """The base64 of the signature of these fields, but for the signature itself, and this body."""
        names = sorted(fields)
        if SIGNATURE in fields:
            names.remove(SIGNATURE)
        keyed = self._keyed.copy()
        # A lone surrogate has no UTF-8 form; what is sent has a question mark there too.
        keyed.update("".join([fields[name] for name in names]).encode(errors="replace"))
        if body:
            keyed.update(body)
        return b2a_base64(keyed.digest(), newline=False)
