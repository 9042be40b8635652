"""Environment shared by all tests: a kind cluster of several nodes, its images, and the operator from its chart."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from cluster import Cluster
from kind import objects
from kind.space import Space
from kind.waiting import NotYetError, wait_until

REPOSITORY_PATH = Path(__file__).resolve().parents[2]
CHART_PATH = REPOSITORY_PATH / "helm" / "delaymq"
CLUSTER_NAME = "lab"
OPERATOR_NAMESPACE = "delaymq-system"
RELEASE = "delaymq"
OPERATOR_TIMEOUT_S = 90.0
JAVA_IMAGE_TIMEOUT_S = 120.0
SPARK_IMAGES_TIMEOUT_S = 240.0
"""900 MB, built during the first tests."""


class Lab:
    """The cluster with its images; namespaces for tests."""

    def __init__(self, cluster: Cluster, images: Mapping[str, str]) -> None:
        self.cluster = cluster
        self.images = images
        self.spaces: list[Space] = []
        self._numbers = itertools.count(1)
        self._spares: list[Space] = []
        self._java_client: Future[None] | None = None
        self._spark: Future[None] | None = None

    def load_images(self, beside: Executor) -> None:
        """Load the images onto their nodes; those of Spark and the Java client, for few tests, concurrently."""
        workers = self.workers
        others = [node for node in self.cluster.nodes() if node not in workers]
        load = self.cluster.load_images
        loading = [
            beside.submit(load, self.images["broker"], self.images["operator"], nodes=workers),
            beside.submit(load, self.images["e2e-client"], nodes=others),
        ]
        for each in loading:
            each.result()
        self._spark = beside.submit(load, self.images["spark"], self.images["spark-operator"], nodes=[self.spark_node])
        self._java_client = beside.submit(load, self.images["java-client"], nodes=others)

    def java_client_image(self) -> str:
        """Return the image of RocketMQ's client, once it is loaded."""
        assert self._java_client is not None, "load_images comes first"
        self._java_client.result(JAVA_IMAGE_TIMEOUT_S)
        return self.images["java-client"]

    def wait_spark_images(self) -> None:
        """Wait until Spark and the Spark operator can run on ``spark_node``."""
        assert self._spark is not None, "load_images comes first"
        self._spark.result(SPARK_IMAGES_TIMEOUT_S)

    def space(self, about: str, *, client: bool = True, restricted: bool = True) -> Space:
        """Create a namespace, named after its purpose."""
        name = f"{about}-{next(self._numbers)}-{int(time.time()) % 100_000}"
        made = Space(self.cluster, name, self.images)
        made.make(restricted=restricted, client=client)
        self.spaces.append(made)
        return made

    def spare(self) -> Space:
        """Return a namespace with the Broker `demo`, its Topic `orders` with 4 queues and a client, all ready.

        The next one is started here, so that it becomes ready while the caller's test runs.
        """
        if not self._spares:
            self._begin_spare()
        space = self._spares.pop()
        self._begin_spare()
        space.wait_broker_ready()
        space.wait_client()
        space.wait_condition("topic.delaymq.io", "orders", "Ready", reason="InEveryGroup")
        return space

    def _begin_spare(self) -> None:
        space = self.space("demo")
        space.apply(objects.broker(), objects.topic("orders", queues=4))
        self._spares.append(space)

    def remove(self, space: Space) -> None:
        self.spaces.remove(space)
        space.remove()

    def retag(self, tag: str, new_tag: str) -> None:
        """Give an image another name on the workers."""
        for node in self.workers:
            names = [f"docker.io/{name}" for name in (tag, new_tag)]
            self.cluster.node_exec(node, "ctr", "-n", "k8s.io", "images", "tag", "--force", *names)

    @property
    def spark_node(self) -> str:
        """Return the only node with the large images."""
        return self.workers[0]

    @property
    def workers(self) -> list[str]:
        nodes = self.cluster.get("nodes", selector="!node-role.kubernetes.io/control-plane")["items"]
        return [node["metadata"]["name"] for node in nodes]


