"""How the brokers of a Broker are reached: the token in its Secret, and the address of a pod."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from delaymq_operator.api import names
from delaymq_operator.reconcile.ports import Endpoint, Kube


async def read_token(kube: Kube, namespace: str, broker: str) -> str | None:
    """The token of a Broker's HTTP, by one request; None when there is no Secret with one. KubeError."""
    return token_in(await kube.get("Secret", namespace, names.token_secret(broker)))


def token_in(secret: Mapping[str, Any] | None) -> str | None:
    """The token in a Secret, if there is one."""
    encoded = ((secret or {}).get("data") or {}).get(names.TOKEN_KEY, "")
    try:
        return base64.b64decode(encoded, validate=True).decode().strip() or None
    except (binascii.Error, UnicodeDecodeError):
        return None


def broker_endpoint(pod_ip: str, listen_port: int, token: str) -> Endpoint:
    """A broker by its pod's address, which is right from the moment that the pod has one."""
    return Endpoint(host=pod_ip, broker_port=listen_port, http_port=names.BROKER_HTTP_PORT, token=token)
