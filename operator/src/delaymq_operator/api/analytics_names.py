"""Names of Spark's part: applications and what they need, the files of a result, properties that are the operator's."""

from __future__ import annotations

import hashlib
from typing import Final

ANALYTICS_SPARK_VERSION: Final = "4.1.4"
"""Of the image; a test compares it with the pin that the image is built from."""
ANALYTICS_MAIN_FILE: Final = "local:///opt/delaymq/lib/delaymq_spark/cli.py"
SPARK_DRIVER_CONTAINER: Final = "spark-kubernetes-driver"
SPARK_EXECUTOR_CONTAINER: Final = "spark-kubernetes-executor"
ANALYTICS_TOKEN_VARIABLE: Final = "DELAYMQ_HTTP_TOKEN"

# Keys of the ConfigMap of a result.
RESULT_STATUS_KEY: Final = "status.json"
RESULT_SUMMARY_KEY: Final = "summary.json.gz"
RESULT_REPORT_KEY: Final = "report.html.gz"

MAX_APPLICATION_NAME_CHARS: Final = 56
"""The Spark operator's pod `<application>-driver` must fit the 63 characters of a label."""
TOKEN_CHARS: Final = 8
"""Minutes since 1970 have eight digits until the year 2160; those on demand are made as long."""
_HASH_CHARS: Final = 8
_MAX_PREFIX_CHARS: Final = MAX_APPLICATION_NAME_CHARS - len("-analytics-31-") - TOKEN_CHARS

_PLACE: Final = "where and as what the application runs belongs to the operator: remove it"
_SIZE: Final = "use spec.analytics.driver and spec.analytics.executor"
_IMAGE: Final = "use spec.analytics.image, imagePullPolicy and imagePullSecrets"
_ACCOUNT: Final = "use spec.analytics.serviceAccountName"
_NODES: Final = "use spec.analytics.nodeSelector and spec.analytics.tolerations"
_PODS: Final = "the pods are made as the restricted standard has them, with labels by which they are found: remove it"
_SECRETS: Final = "the pods get the token of their broker and no other Secret: remove it"
_HOST: Final = "files of a node or of an NFS server are not mounted: use spec.analytics.resultsClaim for results"
_SCRATCH: Final = "Spark's scratch files have a place of their own, as the root file system is read-only: remove it"

OWNED_SPARK_KEYS: Final[dict[str, str]] = {
    "spark.master": _PLACE,
    "spark.submit.": _PLACE,
    "spark.app.": _PLACE,
    "spark.kubernetes.namespace": _PLACE,
    "spark.kubernetes.context": _PLACE,
    "spark.kubernetes.driver.pod.name": _PLACE,
    "spark.kubernetes.executor.podNamePrefix": _PLACE,
    "spark.driver.cores": _SIZE,
    "spark.driver.memory": _SIZE,
    "spark.driver.memoryOverhead": _SIZE,
    "spark.driver.memoryOverheadFactor": _SIZE,
    "spark.executor.cores": _SIZE,
    "spark.executor.memory": _SIZE,
    "spark.executor.memoryOverhead": _SIZE,
    "spark.executor.memoryOverheadFactor": _SIZE,
    "spark.executor.instances": _SIZE,
    "spark.dynamicAllocation.": _SIZE,
    "spark.kubernetes.memoryOverheadFactor": _SIZE,
    "spark.kubernetes.driver.request.cores": _SIZE,
    "spark.kubernetes.driver.limit.cores": _SIZE,
    "spark.kubernetes.executor.request.cores": _SIZE,
    "spark.kubernetes.executor.limit.cores": _SIZE,
    "spark.kubernetes.container.image": _IMAGE,
    "spark.kubernetes.container.image.": _IMAGE,
    "spark.kubernetes.driver.container.image": _IMAGE,
    "spark.kubernetes.executor.container.image": _IMAGE,
    "spark.kubernetes.authenticate.": _ACCOUNT,
    "spark.kubernetes.node.selector.": _NODES,
    "spark.kubernetes.driver.node.selector.": _NODES,
    "spark.kubernetes.executor.node.selector.": _NODES,
    "spark.kubernetes.driver.podTemplate": _PODS,
    "spark.kubernetes.executor.podTemplate": _PODS,
    "spark.kubernetes.driver.label.": _PODS,
    "spark.kubernetes.executor.label.": _PODS,
    "spark.kubernetes.driver.service.label.": _PODS,
    "spark.kubernetes.driver.secrets.": _SECRETS,
    "spark.kubernetes.executor.secrets.": _SECRETS,
    "spark.kubernetes.driver.secretKeyRef.": _SECRETS,
    "spark.kubernetes.executor.secretKeyRef.": _SECRETS,
    "spark.kubernetes.driverEnv.DELAYMQ_": _SECRETS,
    "spark.executorEnv.DELAYMQ_": _SECRETS,
    "spark.kubernetes.driver.volumes.hostPath.": _HOST,
    "spark.kubernetes.executor.volumes.hostPath.": _HOST,
    "spark.kubernetes.driver.volumes.nfs.": _HOST,
    "spark.kubernetes.executor.volumes.nfs.": _HOST,
    "spark.local.dir": _SCRATCH,
    "spark.kubernetes.local.dirs.": _SCRATCH,
}
"""Spark properties, or beginnings of such (those that end with . or _, and podTemplate), that spec.analytics.sparkConf
must not have: what to do instead."""
_BEGINNINGS: Final = tuple(key for key in OWNED_SPARK_KEYS if key.endswith((".", "_", "podTemplate")))


def spark_key_owner(key: str) -> str | None:
    """What to do instead of setting a Spark property; None: a user may set it."""
    if key in OWNED_SPARK_KEYS:
        return OWNED_SPARK_KEYS[key]
    return next((OWNED_SPARK_KEYS[begins] for begins in _BEGINNINGS if key.startswith(begins)), None)


def analytics_objects(broker: str) -> str:
    """ServiceAccount and RoleBinding of Spark's drivers: demo-analytics."""
    return f"{broker}-analytics"


def scheduled_token(at_s: float) -> str:
    """The token of the run that is due at a time (s since the epoch): minutes, since schedules know no seconds."""
    return f"{int(at_s // 60):0{TOKEN_CHARS}d}"


def demanded_token(text: str) -> str:
    """The token of the run that an annotation's text asks for."""
    return "d" + _hash(text)[: TOKEN_CHARS - 1]


def analytics_application(broker: str, group: int, token: str) -> str:
    """A run's SparkApplication of a group, and the ConfigMap of its result: demo-analytics-0-29654400.

    A Broker's name that is too long for it is cut, and a hash tells it from others that begin so.
    """
    prefix = broker
    if len(broker) > _MAX_PREFIX_CHARS:
        prefix = f"{broker[: _MAX_PREFIX_CHARS - _HASH_CHARS - 1].rstrip('-')}-{_hash(broker)[:_HASH_CHARS]}"
    return f"{prefix}-analytics-{group}-{token}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
