"""Certificate Secrets in pods. Servers reload the files when they change, without a restart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from delaymq_operator.api.broker import Broker
from delaymq_operator.api.names import CERTIFICATE_KEY, PRIVATE_KEY_KEY
from delaymq_operator.manifests.metadata import Manifest
from delaymq_operator.manifests.secret_files import SecretFiles

TLS_PATH: Final = "/etc/delaymq-tls"
_FILES: Final = SecretFiles(volume="tls", path=TLS_PATH, keys=(CERTIFICATE_KEY, PRIVATE_KEY_KEY))


def tls_environment(broker: Broker) -> dict[str, str]:
    """Return the variables that name the files; none without a Secret."""
    if broker.spec.tls is None:
        return {}
    return {
        "DELAYMQ_TLS_SERVER_CERT_PATH": f"{TLS_PATH}/{CERTIFICATE_KEY}",
        "DELAYMQ_TLS_SERVER_KEY_PATH": f"{TLS_PATH}/{PRIVATE_KEY_KEY}",
    }


def mounted_certificate(pod: Mapping[str, Any]) -> str | None:
    """Return the Secret with the certificate of a pod, or of a pod template."""
    for volume in (pod.get("spec") or {}).get("volumes") or []:
        if volume.get("name") == _FILES.volume:
            found: str | None = (volume.get("secret") or {}).get("secretName")
            return found
    return None


def tls_mounts(broker: Broker) -> list[Manifest]:
    """Return the mounts of the container."""
    return _FILES.mounts(broker.certificate_secret)


def tls_volumes(broker: Broker) -> list[Manifest]:
    """Return the volume of the Secret; without it, or without its two keys, no pod starts. No other Secret type can
    be mounted.
    """
    return _FILES.volumes(broker.certificate_secret)
