"""Access control Secrets in brokers' pods. A change takes effect within one or two minutes, without a restart.

Only the rules of the Secret are mounted; the operator's account in it is not available in pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from delaymq_operator.api.broker import Broker
from delaymq_operator.manifests.metadata import Manifest
from delaymq_operator.manifests.secret_files import SecretFiles

ACCESS_PATH: Final = "/etc/delaymq-access"
RULES_KEY: Final = "plain_acl.yml"
RULES_PATH: Final = f"{ACCESS_PATH}/{RULES_KEY}"
OWN_METADATA: Final = "own"
"""Value of aclMetadata and namesrvAclMetadata."""
ENABLED: Final = "DELAYMQ_ACL_ENABLE"
ADMIN_NEEDS_TLS: Final = "DELAYMQ_ACL_ADMIN_NEEDS_TLS"
_FILES: Final = SecretFiles(volume="access", path=ACCESS_PATH, keys=(RULES_KEY,))


def access_environment(broker: Broker, admin_needs_tls: bool) -> dict[str, str]:
    """Return the variables that enable access control and name the file; none without a Secret.

    `admin_needs_tls` applies with a certificate, unless the spec sets it.
    """
    if broker.spec.access_control is None:
        return {}
    found = {ENABLED: "true", "DELAYMQ_ACL_CONFIG_PATH": RULES_PATH}
    if broker.hides_metadata:
        found["DELAYMQ_ACL_METADATA"] = OWN_METADATA
    if admin_needs_tls and broker.spec.tls is not None and "aclAdminNeedsTls" not in broker.spec.config:
        found[ADMIN_NEEDS_TLS] = "true"
    return found


def keeps_plain_administrators(template: Mapping[str, Any]) -> bool:
    """Return whether pods of this template have access control and accept administrative requests without TLS."""
    spec = template.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    first = containers[0] if isinstance(containers, list) and containers else None
    entries = first.get("env") if isinstance(first, dict) else None
    names = {entry.get("name") for entry in entries or () if isinstance(entry, dict)}
    return ENABLED in names and ADMIN_NEEDS_TLS not in names


def access_mounts(broker: Broker) -> list[Manifest]:
    """Return the mounts of the container."""
    return _FILES.mounts(broker.rules_secret)


def access_volumes(broker: Broker) -> list[Manifest]:
    """Return the volume of the Secret; without it, or without rules in it, no pod starts."""
    return _FILES.volumes(broker.rules_secret)
