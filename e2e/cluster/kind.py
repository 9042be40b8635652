"""Test clusters, created and used with the real kind, kubectl and helm.

A cluster has a name with PREFIX and its own kubeconfig in the cache; no other cluster and no other kubeconfig is read
or written.
"""

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from cluster import dockerd, machine, modes
from cluster.api import ApiReader
from cluster.commands import Log, run
from cluster.daemon import Daemon
from cluster.errors import ClusterError
from cluster.expander import Expander
from cluster.paths import FILES_PATH, run_path

PREFIX = "delaymq-e2e-"
NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
"""Names of clusters. The host names that kind derives from them have at most 63 characters."""
MAX_WORKERS = 8

CREATE_TIMEOUT_S = 300.0
READY_TIMEOUT_S = 180.0
DELETE_TIMEOUT_S = 120.0
LOAD_TIMEOUT_S = 300.0
NODE_STOP_TIMEOUT_S = 60.0
EXPORT_TIMEOUT_S = 120.0

KUBELET_PATCH = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "syncFrequency": "10s",
}
"""Interval at which kubelet checks Secrets and ConfigMaps of pods for changes; a minute by default."""
ADD_ONS = (("kube-system", "coredns"), ("local-path-storage", "local-path-provisioner"))
FOREIGN_OPTIONS = re.compile(
    r"--(kubeconfig|context|cluster|server|user|token|kube-context|kube-apiserver|kube-token)(=|$)|-s(=|$|http)"
)
"""Options that would direct kubectl and helm to another cluster."""


class Output(str):
    """What a program printed on standard output; standard error is separate."""

    stderr: str
    exit_code: int

    @property
    def stdout(self) -> str:
        return str(self)


