"""The Secret with the rules of access control in brokers' pods. A change counts within a minute or two: no restart.

Of the Secret only the rules are mounted; the operator's own account in it stays outside of pods.
"""

from __future__ import annotations

from typing import Final

from delaymq_operator.api.broker import Broker
from delaymq_operator.manifests.metadata import Manifest
from delaymq_operator.manifests.secret_files import SecretFiles

ACCESS_PATH: Final = "/etc/delaymq-access"
RULES_KEY: Final = "plain_acl.yml"
_FILES: Final = SecretFiles(volume="access", path=ACCESS_PATH, keys=(RULES_KEY,))


def access_environment(broker: Broker) -> dict[str, str]:
    """Variables that switch it on and name the file; none without a Secret."""
    if broker.spec.access_control is None:
        return {}
    return {"DELAYMQ_ACL_ENABLE": "true", "DELAYMQ_ACL_CONFIG_PATH": f"{ACCESS_PATH}/{RULES_KEY}"}


def access_mounts(broker: Broker) -> list[Manifest]:
    """Where the container finds it."""
    return _FILES.mounts(_secret_name(broker))


def access_volumes(broker: Broker) -> list[Manifest]:
    """The Secret; without it, or without rules in it, no pod starts."""
    return _FILES.volumes(_secret_name(broker))


def _secret_name(broker: Broker) -> str | None:
    access_control = broker.spec.access_control
    return None if access_control is None else access_control.secret_name
