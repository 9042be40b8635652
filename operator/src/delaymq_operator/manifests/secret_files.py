"""Files of a user's Secret in a pod, named by its keys. They are updated with the Secret, without a restart."""

from __future__ import annotations

from dataclasses import dataclass

from delaymq_operator.manifests.metadata import Manifest


@dataclass(frozen=True, kw_only=True)
class SecretFiles:
    """Keys of a Secret that a container can read, and their location."""

    volume: str
    path: str
    keys: tuple[str, ...]

    def mounts(self, secret_name: str | None) -> list[Manifest]:
        """Return the mounts; none without a Secret. They do not use subPath, since such a mount would never be
        updated.
        """
        if secret_name is None:
            return []
        return [{"name": self.volume, "mountPath": self.path, "readOnly": True}]

    def volumes(self, secret_name: str | None) -> list[Manifest]:
        """Return volumes with these keys only. No pod starts while one of them is missing."""
        if secret_name is None:
            return []
        items = [{"key": key, "path": key} for key in self.keys]
        secret = {"secretName": secret_name, "items": items, "defaultMode": 0o440}
        return [{"name": self.volume, "secret": secret}]
