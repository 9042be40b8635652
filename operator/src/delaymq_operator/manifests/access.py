"""The Secret with the rules of access control in brokers' pods. A change counts within a minute or two: no restart.

Of the Secret only the rules are mounted; the operator's own account in it stays outside of pods.
"""

from __future__ import annotations

from typing import Final

from delaymq_operator.api.broker import Broker
from delaymq_operator.manifests.metadata import Manifest

ACCESS_PATH: Final = "/etc/delaymq-access"
RULES_KEY: Final = "plain_acl.yml"
_VOLUME: Final = "access"


def access_environment(broker: Broker) -> dict[str, str]:
    """Variables that switch it on and name the file; none without a Secret."""
    if broker.spec.access_control is None:
        return {}
    return {"DELAYMQ_ACL_ENABLE": "true", "DELAYMQ_ACL_CONFIG_PATH": f"{ACCESS_PATH}/{RULES_KEY}"}


def access_mounts(broker: Broker) -> list[Manifest]:
    """Where the container finds it. Not by subPath: such a mount would never change."""
    if broker.spec.access_control is None:
        return []
    return [{"name": _VOLUME, "mountPath": ACCESS_PATH, "readOnly": True}]


def access_volumes(broker: Broker) -> list[Manifest]:
    """The Secret; without it, or without rules in it, no pod starts."""
    if broker.spec.access_control is None:
        return []
    items = [{"key": RULES_KEY, "path": RULES_KEY}]
    secret = {"secretName": broker.spec.access_control.secret_name, "items": items, "defaultMode": 0o440}
    return [{"name": _VOLUME, "secret": secret}]
