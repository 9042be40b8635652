"""Substitute for the part of a storage driver that expands volumes.

local-path-provisioner uses folders as volumes and cannot expand them: a folder has no size. If a claim requests more,
this class changes the API objects as the resizer of a real driver does: first the volume's capacity, then the claim's.
Everything else is Kubernetes' own: whether the class allows expansion, that claims cannot shrink, how a StatefulSet
reacts. No space is reserved or limited.
"""

import json
import subprocess
import threading
from collections.abc import Callable, Mapping

from cluster.commands import run
from cluster.errors import ClusterError

CLASS = "expandable"
COLUMNS = (
    ".metadata.namespace",
    ".metadata.name",
    ".spec.storageClassName",
    ".spec.volumeName",
    ".spec.resources.requests.storage",
    ".status.capacity.storage",
)
TEMPLATE = "jsonpath=" + "|".join(f"{{{column}}}" for column in COLUMNS) + '{"\\n"}'
PAUSE_S = 1.0
"""Pause before the next request to an API server that disappeared with its node."""
PATCH_TIMEOUT_S = 20
STOP_TIMEOUT_S = 5.0


class Expander:
    """Watcher of claims, by ``kubectl get --watch`` in a thread of this process."""

    def __init__(self, kubectl_command: Callable[[], list[str]], environment: Mapping[str, str]) -> None:
        self._kubectl_command = kubectl_command
        self._environment = environment
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._watch: subprocess.Popen[str] | None = None
        self.failures: list[str] = []
        """Failed expansions, one sentence each; a claim is retried at its next change."""

    def start(self) -> None:
        """Start expanding claims, beginning with existing requests."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._run, name="expander", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._watch is not None:
            self._watch.kill()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)
            self._thread = None

    def _run(self) -> None:
        command = [*self._kubectl_command(), "get", "pvc", "--all-namespaces", "--watch", "-o", TEMPLATE]
        while not self._stopping.is_set():
            with subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=dict(self._environment),
            ) as watch:
                self._watch = watch
                assert watch.stdout is not None
                try:
                    for line in watch.stdout:
                        if (claim := growth(line)) is not None:
                            self._grow(*claim)
                finally:
                    watch.kill()
            self._stopping.wait(PAUSE_S)

    def _grow(self, namespace: str, name: str, volume: str, size: str) -> None:
        patch = json.dumps({"spec": {"capacity": {"storage": size}}})
        status = json.dumps({"status": {"capacity": {"storage": size}, "conditions": None}})
        try:
            self._patch("pv", volume, "--type=merge", "-p", patch)
            self._patch("pvc", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", status)
        except ClusterError as e:
            self.failures.append(f"claim {namespace}/{name} cannot grow to {size}: {e}")

    def _patch(self, *words: str) -> None:
        command = [*self._kubectl_command(), "patch", *words]
        run(command, timeout_s=PATCH_TIMEOUT_S, environment=self._environment)


def growth(line: str) -> tuple[str, str, str, str] | None:
    """Return namespace, name, volume and requested size of a claim to expand; None if there is nothing to do.

    A claim never requests less than its capacity, so any other size is an expansion.
    """
    columns = line.strip().split("|")
    if len(columns) != len(COLUMNS):
        return None
    namespace, name, storage_class, volume, wanted, present = columns
    if storage_class != CLASS or not volume or not present or wanted == present:
        return None
    return namespace, name, volume, wanted
