"""A namespace of one test, under Pod Security `restricted`, with queries about Brokers in it."""

from __future__ import annotations

import builtins
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster import Cluster
from cluster.api import NotFoundError
from harness import commitlog
from kind import objects
from kind.clients import CLIENT_POD, ClientPod
from kind.verdict import Logged, Sent, Verdict, judge
from kind.waiting import NotYetError, wait_until

Manifest = dict[str, Any]

READY_TIMEOUT_S = 90.0
JUDGE_TIMEOUT_S = 60.0
"""The reader in a broker's pod is much slower than the broker when both share two cores."""
JUDGE_EVERY_S = 1.0
STORE_PATH = "/var/lib/delaymq/store"
LASTING_PODS = "app.kubernetes.io/name=delaymq,app.kubernetes.io/component!=namesrv-trial"
"""Servers, without pods that test a change: one that is being deleted may outlive the rollout."""


class Space:
    """One namespace, in which names without a namespace are resolved."""

    def __init__(self, cluster: Cluster, name: str, images: Mapping[str, str]) -> None:
        self.cluster = cluster
        self.name = name
        self.images = images
        self.client = ClientPod(self)

    # The namespace.

    def make(self, *, restricted: bool = True, client: bool = True) -> None:
        """Create the namespace and its client pod, without waiting."""
        self.cluster.apply(objects.namespace(self.name, restricted=restricted))
        if client:
            self.apply(objects.client_pod(CLIENT_POD, self.images["e2e-client"]))

    def remove(self) -> None:
        """Delete the namespace in the background: the next test does not wait."""
        self.client.close()
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false", "--ignore-not-found")

    def wait_client(self) -> None:
        self.wait_pod_ready(CLIENT_POD)

    # kubectl in this namespace.

    def kubectl_command(self, *arguments: str) -> list[str]:
        """Return the command line, for commands that run concurrently with the test."""
        return [*self.cluster.kubectl_command(), "-n", self.name, *arguments]

    def kubectl(self, *arguments: str, **options: Any) -> Any:
        return self.cluster.kubectl("-n", self.name, *arguments, **options)

    def apply(self, *manifests: Manifest) -> None:
        """Apply all objects in one call, as a user's `kubectl apply` does."""
        placed = [{**each, "metadata": {"namespace": self.name, **each["metadata"]}} for each in manifests]
        self.cluster.apply({"apiVersion": "v1", "kind": "List", "items": placed})

    def get(self, kind: str, name: str) -> Manifest:
        found: Manifest = self.cluster.get(kind, name, namespace=self.name)
        return found

    def find(self, kind: str, name: str) -> Manifest | None:
        """Return the object as ``get`` does, or None if it is missing."""
        try:
            return self.get(kind, name)
        except NotFoundError:
            return None

    def list(self, kind: str, selector: str | None = None) -> list[Manifest]:
        found: list[Manifest] = self.cluster.get(kind, namespace=self.name, selector=selector)["items"]
        return found

    def patch(self, kind: str, name: str, patch: Manifest, *, subresource: str | None = None) -> None:
        """Apply a JSON merge patch."""
        more = [f"--subresource={subresource}"] if subresource else []
        self.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps(patch), *more)

    def annotate(self, kind: str, name: str, annotation: str) -> None:
        self.kubectl("annotate", "--overwrite", kind, name, annotation)

    # Brokers.

    def apply_broker(self, name: str = "demo", **spec: Any) -> None:
        self.apply(objects.broker(name, **spec))

    def broker(self, name: str = "demo") -> Manifest:
        return self.get("broker.delaymq.io", name)

    def wait_broker_ready(self, name: str = "demo", *, timeout_s: float = READY_TIMEOUT_S) -> Manifest:
        """Return the Broker once the operator reports Ready for its newest spec and nothing is in progress."""
        return self.wait_broker(
            lambda broker: _is(broker, "Ready", "True") and _is(broker, "Progressing", "False"),
            f"Broker {name} is ready and settled", name=name, timeout_s=timeout_s,
        )  # fmt: skip

    def wait_broker(
        self, holds: Callable[[Manifest], object], what: str, *, name: str = "demo", timeout_s: float = READY_TIMEOUT_S
    ) -> Manifest:
        """Return the Broker once ``holds`` is true and its status refers to the newest spec."""

        def ask() -> Manifest:
            broker = self.broker(name)
            status = broker.get("status", {})
            if status.get("observedGeneration") == broker["metadata"]["generation"] and holds(broker):
                return broker
            raise NotYetError(_conditions_text(broker))

        return wait_until(what, ask, timeout_s=timeout_s)

    def condition(self, kind: str, name: str, type_: str) -> Manifest:
        """Return a condition, or {} if it is missing."""
        return condition(self.get(kind, name), type_)

    def wait_condition(
        self, kind: str, name: str, type_: str, *, reason: str | None = None, status: str | None = None,
        timeout_s: float = 60.0,
    ) -> Manifest:  # fmt: skip
        """Return the condition once it has this reason or status and refers to the newest spec."""

        def ask() -> Manifest:
            found = self.get(kind, name)
            state = condition(found, type_)
            current = found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
            wanted = {"reason": reason, "status": status}
            if current and state and all(value in (None, state.get(name)) for name, value in wanted.items()):
                return state
            raise NotYetError(_conditions_text(found))

        return wait_until(f"{kind} {name}: {type_} {status or ''} {reason or ''}", ask, timeout_s=timeout_s)

    def name_servers(self, name: str = "demo") -> str:
        """Return the NameServer addresses for clients in the cluster."""
        addresses: list[str] = self.broker(name)["status"]["nameServers"]
        return ";".join(addresses)

    def broker_ready(self, name: str = "demo", **spec: Any) -> str:
        """Create a Broker, wait for it and for the client pod, and return its NameServer addresses."""
        self.apply_broker(name, **spec)
        self.wait_broker_ready(name)
        self.wait_client()
        return self.name_servers(name)

    # Pods.

    def pod(self, name: str) -> Manifest:
        return self.get("pod", name)

    def pod_ip(self, name: str) -> str:
        return str(self.pod(name)["status"]["podIP"])

    def pod_uids(self, selector: str = LASTING_PODS) -> dict[str, tuple[str, int]]:
        """Return pod → (uid, restarts), which must be unchanged where nothing may restart."""
        return {
            pod["metadata"]["name"]: (
                pod["metadata"]["uid"],
                sum(each["restartCount"] for each in pod["status"].get("containerStatuses", [])),
            )
            for pod in self.list("pods", selector)
        }

    def wait_pod_ready(self, name: str, *, other_than_uid: str = "", timeout_s: float = 60.0) -> Manifest:
        """Return the pod once it is ready, and not the one with ``other_than_uid``."""

        def ask() -> Manifest:
            pod = self.find("pod", name)
            if pod is None:
                raise NotYetError("there is no such pod")
            if pod["metadata"]["uid"] != other_than_uid and _is(pod, "Ready", "True"):
                return pod
            raise NotYetError(f"{pod['metadata']['uid']} {json.dumps(pod['status'])[-600:]}")

        return wait_until(f"pod {name} is ready", ask, timeout_s=timeout_s)

    def kill_broker_process(self, pod: str) -> None:
        """Kill the container's process with SIGKILL, from the node, so that nothing inside can catch it."""
        signal_container_process(self.cluster, self.pod(pod), "KILL")

    def signal_broker_process(self, pod: str, signal: str) -> None:
        """Send a signal, such as ``STOP``, to the container's process, from the node."""
        signal_container_process(self.cluster, self.pod(pod), signal)

    def http(self, pod: str, path: str, *, port: int = 8080) -> Any:
        """Return the JSON response of a broker's HTTP port to a GET with its token."""
        return json.loads(self.text(pod, path, port=port))

    def text(self, pod: str, path: str, *, port: int = 8080) -> str:
        """Return the response of a broker's HTTP port to a GET with its token."""
        # With TLS, the pod has a variable with the CA.
        program = (
            "import os,ssl,sys,urllib.request as u;ca=os.environ.get('DELAYMQ_TLS_CA');"
            "r=u.Request(f'http{\"s\"*bool(ca)}://127.0.0.1:{sys.argv[1]}{sys.argv[2]}',"
            "headers={'Authorization':'Bearer '+os.environ.get('DELAYMQ_HTTP_TOKEN','')});"
            "c=ssl.create_default_context(cafile=ca) if ca else None;"
            "print(u.urlopen(r,timeout=10,context=c).read().decode())"
        )
        return str(self.kubectl("exec", pod, "--", "python3.11", "-c", program, str(port), path).stdout)

    def level_delays_ms(self, pod: str) -> builtins.list[int]:
        """Return the delays that a running broker uses, level 1 first."""
        levels = self.http(pod, "/api/v1/delay")["levels"]
        return [each["delayMs"] for each in levels if each["inTable"]]

    # Outcome of messages.

    def logged(self, pod: str, topic: str, *, by_unique_key: bool = False) -> builtins.list[Logged]:
        """Return a topic's records in the log of a broker's pod (from a reader that shares no code with the broker)."""
        source = "\n".join(
            Path(path).read_text() for path in (commitlog.__file__, Path(__file__).parent / "read_log.py")
        )
        answer = self.kubectl(
            "exec", "-i", pod, "--", "python3.11", "-", STORE_PATH, topic, objects.LEVELS_TEXT,
            input=source, timeout_s=JUDGE_TIMEOUT_S,
        )  # fmt: skip
        lines = [json.loads(line) for line in answer.stdout.splitlines()]
        assert lines, f"{pod} printed no records of its log: {answer.stderr[-500:]}"
        assert lines[-1][0] == "end", f"{pod} did not read its log to the end"
        found = []
        for kind, keys, unique_key, *rest in lines[:-1]:
            key = unique_key if by_unique_key else keys
            if kind == "plain":
                found.append(Logged(key=key, level=0, due_ms=rest[0], stored_ms=rest[0], copies_ms=(rest[0],)))
            else:
                level, due_ms, stored_ms, copies_ms = rest
                found.append(
                    Logged(key=key, level=level, due_ms=due_ms, stored_ms=stored_ms, copies_ms=tuple(copies_ms))
                )
        return found

    def judge(
        self, topic: str, sends: Iterable[Sent], broker: str = "demo", *, groups: int = 1, by_unique_key: bool = False
    ) -> Verdict:
        """Return the verdict from the current logs of all groups of a Broker."""
        pods = [f"{broker}-broker-{group}-0" for group in range(groups)]
        return judge(sends, [self.logged(pod, topic, by_unique_key=by_unique_key) for pod in pods])

    def judge_when_done(
        self, topic: str, sends: Sequence[Sent], broker: str = "demo", *, groups: int = 1, timeout_s: float = 60.0,
        by_unique_key: bool = False,
    ) -> Verdict:  # fmt: skip
        """Return the verdict once no acknowledged message is missing any more, or at the time limit."""
        deadline = time.monotonic() + timeout_s
        while True:
            verdict = self.judge(topic, sends, broker, groups=groups, by_unique_key=by_unique_key)
            if not verdict.lost or time.monotonic() > deadline:
                return verdict
            time.sleep(JUDGE_EVERY_S)


def condition(found: Manifest, type_: str) -> Manifest:
    """Return a condition of an object, or {}."""
    conditions: list[Manifest] = found.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == type_), {})


def signal_container_process(cluster: Cluster, pod: Manifest, signal: str) -> None:
    """Send a signal to the process of a pod's first container, from its node."""
    container = pod["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
    node = pod["spec"]["nodeName"]
    # crictl returns a container's process in `info`; the pause process and kubelet are not affected.
    inspected = json.loads(cluster.node_exec(node, "crictl", "inspect", container).stdout)
    cluster.node_exec(node, "kill", f"-{signal}", str(inspected["info"]["pid"]))


def _is(found: Manifest, type_: str, status: str) -> bool:
    return condition(found, type_).get("status") == status


def _conditions_text(found: Manifest) -> str:
    status = found.get("status", {})
    conditions = [
        f"{each['type']}={each['status']} {each.get('reason')}: {each.get('message')}"
        for each in status.get("conditions", [])
    ]
    generation = f"generation {found['metadata'].get('generation')}, observed {status.get('observedGeneration')}"
    return "; ".join([generation, *conditions])
