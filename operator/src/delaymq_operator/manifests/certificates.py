"""Secrets and ConfigMap of a certificate that the operator issues, with a CA of the Broker.

Certificate and key are always in one object, so that each request leaves a pair that matches.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from delaymq_operator.api import names
from delaymq_operator.api.broker import Broker
from delaymq_operator.manifests.metadata import Manifest, new_object, secret_data

AUTHORITY_KEY: Final = "ca.key"
NEXT_CERTIFICATE: Final = "next.crt"
NEXT_KEY: Final = "next.key"
FORMER_CERTIFICATES: Final = "former.crt"
"""Keys of the CA's Secret besides ca.crt: the private key, the next CA, and the certificates of former ones."""


def authority_secret(broker: Broker, texts: Mapping[str, str]) -> Manifest:
    """Return the Secret with the CA, which no pod mounts."""
    found = new_object(broker, "Secret", names.authority_objects(broker.name))
    found["type"] = "Opaque"
    found["data"] = secret_data(dict(sorted(texts.items())))
    return found


def authority_config_map(broker: Broker, bundle: str) -> Manifest:
    """Return the ConfigMap with the certificates that clients need to verify servers."""
    found = new_object(broker, "ConfigMap", names.authority_objects(broker.name))
    found["data"] = {names.CA_KEY: bundle}
    return found


def issued_secret(broker: Broker, texts: Mapping[str, str]) -> Manifest:
    """Return the Secret with the certificate of brokers and NameServers, in the form of cert-manager's."""
    found = new_object(broker, "Secret", names.certificate_secret(broker.name))
    found["type"] = "kubernetes.io/tls"
    found["data"] = secret_data(dict(sorted(texts.items())))
    return found


def secret_texts(secret: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the readable texts of a Secret by key, without empty ones."""
    found = {}
    for key, encoded in ((secret or {}).get("data") or {}).items():
        try:
            text = base64.b64decode(encoded, validate=True).decode("ascii")
        except (TypeError, ValueError, binascii.Error):
            continue
        if text:
            found[key] = text
    return found
