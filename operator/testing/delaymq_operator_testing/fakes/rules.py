"""Rule files in the pods of in-memory brokers and NameServers: kubelets deliver a changed Secret later, each at its own
time.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from delaymq.access.plain_acl import AclFile, parse
from delaymq.namesrv.rules import parse as names_file
from delaymq_operator.api.names import COMPONENT_LABEL, INSTANCE_LABEL, registration_secret, users_secret
from delaymq_operator.manifests import NAMES_ACCOUNTS_PATH, RULES_KEY, RULES_PATH
from delaymq_operator.reconcile.errors import BrokerRefused
from delaymq_operator.reconcile.ports import AdminAccount

from delaymq_operator_testing.fakes.kube import FakeKube


@dataclass
class FakeRules:
    """Rules in force by pod."""

    kube: FakeKube
    namespace: str
    clock: Callable[[], int]
    lags_ms: dict[str, int] = field(default_factory=dict)
    """Time by which a kubelet delivers changes late, by pod."""
    in_force: dict[str, AclFile] = field(default_factory=dict)
    _texts: dict[str, str] = field(default_factory=dict)
    _coming: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def tick(self, running: Collection[str]) -> None:
        """Deliver changes that are due; a pod starts with the present rules."""
        for pod in [pod for pod in self.in_force if pod not in running]:
            del self.in_force[pod], self._texts[pod], self._coming[pod]
        for pod in running:
            text = self._text_of(pod)
            if text is None:
                continue
            if pod not in self.in_force:
                self._coming[pod] = []
                self._deliver(pod, text)
            coming = self._coming[pod]
            newest = coming[-1][1] if coming else self._texts[pod]
            if text != newest:
                coming.append((self.clock() + self.lags_ms.get(pod, 0), text))
            while coming and coming[0][0] <= self.clock():
                self._deliver(pod, coming.pop(0)[1])

    def accepts(self, pod: str, access_key: str, secret_key: str) -> bool:
        """Return whether a broker accepts the signatures of an account."""
        account = self.in_force[pod].account(access_key)
        return account is not None and secret_key in account.entry.secret_keys

    def versions(self, pod: str, account: AdminAccount | None) -> Mapping[str, int]:
        """Return the response to the operator's request for the versions."""
        if pod not in self.in_force:
            raise BrokerRefused(pod, "1", "access control is off on this broker")
        labels = self.kube.objects["Pod", self.namespace, pod]["metadata"]["labels"]
        is_broker = labels[COMPONENT_LABEL] == "broker"
        administrators = self.in_force[pod] if is_broker else self._registrations(labels[INSTANCE_LABEL])
        known = administrators.account(account.access_key) if account is not None else None
        if account is None or known is None or account.secret_key not in known.entry.secret_keys:
            raise BrokerRefused(pod, "1", "Check signature failed")
        return {RULES_PATH if is_broker else NAMES_ACCOUNTS_PATH: self.in_force[pod].version.counter}

    def _registrations(self, instance: str) -> AclFile:
        data = self.kube.objects["Secret", self.namespace, registration_secret(instance)]["data"]
        return names_file(base64.b64decode(data["namesrv_acl.yml"]).decode(), 0)

    def _deliver(self, pod: str, text: str) -> None:
        self._texts[pod] = text
        file = parse(text, 0)
        assert file.notes == (), file.notes
        self.in_force[pod] = file

    def _text_of(self, pod: str) -> str | None:
        """Return the rules that result from Users, if a pod mounts them."""
        body = self.kube.objects["Pod", self.namespace, pod]
        name = users_secret(body["metadata"]["labels"][INSTANCE_LABEL])
        mounted = set()
        for volume in body["spec"].get("volumes") or []:
            mounted.add(volume.get("secret", {}).get("secretName"))
            sources = volume.get("projected", {}).get("sources", [])
            mounted |= {each["secret"]["name"] for each in sources if "secret" in each}
        secret = self.kube.objects.get(("Secret", self.namespace, name)) if name in mounted else None
        return None if secret is None else base64.b64decode(secret["data"][RULES_KEY]).decode()
