"""The account by which the operator asks brokers that have access control; it stands in the Secret with their rules."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from delaymq_operator.api import Broker
from delaymq_operator.api.names import BROKER_KIND
from delaymq_operator.reconcile.ports import Account
from delaymq_operator.reconcile.world import Key, World

ACCESS_KEY: Final = "accessKey"
SECRET_KEY: Final = "secretKey"
MAX_AGE_MS: Final = 10_000
"""How long it is believed: Secrets are not watched, and thousands of Topics use it."""
_MAX_CHARACTERS: Final = 1_024


class RememberedAccount:
    """What was read last; kept under the Broker's key."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.secret_name = ""
        self.account: Account | None = None
        self.read_ms = 0


async def operator_account(broker: Broker, world: World) -> Account | None:
    """The account; None without access control, and when the Secret has none. KubeError."""
    control = broker.spec.access_control
    if control is None:
        return None
    remembered = world.memory.of(Key(BROKER_KIND, broker.namespace, broker.name), RememberedAccount)
    async with remembered.lock:
        now_ms = world.clock()
        known = remembered.secret_name == control.secret_name and remembered.account is not None
        if not known or not 0 <= now_ms - remembered.read_ms < MAX_AGE_MS:
            secret = await world.kube.get("Secret", broker.namespace, control.secret_name)
            remembered.account = account_in(secret)
            remembered.secret_name, remembered.read_ms = control.secret_name, now_ms
        return remembered.account


def account_in(secret: Mapping[str, Any] | None) -> Account | None:
    """The account in a Secret, if there is one."""
    data = (secret or {}).get("data") or {}
    access_key, secret_key = _text(data.get(ACCESS_KEY)), _text(data.get(SECRET_KEY))
    return Account(access_key=access_key, secret_key=secret_key) if access_key and secret_key else None


def _text(encoded: object) -> str:
    if not isinstance(encoded, str):
        return ""
    try:
        text = base64.b64decode(encoded, validate=True).decode().strip()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return text if text.isprintable() and len(text) <= _MAX_CHARACTERS else ""
