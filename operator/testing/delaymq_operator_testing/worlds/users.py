"""Simulated cluster with a Broker and its Users, and with clients that sign with the keys in the Users' Secrets."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from typing import Any

from delaymq_operator.reconcile.context import Key, Outcome
from delaymq_operator.reconcile.errors import KubeError
from delaymq_operator.reconcile.ports import Manifest
from delaymq_operator.reconcile.users import reconcile_user

from delaymq_operator_testing.fakes.world import NAMESPACE, DiedError, FakeWorld
from delaymq_operator_testing.trees import copied

CONTROL = {"users": True}


@dataclass
class UsersWorld(FakeWorld):
    """A FakeWorld whose operator also reconciles Users; each User has a client, which sends to all brokers."""

    client_lag_ms: int = 0
    """Time after which clients read a changed Secret."""
    refused: list[str] = field(default_factory=list)
    """Rejected requests of clients."""
    _client_keys: dict[str, str] = field(default_factory=dict)
    _coming: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    _made: int = 0

    def user(self, name: str, **spec: Any) -> Manifest:
        """Create a User, or change its spec."""
        known = self.kube.objects.get(("User", NAMESPACE, name))
        if known is None:
            self._made += 1
            created = f"2026-01-01T00:00:{self._made:02}Z"
            metadata = {
                "name": name, "namespace": NAMESPACE, "uid": f"uid-{name}-{self._made}", "creationTimestamp": created,
            }  # fmt: skip
            return self.kube.put({"kind": "User", "metadata": metadata, "spec": {"brokerRef": {"name": "demo"}} | spec})
        body = copied(known)
        body["spec"] |= spec
        return self.kube.put(body)

    def delete_user(self, name: str) -> None:
        """Delete a User, and what it owns."""
        self.kube.remove("User", NAMESPACE, name)
        self.kube.remove("Secret", NAMESPACE, f"{name}-credentials")

    def user_status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.kube.objects["User", NAMESPACE, name].get("status") or {}
        return found

    def ready(self, name: str) -> tuple[str, str]:
        """Return status and reason of the condition Ready."""
        conditions = self.user_status(name).get("conditions") or [{}]
        return str(conditions[0].get("status")), str(conditions[0].get("reason"))

    def message(self, name: str) -> str:
        return str((self.user_status(name).get("conditions") or [{}])[0].get("message"))

    def secret(self, name: str) -> dict[str, str] | None:
        """Return the contents of a Secret."""
        found = self.kube.objects.get(("Secret", NAMESPACE, name))
        return None if found is None else {key: base64.b64decode(text).decode() for key, text in found["data"].items()}

    def key_of(self, name: str) -> str | None:
        """Return the secret key that clients of a User receive."""
        found = self.secret(f"{name}-credentials")
        return None if found is None else found["secretKey"]

    def reconcile_user(self, name: str) -> Outcome | None:
        """Reconcile a User once; return None if this failed."""
        try:
            return asyncio.run(reconcile_user(Key("User", NAMESPACE, name), self.world()))
        except KubeError as error:
            self.failures.append(error)
        except DiedError:
            self.deaths += 1
            self.restart_operator()
        return None

    def reconcile(self) -> Outcome | None:
        """Reconcile the Users and the Broker once."""
        for body in list(self.kube.select("User", NAMESPACE, {})):
            self.reconcile_user(body["metadata"]["name"])
        outcome = super().reconcile()
        return None if outcome is None else Outcome(1.0)

    def tick(self) -> None:
        super().tick()
        self._send()

    def _send(self) -> None:
        for body in self.kube.select("User", NAMESPACE, {}):
            name = body["metadata"]["name"]
            current = self.secret(f"{name}-credentials")
            if current is not None and "secretKey" in current:
                known = self._coming.setdefault(name, [])
                newest = known[-1][1] if known else self._client_keys.get(name)
                if newest != current["secretKey"]:
                    lag_ms = self.client_lag_ms if newest is not None else 0
                    known.append((self.now_ms + lag_ms, current["secretKey"]))
            coming = self._coming.get(name, [])
            while coming and coming[0][0] <= self.now_ms:
                self._client_keys[name] = coming.pop(0)[1]
            used = self._client_keys.get(name)
            access_key = body["spec"].get("accessKey") or name
            for pod in list(self.brokers.rules.in_force) if used is not None else ():
                if not self.brokers.rules.accepts(pod, access_key, used or ""):
                    self.refused.append(f"{self.now_ms}: {pod} rejects {name}")
