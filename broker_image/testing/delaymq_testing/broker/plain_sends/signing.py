"""Signatures of producers' requests, some of them missing or wrong."""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

from delaymq.protocol.credential_fields import ACCESS_KEY, SECOND_COUNTER, SECOND_SIGNATURE, SECURITY_TOKEN, SIGNATURE
from delaymq.protocol.signatures import UNIQUE_KEY_QUERY, Signer

_BASE64: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_WRONG: Final = (
    "unsigned", "key only", "signature only", "other key", "other secret", "other body", "token", "query", "second",
    "empty", "spare bits", "no padding", "lower case", "space",
)  # fmt: skip


class Keys(NamedTuple):
    """Access key and secret key of an account."""

    access_key: str
    secret_key: str


def signed(
    chance: Random, fields: dict[str, str | None], body: bytes, keys: Keys | None, unusual: float = 0.05
) -> dict[str, str | None]:
    """Return the fields with a signature, which is occasionally missing, wrong or unusual; unchanged without keys."""
    if keys is None:
        return fields
    wrong = chance.choice(_WRONG) if chance.random() < unusual else ""
    if wrong == "unsigned":
        return fields
    access_key = "other-account" if wrong == "other key" else keys.access_key
    more: dict[str, str | None] = {SECURITY_TOKEN: "token"} if wrong == "token" else {}
    content = fields | {ACCESS_KEY: access_key} | more
    signer = Signer(keys.secret_key + "x" if wrong == "other secret" else keys.secret_key)
    texts = {name: value or "" for name, value in content.items()}
    text = signer.signature(texts, body + b"x" if wrong == "other body" else body).decode()
    spare = _BASE64[_BASE64.index(text[-2]) + 1]
    changed = {
        "empty": "",
        "spare bits": f"{text[:-2]}{spare}=",
        "no padding": text[:-1],
        "lower case": text.lower(),
        "space": text + " ",
    }
    given = content | {SIGNATURE: changed.get(wrong, text)}
    if wrong in ("key only", "signature only"):
        del given[SIGNATURE if wrong == "key only" else ACCESS_KEY]
    elif wrong == "query":
        given[UNIQUE_KEY_QUERY] = "true"
    elif wrong == "second":
        given |= {SECOND_SIGNATURE: "x", SECOND_COUNTER: "1"}
    return given
