"""The Secret with a certificate in the pods. Its files change with it, and servers read them again: no restart."""

from __future__ import annotations

from typing import Final

from delaymq_operator.api.broker import Broker
from delaymq_operator.manifests.metadata import Manifest
from delaymq_operator.manifests.secret_files import SecretFiles

TLS_PATH: Final = "/etc/delaymq-tls"
_CERTIFICATE: Final = "tls.crt"
_KEY: Final = "tls.key"
"""Keys of a Secret of type kubernetes.io/tls."""
_FILES: Final = SecretFiles(volume="tls", path=TLS_PATH, keys=(_CERTIFICATE, _KEY))


def tls_environment(broker: Broker) -> dict[str, str]:
    """Variables that name the files; none without a Secret."""
    if broker.spec.tls is None:
        return {}
    return {
        "DELAYMQ_TLS_SERVER_CERT_PATH": f"{TLS_PATH}/{_CERTIFICATE}",
        "DELAYMQ_TLS_SERVER_KEY_PATH": f"{TLS_PATH}/{_KEY}",
    }


def tls_mounts(broker: Broker) -> list[Manifest]:
    """Where the container finds them."""
    return _FILES.mounts(_secret_name(broker))


def tls_volumes(broker: Broker) -> list[Manifest]:
    """The Secret; without it, or the two in it, no pod starts. Another kind of Secret gets into no pod by this."""
    return _FILES.volumes(_secret_name(broker))


def _secret_name(broker: Broker) -> str | None:
    return None if broker.spec.tls is None else broker.spec.tls.secret_name
