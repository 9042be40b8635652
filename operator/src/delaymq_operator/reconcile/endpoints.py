"""Access to the brokers of a Broker: the token in its Secret, and the address of a pod."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from delaymq_operator.api import names
from delaymq_operator.manifests.tls import enforces, mounted_certificate
from delaymq_operator.reconcile.ports import AdminAccount, Endpoint, Kube, ServerTrust

_WORD = re.compile("[!-~]+")


async def read_token(kube: Kube, namespace: str, broker: str) -> str | None:
    """Return the token of a Broker's HTTP interface, by one request; None without a Secret that contains it.
    KubeError.
    """
    return token_in(await kube.get("Secret", namespace, names.token_secret(broker)))


def token_in(secret: Mapping[str, Any] | None) -> str | None:
    """Return the token in a Secret, if there is one."""
    encoded = ((secret or {}).get("data") or {}).get(names.TOKEN_KEY, "")
    try:
        token = base64.b64decode(encoded, validate=True).decode().strip()
    except (binascii.Error, UnicodeDecodeError):
        return None
    # Other characters cannot be sent in a header.
    return token if _WORD.fullmatch(token) else None


def running_port(pod: Mapping[str, Any]) -> int | None:
    """Return the port of the broker in a pod, which may differ from the spec until its restart."""
    for container in (pod.get("spec") or {}).get("containers") or []:
        for port in container.get("ports") or []:
            if port.get("name") == "broker":
                found: int = port["containerPort"]
                return found
    return None


def pod_trust(pod: Mapping[str, Any], trust: ServerTrust | None) -> ServerTrust | None:
    """Return how to verify the servers of a pod; None: it has another certificate, or none, and is not verified."""
    return trust if trust is not None and mounted_certificate(pod) == trust.secret_name else None


def broker_endpoint(
    pod: Mapping[str, Any],
    listen_port: int,
    token: str,
    account: AdminAccount | None = None,
    trust: ServerTrust | None = None,
) -> Endpoint | None:
    """Return the endpoint of a broker by its pod's address, which is valid as soon as the pod has one.

    It depends on the pod, and not on the spec, which may not be in effect there yet, whether the connection uses TLS.
    """
    address = (pod.get("status") or {}).get("podIP")
    if not address:
        return None
    return Endpoint(
        host=address,
        broker_port=running_port(pod) or listen_port,
        http_port=names.BROKER_HTTP_PORT,
        token=token,
        account=account,
        tls=pod_trust(pod, trust),
        https=enforces(pod),
    )