class Operator:
    """One release of the chart."""

    def __init__(self, lab: Lab, *, release: str = RELEASE, namespace: str = OPERATOR_NAMESPACE) -> None:
        self.lab = lab
        self.cluster = lab.cluster
        self.release = release
        self.namespace = namespace
        self.installed_in_s = 0.0

    def values(self, *, tag_suffix: str = "", **more: Any) -> dict[str, Any]:
        """Return the values of the tests: images that the nodes have already, and shorter intervals than in production.

        With ``tag_suffix``, Spark's tag is one that no node has.
        """
        images = {}
        for name in ("operator", "broker", "spark"):
            repository, _, tag = self.lab.images[name].rpartition(":")
            images[name] = {"repository": repository, "tag": tag + tag_suffix}
        return {
            "image": {**images["operator"], "pullPolicy": "Never"},
            "brokerImage": images["broker"],
            "analytics": {"image": images["spark"]},
            "resources": {"requests": {"cpu": "20m", "memory": "96Mi"}},
            **more,
        }

    def install(self, *extra: str, **more: Any) -> None:
        """Run `helm install`; ``installed_in_s`` is the time until the operator is ready."""
        self.cluster.apply(objects.namespace(self.namespace))
        began = time.monotonic()
        self._helm("install", *extra, **more)
        self.wait_ready()
        self.installed_in_s = time.monotonic() - began

    def upgrade(self, *extra: str, **more: Any) -> float:
        """Run `helm upgrade`; return the seconds until only the new operator runs."""
        began = time.monotonic()
        self._helm("upgrade", "--reset-values", *extra, **more)
        self.wait_ready()
        return time.monotonic() - began

    def upgrade_definitions(self) -> None:
        """Upgrade the CRDs with the command given in the chart's notes and in docs."""
        shown = self.cluster.helm("show", "crds", str(CHART_PATH))
        self.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=str(shown))

    def uninstall(self) -> None:
        self.cluster.helm("uninstall", self.release, "-n", self.namespace, "--wait", "--timeout", "60s")

    def deployment(self) -> dict[str, Any]:
        found = self.cluster.get("deployments", namespace=self.namespace)["items"]
        assert len(found) == 1, [each["metadata"]["name"] for each in found]
        deployment: dict[str, Any] = found[0]
        return deployment

    def pods(self) -> list[dict[str, Any]]:
        """Return the operator's pods that are not terminating."""
        selector = ",".join(f"{k}={v}" for k, v in self.deployment()["spec"]["selector"]["matchLabels"].items())
        pods: list[dict[str, Any]] = self.cluster.get("pods", namespace=self.namespace, selector=selector)["items"]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def wait_ready(self, *, timeout_s: float = OPERATOR_TIMEOUT_S) -> None:
        """Wait until all replicas are ready and of the newest generation."""

        def ask() -> bool:
            found = self.deployment()
            status, wanted = found.get("status", {}), found["spec"]["replicas"]
            current = status.get("observedGeneration") == found["metadata"]["generation"]
            counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "readyReplicas")]
            if current and counts == [wanted] * 3:
                return True
            raise NotYetError(json.dumps(status)[-600:])

        wait_until(f"the operator of {self.namespace} is ready", ask, timeout_s=timeout_s)

    def metrics(self) -> str:
        """Return the text of /metrics of the (only) pod, through the API server's proxy."""
        pod = self.pods()[0]["metadata"]["name"]
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}:8080/proxy/metrics"
        return str(self.cluster.kubectl("get", "--raw", path).stdout)

    def _helm(self, verb: str, *extra: str, **more: Any) -> None:
        values = json.dumps(self.values(**more))
        where = ["-n", self.namespace, "-f", "-"]
        self.cluster.helm(verb, self.release, str(CHART_PATH), *where, *extra, input=values)
