"""A real Kubernetes API for fast tests: etcd, kube-apiserver and, on request, the controllers that need no node.

Pods are only objects: nothing runs them, and without controllers nothing creates them. The tests verify the behaviour
of the real server: schemas, CEL rules, defaults, server-side apply, finalizers, owner references, watches.
"""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml
from cluster.paths import artifacts_path
from cluster.programs import find_program
from harness.errors import HarnessError
from harness.ports import free_port
from harness.processes import ServerProcess

HOST = "127.0.0.1"
CRDS_PATH = Path(__file__).resolve().parents[3] / "crds"
START_TIMEOUT_S = 60.0
REQUEST_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
START_ATTEMPTS = 3
"""Number of attempts, since another process can take a free port before the server binds it."""

CONTROLLERS = (
    "statefulset-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "disruption-controller",
    "persistentvolumeclaim-protection-controller",
)


class MissingProgramsError(HarnessError):
    """The programs are not built; the message states the command that builds them."""


class ApiError(Exception):
    """An error response of the API server; `body` is its Status object."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        super().__init__(f"{status} {body.get('reason')}: {body.get('message')}")
        self.status = status
        self.body = body


@dataclass(frozen=True)
class Programs:
    """Paths of the programs. `kube` contains all of Kubernetes: its first argument selects the program."""

    kube: Path
    etcd: Path


def find_programs() -> Programs:
    """Return the programs of the e2e cluster, or raise MissingProgramsError with the command that builds them."""
    kube, etcd = find_program("kube-apiserver"), find_program("etcd")
    if kube is None or etcd is None:
        raise MissingProgramsError(f"Kubernetes is not built (in {artifacts_path()}): run `make cluster` once")
    return Programs(kube.with_name("kube"), etcd)


class ApiServer:
    """An API server with an empty etcd, as a context manager. Its token grants all permissions."""

    def __init__(self, programs: Programs, *, controllers: bool = False) -> None:
        self._programs = programs
        self._controllers = controllers
        self._processes: list[ServerProcess] = []
        self._tls: ssl.SSLContext | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="delaymq-api-"))
        self.kubeconfig = self.folder / "kubeconfig"
        self.token = uuid.uuid4().hex
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all processes, the API server before its etcd, and remove the folder."""
        for process in reversed(self._processes):
            process.kill()
        self._processes.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def process(self, name: str) -> ServerProcess:
        """Return the process `etcd` or `kube-apiserver`, for tests that disturb it."""
        return next(process for process in self._processes if process.name == name)

    def restart(self, *, down_s: float = 0.0) -> None:
        """Kill the API server and start it again after `down_s`, at the same address and with the same etcd."""
        server = self.process("kube-apiserver")
        server.kill()
        time.sleep(down_s)
        server.start()
        server.wait_until(lambda: self._answers("/readyz"), timeout_s=START_TIMEOUT_S)

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as administrator and return its output. With `check`, a failure raises HarnessError."""
        command = [str(self._programs.kube), "kubectl", "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False
        )
        if check and done.returncode != 0:
            raise HarnessError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout if check else done.stdout + done.stderr

    def request(
        self, method: str, path: str, body: object = None, *, content_type: str = "application/json"
    ) -> dict[str, Any]:
        """Send a request such as `GET /api/v1/namespaces` and return the decoded response. ApiError from status 400."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content_type, "Accept": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S, context=self._tls) as answer:
                return _object(answer.read())
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, _object(error.read())) from error

    def create(self, path: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object with a POST to the path of its collection."""
        return self.request("POST", path, manifest)

    def merge(self, path: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Send a JSON merge patch; it changes the status if `path` ends with /status."""
        return self.request("PATCH", path, patch, content_type="application/merge-patch+json")

    def apply(self, path: str, manifest: Mapping[str, Any], *, manager: str = "tests") -> dict[str, Any]:
        """Apply an object with forced server-side apply."""
        where = f"{path}?fieldManager={manager}&force=true"
        return self.request("PATCH", where, manifest, content_type="application/apply-patch+yaml")

    def new_namespace(self, prefix: str = "test") -> str:
        """Create a namespace with a unique name, and return the name."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self.create("/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    def install_crds(self, folder: Path = CRDS_PATH) -> None:
        """Apply the CustomResourceDefinitions of a folder and wait until they are served."""
        collection = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        served = []
        for file in sorted(folder.glob("*.yaml")):
            crd = yaml.safe_load(file.read_text())
            path = f"{collection}/{crd['metadata']['name']}"
            self.apply(path, crd)
            spec = crd["spec"]
            served += [
                f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}" for version in spec["versions"]
            ]
        for path in served:
            self._processes[-1].wait_until(lambda path=path: self._answers(path), timeout_s=START_TIMEOUT_S)

    def _start(self) -> None:
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self._start_once()
                break
            except HarnessError as error:
                if attempt == START_ATTEMPTS or "address already in use" not in str(error):
                    raise
                for process in reversed(self._processes):
                    process.kill()
                self._processes.clear()
        self.install_crds()
        if self._controllers:
            self._start_controllers()

    def _start_once(self) -> None:
        client_url, peer_url = (f"http://{HOST}:{free_port()}" for _ in range(2))
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)
        etcd = self._run(
            "etcd",
            [
                str(self._programs.etcd),
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls={client_url}",
                f"--advertise-client-urls={client_url}",
                f"--listen-peer-urls={peer_url}",
                f"--initial-advertise-peer-urls={peer_url}",
                f"--initial-cluster=default={peer_url}",
                "--unsafe-no-fsync",  # the data is not needed after the test
                "--log-level=warn",
            ],
        )
        etcd.wait_until(lambda: _is_healthy(client_url), timeout_s=START_TIMEOUT_S)
        port = free_port()
        self.url = f"https://{HOST}:{port}"
        server = self._kube("kube-apiserver", self._server_arguments(client_url, port))
        server.wait_until(lambda: self._answers("/readyz"), timeout_s=START_TIMEOUT_S)

    def _server_arguments(self, etcd_url: str, port: int) -> list[str]:
        tokens = self.folder / "tokens.csv"
        tokens.write_text(f'{self.token},admin,admin,"system:masters"\n')
        key = self.folder / "service-accounts.key"
        command = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key)]
        subprocess.run(command, check=True, capture_output=True, timeout=REQUEST_TIMEOUT_S)
        arguments = [
            f"--etcd-servers={etcd_url}",
            f"--bind-address={HOST}",
            f"--secure-port={port}",
            f"--cert-dir={self.folder}",  # the server creates its own certificate there
            f"--token-auth-file={tokens}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            "--endpoint-reconciler-type=none",
            "--allow-privileged=true",
            "--profiling=false",
        ]
        if not self._controllers:
            # Without controllers, no service account `default` is created, and pods without one would be rejected.
            arguments.append("--disable-admission-plugins=ServiceAccount")
        return arguments

    def _start_controllers(self) -> None:
        manager = self._kube(
            "kube-controller-manager",
            [
                f"--kubeconfig={self.kubeconfig}",
                f"--controllers={','.join(CONTROLLERS)}",
                f"--service-account-private-key-file={self.folder / 'service-accounts.key'}",
                "--leader-elect=false",
                "--secure-port=0",
                "--concurrent-statefulset-syncs=2",
            ],
        )
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        manager.wait_until(lambda: self._answers(account), timeout_s=START_TIMEOUT_S)

    def _kube(self, program: str, arguments: Sequence[str]) -> ServerProcess:
        return self._run(program, [str(self._programs.kube), program, *arguments])

    def _run(self, name: str, command: Sequence[str]) -> ServerProcess:
        process = ServerProcess(name, command, self.folder / f"{name}.log", environment={})
        self._processes.append(process)
        process.start()
        return process

    def _answers(self, path: str) -> bool:
        certificate = self.folder / "apiserver.crt"
        if not certificate.exists():
            return False
        if not self.kubeconfig.exists() or self.url not in self.kubeconfig.read_text():
            try:
                self._tls = ssl.create_default_context(cafile=str(certificate))
            except ssl.SSLError:  # the server is still writing the file
                return False
            self.kubeconfig.write_text(json.dumps(self._kubeconfig(certificate)))
        return _succeeds(lambda: self._probe(path))

    def _probe(self, path: str) -> None:
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S, context=self._tls):
            pass

    def _kubeconfig(self, certificate: Path) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": str(certificate)}}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin", "namespace": "default"}}],
            "current-context": "test",
        }


def _object(data: bytes) -> dict[str, Any]:
    decoded = json.loads(data)
    assert isinstance(decoded, dict)
    return decoded


def _is_healthy(etcd_url: str) -> bool:
    return _succeeds(lambda: urllib.request.urlopen(f"{etcd_url}/health", timeout=REQUEST_TIMEOUT_S).close())


def _succeeds(request: Callable[[], None]) -> bool:
    try:
        request()
    except OSError:  # includes URLError and HTTPError
        return False
    return True
