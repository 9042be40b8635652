"""Kubeflow's Spark operator from its own chart, and the objects that a Broker's analytics left in its namespace."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

from cluster.programs import SPARK_OPERATOR
from kind import objects
from kind.lab import Lab
from kind.space import Space

Manifest = dict[str, Any]

NAMESPACE = "spark-operator"
RELEASE = "spark-operator"
APPLICATION = "sparkapplications.sparkoperator.k8s.io"
ANALYTICS_LABEL = "app.kubernetes.io/component=analytics"


class SparkOperator:
    """One release of its chart, on the node that has the images; it watches all namespaces."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def install(self) -> None:
        self.lab.wait_spark_images()
        cluster = self.lab.cluster
        # Nothing can be created in a terminating namespace.
        cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout_s=120)
        cluster.apply(objects.namespace(NAMESPACE))
        repository, _, tag = self.lab.images["spark-operator"].rpartition(":")
        selector = {"kubernetes.io/hostname": self.lab.spark_node}
        values = {
            "image": {"registry": "docker.io", "repository": repository, "tag": tag, "pullPolicy": "Never"},
            "spark": {"jobNamespaces": [""]},
            "controller": {"workers": 2, "nodeSelector": selector, "leaderElection": {"enable": False}},
            # The templates of the applications contain everything that its webhook would add.
            "webhook": {"enable": False},
        }
        chart = str(SPARK_OPERATOR.obtain() / "chart")
        where = ["-n", NAMESPACE, "-f", "-", "--wait", "--timeout", "120s"]
        cluster.helm("install", RELEASE, chart, *where, input=json.dumps(values))

    def uninstall(self) -> None:
        """Uninstall it with its CRDs, which Helm would keep; this deletes every application too."""
        cluster = self.lab.cluster
        cluster.helm("uninstall", RELEASE, "-n", NAMESPACE, "--ignore-not-found", "--wait", "--timeout", "60s")
        self.remove_definitions()
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false", "--ignore-not-found")

    def remove_definitions(self) -> None:
        names = [each["metadata"]["name"] for each in self.lab.cluster.get("customresourcedefinitions")["items"]]
        unwanted = [name for name in names if name.endswith(".sparkoperator.k8s.io")]
        if unwanted:
            self.lab.cluster.kubectl("delete", "customresourcedefinition", *unwanted, timeout_s=120)


def analytics_spec(lab: Lab, **more: Any) -> Manifest:
    """Return a small analytics spec for the node that has the image."""
    # Java's C2 compiler costs more than it saves if each plan runs once on little data: without it, runs take a third.
    java = "-XX:TieredStopAtLevel=1"
    size = {"coreRequest": "100m", "memory": "512m"}
    return {
        "imagePullPolicy": "Never",
        "nodeSelector": {"kubernetes.io/hostname": lab.spark_node},
        "driver": size,
        "executor": size,
        "sparkConf": {
            "spark.sql.shuffle.partitions": "2",
            "spark.log.level": "WARN",
            "spark.driver.extraJavaOptions": java,
            "spark.executor.extraJavaOptions": java,
        },
        **more,
    }


def summary_of(space: Space, config_map: str) -> Any:
    """Return the summary that a run published."""
    return json.loads(_unpacked(space, config_map, "summary.json.gz"))


def report_of(space: Space, config_map: str) -> str:
    """Return the page that a run published."""
    return _unpacked(space, config_map, "report.html.gz").decode()


def left_by_analytics(space: Space, broker: str) -> dict[str, list[str]]:
    """Return kind → names of objects that the operator, the Spark operator or Spark created for the analytics."""
    found = {}
    for kind in (APPLICATION, "pods", "configmaps", "services", "serviceaccounts", "rolebindings", "networkpolicies"):
        names = [each["metadata"]["name"] for each in space.list(kind)]
        ours = [name for name in names if name.startswith((f"{broker}-analytics", "spark-drv-", "delaymq-spark-"))]
        if ours:
            found[kind] = sorted(ours)
    return found


def _unpacked(space: Space, config_map: str, key: str) -> bytes:
    packed = space.get("configmap", config_map).get("binaryData", {}).get(key)
    assert packed, f"ConfigMap {config_map} has no {key}"
    return gzip.decompress(base64.b64decode(packed))
