"""Files of a user's Secret in a pod, by the names of its keys. They change with the Secret: no restart."""

from __future__ import annotations

from dataclasses import dataclass

from delaymq_operator.manifests.metadata import Manifest


@dataclass(frozen=True, kw_only=True)
class SecretFiles:
    """Which keys of a Secret a container sees, and where."""

    volume: str
    path: str
    keys: tuple[str, ...]

    def mounts(self, secret_name: str | None) -> list[Manifest]:
        """Where the container finds them; nothing without a Secret. Not by subPath: such a mount would never change."""
        if secret_name is None:
            return []
        return [{"name": self.volume, "mountPath": self.path, "readOnly": True}]

    def volumes(self, secret_name: str | None) -> list[Manifest]:
        """These keys alone: nothing else of the Secret gets into a pod. Where one of them is missing no pod starts."""
        if secret_name is None:
            return []
        items = [{"key": key, "path": key} for key in self.keys]
        secret = {"secretName": secret_name, "items": items, "defaultMode": 0o440}
        return [{"name": self.volume, "secret": secret}]
