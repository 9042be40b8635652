"""The operator as a process for a real API server, with the permissions that the chart grants."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from delaymq_operator.adapters.permissions import PERMISSIONS
from harness.ports import free_port
from harness.processes import ServerProcess

from delaymq_operator_testing.api_server import ApiError, ApiServer

UNDER_TEST = (str(Path(__file__).parent / "operator_under_test.py"),)
"""Program with simple reconcilers for tests."""
REAL = ("-m", "delaymq_operator.main")
SEEN_TIMEOUT_S = 60.0
LEASE_S = 120
"""Longer than every timeout: a slow machine does not lose the lease, and a standby obtains it only by a release."""
RBAC = "rbac.authorization.k8s.io"


class Operator(ServerProcess):
    """A replica of the operator; `port` serves its probes."""

    def __init__(
        self,
        path: Path,
        name: str,
        kubeconfig: Path,
        *flags: str,
        lease_s: int = LEASE_S,
        program: tuple[str, ...] = UNDER_TEST,
    ) -> None:
        self.port = free_port()
        command = [sys.executable, *program, f"--http-port={self.port}", f"--kubeconfig={kubeconfig}"]
        command += [f"--pod-name={name}", "--http-host=127.0.0.1", f"--lease-duration-s={lease_s}", *flags]
        super().__init__(name, command, path / f"{name}.log", environment={})

    def get(self, path: str) -> tuple[int, str]:
        """Return status and text of a response, or 0 and an empty text without one."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, line: str) -> float:
        """Return the value of one series, or 0 if it is absent."""
        _, text = self.get("/metrics")
        return next((float(one.rpartition(" ")[2]) for one in text.splitlines() if one.startswith(line + " ")), 0.0)

    @property
    def is_active(self) -> bool:
        return self.metric("delaymq_operator_leader") == 1 and self.get("/readyz")[0] == 200

    def lines(self, word: str) -> int:
        """Return the number of occurrences of a text in the log."""
        return self.log_since(0).count(word)


@contextmanager
def running(*operators: Operator) -> Iterator[None]:
    try:
        for operator in operators:
            operator.start()
        yield
    finally:
        for operator in operators:
            operator.kill()


def until(operator: Operator, condition: Callable[[], bool], timeout_s: float = SEEN_TIMEOUT_S) -> None:
    operator.wait_until(condition, timeout_s=timeout_s)


def resources(namespace: str, plural: str) -> str:
    return f"/apis/delaymq.io/v1alpha1/namespaces/{namespace}/{plural}"


def a_resource(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "delaymq.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def exists(server: ApiServer, path: str) -> bool:
    try:
        server.request("GET", path)
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True


def service_account(path: Path, server: ApiServer, namespace: str) -> Path:
    """Create a service account `delaymq-operator` without permissions, and return its kubeconfig."""
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    server.create(account, {"metadata": {"name": "delaymq-operator"}})
    token = server.create(f"{account}/delaymq-operator/token", {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    config = json.loads(server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    file = path / "kubeconfig"
    file.write_text(json.dumps(config))
    return file


def grant(
    server: ApiServer,
    namespace: str,
    *,
    to: str = "",
    scopes: tuple[str, ...] = ("watched", "all", "listed", "own"),
    without: str = "",
) -> None:
    """Grant the permissions of the table in `namespace` to the service account of `to` (default: `namespace`)."""
    where = f"namespaces/{namespace}/"
    _grant(server, where, "", "delaymq-operator", to or namespace, scopes, without)


def grant_lasting(server: ApiServer, to: str) -> None:
    """Grant the permissions of the scope `lasting` in all namespaces, although the operator watches only some."""
    _grant(server, "", "Cluster", f"delaymq-operator-finalizers-{to}", to, ("lasting",), "")


def _grant(
    server: ApiServer, where: str, prefix: str, name: str, to: str, scopes: tuple[str, ...], without: str
) -> None:
    rules = [
        {"apiGroups": [one.group], "resources": [one.resource], "verbs": list(one.verbs)}
        for one in PERMISSIONS
        if one.scope in scopes and one.resource != without
    ]
    api = f"/apis/{RBAC}/v1/{where}{prefix.lower()}"
    named = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": name}}
    server.apply(f"{api}roles/{name}", named | {"kind": f"{prefix}Role", "rules": rules})
    binding = {
        "kind": f"{prefix}RoleBinding",
        "roleRef": {"apiGroup": RBAC, "kind": f"{prefix}Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "delaymq-operator", "namespace": to}],
    }
    server.apply(f"{api}rolebindings/{name}", named | binding)
