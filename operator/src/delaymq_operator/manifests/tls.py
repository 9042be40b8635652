"""Certificate Secrets in pods. Servers reload the files when they change, without a restart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from delaymq_operator.api.broker import Broker
from delaymq_operator.api.names import BROKER_HTTP_PORT, CA_KEY, CERTIFICATE_KEY, PRIVATE_KEY_KEY
from delaymq_operator.manifests.metadata import Manifest
from delaymq_operator.manifests.secret_files import SecretFiles

TLS_PATH: Final = "/etc/delaymq-tls"
CA_PATH: Final = f"{TLS_PATH}/{CA_KEY}"
MODE_VARIABLE: Final = "DELAYMQ_TLS_SERVER_MODE"
ENFORCING: Final = "enforcing"
_VOLUME: Final = "tls"


def tls_environment(broker: Broker) -> dict[str, str]:
    """Return the variables of brokers and NameServers; none without a Secret."""
    if broker.spec.tls is None:
        return {}
    found = {
        "DELAYMQ_TLS_SERVER_CERT_PATH": f"{TLS_PATH}/{CERTIFICATE_KEY}",
        "DELAYMQ_TLS_SERVER_KEY_PATH": f"{TLS_PATH}/{PRIVATE_KEY_KEY}",
    }
    if broker.enforces_tls:
        found |= {MODE_VARIABLE: ENFORCING, "DELAYMQ_HTTP_TLS": "true"}
    return found


def tls_client_environment(broker: Broker) -> dict[str, str]:
    """Return the variables for a broker's connections to NameServers and other members, and for commands in its pod."""
    if not broker.enforces_tls:
        return {}
    return {
        "DELAYMQ_USE_TLS": "true",
        "DELAYMQ_TLS_CLIENT_AUTH_SERVER": "true",
        "DELAYMQ_TLS_CLIENT_TRUST_CERT_PATH": CA_PATH,
        "DELAYMQ_HTTP": f"https://127.0.0.1:{BROKER_HTTP_PORT}",
        "DELAYMQ_TLS_CA": CA_PATH,
    }


def enforces(pod: Mapping[str, Any] | None) -> bool:
    """Return whether a pod, or the pods of a template, accept TLS connections only, those to HTTP included."""
    containers = ((pod or {}).get("spec") or {}).get("containers") or [{}]
    entries = containers[0].get("env") or []
    return any(entry.get("name") == MODE_VARIABLE and entry.get("value") == ENFORCING for entry in entries)


def mounted_certificate(pod: Mapping[str, Any] | None) -> str | None:
    """Return the Secret with the certificate of a pod, or of a pod template."""
    for volume in ((pod or {}).get("spec") or {}).get("volumes") or []:
        if volume.get("name") == _VOLUME:
            found: str | None = (volume.get("secret") or {}).get("secretName")
            return found
    return None


def tls_mounts(broker: Broker) -> list[Manifest]:
    """Return the mounts of the container."""
    return _files(broker).mounts(broker.certificate_secret)


def tls_volumes(broker: Broker) -> list[Manifest]:
    """Return the volume of the Secret; without it, or without one of the keys, no pod starts. No other Secret type
    can be mounted.
    """
    return _files(broker).volumes(broker.certificate_secret)


def _files(broker: Broker) -> SecretFiles:
    keys = (CERTIFICATE_KEY, PRIVATE_KEY_KEY)
    return SecretFiles(volume=_VOLUME, path=TLS_PATH, keys=(*keys, CA_KEY) if broker.enforces_tls else keys)
