"""Users' Secrets referred to by a Broker: their contents, cached briefly, since Secrets are not watched.

Private keys and rules are not stored, only whether they exist. The operator's own account and CA certificates are.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from delaymq_operator.api import Broker
from delaymq_operator.api.names import (
    ACCESS_KEY,
    BROKER_KIND,
    CA_KEY,
    CERTIFICATE_KEY,
    SECRET_KEY,
    registration_secret,
)
from delaymq_operator.manifests import registers
from delaymq_operator.manifests.certificates import secret_texts
from delaymq_operator.reconcile.certificates import facts_of, is_issued_by_one_of, split_bundle, verification_name
from delaymq_operator.reconcile.context import Key, ReconcileContext
from delaymq_operator.reconcile.ports import AdminAccount, ServerTrust

MAX_AGE_MS: Final = 10_000
"""Maximum age of a cached Secret, which thousands of Topics use."""
_MAX_CHARACTERS: Final = 1_024


@dataclass(frozen=True)
class SecretContent:
    """A Secret as last read."""

    there: bool = False
    keys: frozenset[str] = frozenset()
    """Names of the keys that are not empty."""
    account: AdminAccount | None = None
    """The operator's account, if there is one."""
    trust: ServerTrust | None = None
    """How the certificate in it is verified; None without a certificate that has names, or without its issuer."""


@dataclass
class SecretCache:
    """Cache of Secrets, stored under the Broker's key."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    seen: dict[str, tuple[int, SecretContent]] = field(default_factory=dict)
    """Name → time and contents."""


async def read_secret(
    broker: Broker, name: str, ctx: ReconcileContext, *, max_age_ms: int = MAX_AGE_MS
) -> SecretContent:
    """Return a Secret of the Broker's namespace, at most ``max_age_ms`` old. KubeError."""
    remembered = ctx.memory.of(Key(BROKER_KIND, broker.namespace, broker.name), SecretCache)
    async with remembered.lock:
        now_ms = ctx.clock()
        read_ms, seen = remembered.seen.get(name, (now_ms - max_age_ms, SecretContent()))
        if not 0 <= now_ms - read_ms < max_age_ms:
            seen = parse_secret(await ctx.kube.get("Secret", broker.namespace, name), name)
            named = {broker.rules_secret, broker.certificate_secret, registration_secret(broker.name)}
            remembered.seen = {key: kept for key, kept in remembered.seen.items() if key in named}
            remembered.seen[name] = now_ms, seen
        return seen


def forget_secret(broker: Broker, name: str, ctx: ReconcileContext) -> None:
    """Forget a Secret that the operator has changed."""
    ctx.memory.of(Key(BROKER_KIND, broker.namespace, broker.name), SecretCache).seen.pop(name, None)


async def operator_account(broker: Broker, ctx: ReconcileContext) -> AdminAccount | None:
    """Return the account for the operator's requests; None without access control, or without an account in the
    Secret. KubeError.
    """
    name = broker.rules_secret
    return None if name is None else (await read_secret(broker, name, ctx)).account


async def name_server_account(broker: Broker, ctx: ReconcileContext) -> AdminAccount | None:
    """Return the account with which the operator changes its NameServers; None if nobody signs. KubeError."""
    if not registers(broker):
        return None
    return (await read_secret(broker, registration_secret(broker.name), ctx)).account


async def server_trust(broker: Broker, ctx: ReconcileContext) -> ServerTrust | None:
    """Return how the operator verifies brokers and NameServers; None: it connects to them in plaintext. KubeError."""
    name = broker.certificate_secret
    return None if name is None else (await read_secret(broker, name, ctx)).trust


def parse_secret(secret: Mapping[str, Any] | None, name: str = "") -> SecretContent:
    """Return the relevant contents of a Secret, or of a missing one."""
    if secret is None:
        return SecretContent()
    data = secret.get("data") or {}
    access_key, secret_key = _text(data.get(ACCESS_KEY)), _text(data.get(SECRET_KEY))
    account = AdminAccount(access_key=access_key, secret_key=secret_key) if access_key and secret_key else None
    keys = frozenset(key for key, value in data.items() if value)
    return SecretContent(there=True, keys=keys, account=account, trust=_trust(secret, name))


def _trust(secret: Mapping[str, Any], name: str) -> ServerTrust | None:
    texts = secret_texts(secret)
    if CA_KEY not in texts or CERTIFICATE_KEY not in texts:
        return None
    authorities, chain = split_bundle(texts[CA_KEY]), split_bundle(texts[CERTIFICATE_KEY])
    if not any(is_issued_by_one_of(each, authorities) for each in chain):
        return None
    expected = verification_name(facts_of(chain[0]).names)
    return ServerTrust(secret_name=name, ca="".join(authorities), name=expected) if expected else None


def _text(encoded: object) -> str:
    if not isinstance(encoded, str):
        return ""
    try:
        text = base64.b64decode(encoded, validate=True).decode().strip()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return text if text.isprintable() and len(text) <= _MAX_CHARACTERS else ""