class Cluster:
    """A running cluster, created by `create` or found by `attach`; a context manager that deletes it."""

    def __init__(self, name: str, daemon: Daemon, programs: Sequence[Path], log: Log, lock: IO[str]) -> None:
        self.name = name
        self.kind_name = PREFIX + name
        self.kubeconfig = kubeconfig_path(name)
        self._daemon = daemon
        self._programs = programs
        self._log = log
        self._lock = lock
        self._addresses: dict[str, str] = {}
        self._reader = ApiReader(self.kubeconfig, f"kind-{self.kind_name}")
        self._expander = Expander(self.kubectl_command, self.environment())

    @classmethod
    def create(cls, name: str, *, workers: int = 0, log: Log = print) -> Self:
        """Create a cluster of one control plane node and ``workers`` more, ready with DNS and storage.

        A cluster of this name left by an earlier run is deleted first. Docker is started if no daemon responds, and
        keeps running (see `dockerd.session`). Raises ClusterError, also if another run is using the name.
        """
        if not 0 <= workers <= MAX_WORKERS:
            raise ClusterError(f"workers must be 0 to {MAX_WORKERS}, not {workers}")
        lock = _take(name)
        daemon = dockerd.up(log)
        mode = modes.choose(daemon, log)
        made = cls(name, daemon, modes.program_folders(mode, log), log, lock)
        if made._exists():
            log(f"{made.kind_name}: deleting the cluster left by an earlier run")
            made._delete()
        started = time.monotonic()
        log(f"{made.kind_name}: creating 1+{workers} nodes of {mode.node_image}")
        try:
            made._create(mode.node_image, workers)
        except BaseException:
            made._delete(check=False)
            lock.close()
            raise
        log(f"{made.kind_name}: ready after {time.monotonic() - started:.1f} s")
        return made

    @classmethod
    def attach(cls, name: str, *, log: Log = print) -> Self | None:
        """Return a cluster left running by an earlier run; None if there is none. ClusterError if it is in use."""
        if dockerd.current() is None or not kubeconfig_path(name).exists():
            return None
        lock = _take(name)
        daemon = dockerd.up(log)
        found = cls(name, daemon, modes.program_folders(modes.choose(daemon, log), log), log, lock)
        if not found._exists():
            lock.close()
            return None
        found.expander.start()
        return found

    def delete(self) -> None:
        """Delete the cluster with its volumes; raises ClusterError if it still exists afterwards."""
        started = time.monotonic()
        self._delete()
        self.release()
        self._log(f"{self.kind_name}: deleted in {time.monotonic() - started:.1f} s")

    def release(self) -> None:
        """Release the cluster without deleting it: another run may `attach` to it."""
        self.expander.stop()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.delete()

    # Content of the cluster.

    @property
    def expander(self) -> Expander:
        """Provide the expander of volumes of the class ``expandable``, which runs from the cluster's creation."""
        return self._expander

    def kubectl_command(self) -> list[str]:
        """Return the start of a kubectl command line for this cluster, valid in any environment."""
        kubectl = next((folder / "kubectl" for folder in self._programs if (folder / "kubectl").exists()), "kubectl")
        return [str(kubectl), "--kubeconfig", str(self.kubeconfig), "--context", f"kind-{self.kind_name}"]

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002
        check: bool = True,
        timeout_s: float = 60,
    ) -> Output:
        """Return kubectl's output. Raises ClusterError if it fails (unless ``check`` is false) or times out."""
        self._refuse_foreign(arguments)
        done = run(
            [*self.kubectl_command(), *arguments],
            stdin_text=input,
            check=check,
            timeout_s=timeout_s,
            environment=self.environment(),
        )
        return _output(done.stdout, done.stderr, done.returncode)

    def get(
        self, kind: str, name: str | None = None, namespace: str | None = None, selector: str | None = None
    ) -> dict[str, Any]:
        """Return an object, or without a name a list of objects (``items``); without ``namespace``, in all of them.

        ``kind`` is as in kubectl. Raises ClusterError, and NotFoundError if the object is missing.
        """
        return self._reader.get(kind, name, namespace, selector)

    def apply(self, manifest: str | Mapping[str, Any]) -> Output:
        """Run `kubectl apply` with YAML or JSON text, or one object."""
        return self.kubectl("apply", "-f", "-", input=manifest if isinstance(manifest, str) else json.dumps(manifest))

    def helm(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002
        check: bool = True,
        timeout_s: float = 180,
    ) -> Output:
        """Return helm's output; its own ``--timeout`` should be below ``timeout_s``."""
        self._refuse_foreign(arguments)
        command = ["helm", "--kubeconfig", str(self.kubeconfig), "--kube-context", f"kind-{self.kind_name}"]
        done = self._run([*command, *arguments], stdin_text=input, check=check, timeout_s=timeout_s)
        return _output(done.stdout, done.stderr, done.returncode)

    def load_images(self, *tags: str, nodes: Sequence[str] = ()) -> None:
        """Load images from Docker into ``nodes``, or all; pods need ``imagePullPolicy: IfNotPresent`` or ``Never``."""
        started = time.monotonic()
        where = ["--nodes", ",".join(nodes)] if nodes else []
        self._run(["kind", "load", "docker-image", "--name", self.kind_name, *where, *tags], timeout_s=LOAD_TIMEOUT_S)
        self._log(f"{self.kind_name}: {', '.join(tags)} loaded in {time.monotonic() - started:.1f} s")

    # Nodes, which are Docker containers.

    def nodes(self) -> list[str]:
        """Return the names of all nodes created by kind, including stopped ones."""
        asked = self._run(["kind", "get", "nodes", "--name", self.kind_name], timeout_s=60)
        return sorted(name for name in asked.stdout.split() if name.startswith(self.kind_name))

    def node_exec(self, node: str, *command: str, check: bool = True, timeout_s: float = 60) -> Output:
        """Run a program in a node as root and return its output."""
        self._check_node(node)
        done = self._daemon.docker("exec", node, *command, check=check, timeout_s=timeout_s)
        return _output(done.stdout, done.stderr, done.returncode)

    def node_stop(self, node: str, *, kill: bool = True) -> None:
        """Stop a node: abruptly as in a power failure, or with ``kill`` false as in a shutdown."""
        self._check_node(node)
        self._addresses[node] = self.node_address(node)
        words = ["kill", node] if kill else ["stop", "-t", "20", node]
        try:
            self._daemon.docker(*words, timeout_s=NODE_STOP_TIMEOUT_S)
        except ClusterError:
            machine.thaw()
            self._daemon.docker(*words, timeout_s=NODE_STOP_TIMEOUT_S)

    def node_start(self, node: str, *, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start a stopped node and wait until it is Ready with its former address.

        Raises ClusterError if it is not Ready within ``timeout_s``, or has another address.
        """
        self._check_node(node)
        address = self._addresses.get(node)
        if address is not None:
            # Docker assigns the next free address unless one is requested. That is possible only in a network with a
            # configured range, such as ours; in kind's own network, a single node gets its former address anyway.
            network = dockerd.NETWORK
            self._daemon.docker("network", "disconnect", network, node, check=False)
            joined = self._daemon.docker("network", "connect", "--ip", address, network, node, check=False)
            if joined.returncode != 0:
                self._daemon.docker("network", "connect", network, node, check=False)
        self._daemon.docker("start", node, timeout_s=NODE_STOP_TIMEOUT_S)
        if address is not None and (now := self.node_address(node)) != address:
            raise ClusterError(f"node {node} restarted with the address {now} instead of {address}")
        self._wait_ready(node, timeout_s)

    def node_address(self, node: str) -> str:
        """Return the node's IPv4 address in the machine's network."""
        template = f"{{{{(index .NetworkSettings.Networks {json.dumps(dockerd.NETWORK)}).IPAddress}}}}"
        return self._daemon.docker("inspect", "-f", template, node).stdout.strip()

    def export_logs(self, folder: str | Path) -> Path:
        """Write all nodes' and pods' logs below a folder."""
        self._run(["kind", "export", "logs", "--name", self.kind_name, str(folder)], timeout_s=EXPORT_TIMEOUT_S)
        return Path(folder)

    def environment(self) -> dict[str, str]:
        """Return the environment in which plain ``kind``, ``kubectl`` and ``helm`` use this cluster."""
        path = os.pathsep.join([*map(str, self._programs), self._daemon.environment.get("PATH", os.defpath)])
        return {**self._daemon.environment, "PATH": path, "KUBECONFIG": str(self.kubeconfig)}

    # Creation and deletion.

    def _create(self, node_image: str, workers: int) -> None:
        roles = [{"role": "control-plane"}, *({"role": "worker"} for _ in range(workers))]
        settings = json.dumps(
            {
                "kind": "Cluster",
                "apiVersion": "kind.x-k8s.io/v1alpha4",
                "nodes": roles,
                "kubeadmConfigPatches": [json.dumps(KUBELET_PATCH)],
            }
        )
        self.kubeconfig.unlink(missing_ok=True)
        command = ["kind", "create", "cluster", "--name", self.kind_name, "--image", node_image, "--wait", "180s"]
        self._run([*command, "--config", "-"], stdin_text=settings, timeout_s=CREATE_TIMEOUT_S)
        self.kubeconfig.chmod(0o600)
        self.kubectl(
            "wait", "--for=condition=Ready", "node", "--all", f"--timeout={READY_TIMEOUT_S:.0f}s", timeout_s=200
        )
        self.apply((FILES_PATH / "manifests" / "expandable.yaml").read_text())
        for namespace, name in ADD_ONS:
            limit = f"--timeout={READY_TIMEOUT_S:.0f}s"
            self.kubectl("-n", namespace, "rollout", "status", f"deployment/{name}", limit, timeout_s=200)
        self.expander.start()

    def _delete(self, *, check: bool = True) -> None:
        self.expander.stop()
        command = ["kind", "delete", "cluster", "--name", self.kind_name]
        done = self._run(command, timeout_s=DELETE_TIMEOUT_S, check=False)
        if done.returncode != 0 and self._daemon.own:
            # A node may have been frozen when it was killed.
            machine.thaw()
            done = self._run(command, timeout_s=DELETE_TIMEOUT_S, check=False)
        self.kubeconfig.unlink(missing_ok=True)
        if check and (done.returncode != 0 or self._exists()):
            raise ClusterError(f"{self.kind_name} cannot be deleted: {done.stderr.strip()}")

    def _exists(self) -> bool:
        return self.kind_name in existing(self._run)

    def _wait_ready(self, node: str, timeout_s: float) -> None:
        """Wait until the node reports Ready after this moment; an earlier report may precede the loss of the node."""
        started = time.time() - 1
        deadline = time.monotonic() + timeout_s
        said = "the API server does not answer"
        while time.monotonic() < deadline:
            asked = self.kubectl("get", "node", node, "-o", "json", check=False, timeout_s=20)
            if asked.exit_code == 0:
                conditions = {item["type"]: item for item in json.loads(asked)["status"]["conditions"]}
                ready = conditions.get("Ready", {})
                said = f"{ready.get('status')}, {ready.get('message')}"
                if ready.get("status") == "True" and _seconds(ready["lastHeartbeatTime"]) >= int(started):
                    return
            time.sleep(0.5)
        raise ClusterError(f"node {node} is not ready after {timeout_s:.0f} s: {said}")

    def _check_node(self, node: str) -> None:
        if not node.startswith(f"{self.kind_name}-"):
            raise ClusterError(f"{node} is not a node of {self.kind_name}")

    def _refuse_foreign(self, arguments: Sequence[str]) -> None:
        own = arguments[: arguments.index("--")] if "--" in arguments else arguments
        for argument in own:
            if FOREIGN_OPTIONS.match(argument):
                raise ClusterError(f"{argument}: these tests use {self.kind_name} only, with its own kubeconfig")

    def _run(self, command: Sequence[str], **options: Any) -> Any:
        return run(command, environment=self.environment(), **options)


def existing(run_command: Callable[..., Any]) -> list[str]:
    """Return the clusters of this package that exist in Docker."""
    listed = run_command(["kind", "get", "clusters"], timeout_s=60).stdout.split()
    return [name for name in listed if name.startswith(PREFIX)]


def kubeconfig_path(name: str) -> Path:
    if not NAME_PATTERN.fullmatch(name):
        raise ClusterError(
            f"a cluster's name consists of lower-case letters, digits and '-', at most 32 characters, not {name!r}"
        )
    return run_path() / f"{PREFIX}{name}.kubeconfig"


def _take(name: str) -> IO[str]:
    """Lock the cluster's name until this process exits."""
    path = kubeconfig_path(name).with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        lock.close()
        raise ClusterError(
            f"another run uses the cluster {PREFIX}{name}: wait until it ends, or use another name"
        ) from e
    return lock


def _output(stdout: str, stderr: str, exit_code: int) -> Output:
    output = Output(stdout)
    output.stderr = stderr
    output.exit_code = exit_code
    return output


def _seconds(timestamp: str) -> int:
    """Convert `2026-01-31T12:00:00Z` to seconds since 1970."""
    return int(time.mktime(time.strptime(timestamp, "%Y-%m-%dT%H:%M:%SZ")) - time.timezone)
