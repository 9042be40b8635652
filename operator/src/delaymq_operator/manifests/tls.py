"""The Secret with a certificate in the pods. Its files change with it, and servers read them again: no restart."""

from __future__ import annotations

from typing import Final

from delaymq_operator.api.broker import Broker
from delaymq_operator.manifests.metadata import Manifest

TLS_PATH: Final = "/etc/delaymq-tls"
_FILES: Final = ("tls.crt", "tls.key")
"""Keys of a Secret of type kubernetes.io/tls."""
_VOLUME: Final = "tls"


def tls_environment(broker: Broker) -> dict[str, str]:
    """Variables that name the files; none without a Secret."""
    if broker.spec.tls is None:
        return {}
    certificate, key = _FILES
    return {
        "DELAYMQ_TLS_SERVER_CERT_PATH": f"{TLS_PATH}/{certificate}",
        "DELAYMQ_TLS_SERVER_KEY_PATH": f"{TLS_PATH}/{key}",
    }


def tls_mounts(broker: Broker) -> list[Manifest]:
    """Where the container finds them."""
    if broker.spec.tls is None:
        return []
    return [{"name": _VOLUME, "mountPath": TLS_PATH, "readOnly": True}]


def tls_volumes(broker: Broker) -> list[Manifest]:
    """The Secret; without it, or the two in it, no pod starts. Another kind of Secret gets into no pod by this."""
    if broker.spec.tls is None:
        return []
    items = [{"key": name, "path": name} for name in _FILES]
    secret = {"secretName": broker.spec.tls.secret_name, "items": items, "defaultMode": 0o440}
    return [{"name": _VOLUME, "secret": secret}]
