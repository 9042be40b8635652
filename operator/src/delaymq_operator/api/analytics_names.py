"""Names used by analytics: applications and their objects, result files, and Spark properties reserved for the
operator.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

ANALYTICS_SPARK_VERSION: Final = "4.3.0"
"""Spark version of the image; a test compares it with the pin from which the image is built."""
ANALYTICS_MAIN_FILE: Final = "local:///opt/delaymq/lib/delaymq_spark/cli.py"
SPARK_DRIVER_CONTAINER: Final = "spark-kubernetes-driver"
SPARK_EXECUTOR_CONTAINER: Final = "spark-kubernetes-executor"
ANALYTICS_TOKEN_VARIABLE: Final = "DELAYMQ_HTTP_TOKEN"

# Keys of the ConfigMap of a result:
RESULT_STATUS_KEY: Final = "status.json"
RESULT_SUMMARY_KEY: Final = "summary.json.gz"
RESULT_REPORT_KEY: Final = "report.html.gz"

_DRIVER_SUFFIX: Final = "-driver"
MAX_APPLICATION_NAME_CHARS: Final = 63 - len(_DRIVER_SUFFIX)
"""The name of the driver's pod must fit the 63 characters of a label."""
TOKEN_CHARS: Final = 8
"""Length of a run's token: minutes since 1970 have eight digits until the year 2160, and tokens of runs on demand
have the same length.
"""
_HASH_CHARS: Final = 8
_MAX_PREFIX_CHARS: Final = MAX_APPLICATION_NAME_CHARS - len("-analytics-31-") - TOKEN_CHARS

# Explanations for Spark properties that users must not set, with the texts of the rules of the CRD:
_SHAPE: Final = (
    "a Spark property is spark. followed by letters, digits, -, _, . and /: use a name like "
    "spark.sql.shuffle.partitions"
)
_PLACE: Final = (
    "spark.master, spark.submit.…, spark.kubernetes.submission.…, spark.app.…, the namespace and pod names are set by"
    " the operator: remove them"
)
_SIZE: Final = (
    "cores, memory and number of Spark pods have their own fields: use spec.analytics.driver and "
    "spec.analytics.executor"
)
_IMAGE: Final = (
    "images of Spark pods have their own fields: use spec.analytics.image, spec.analytics.imagePullPolicy and "
    "spec.analytics.imagePullSecrets"
)
_ACCOUNT: Final = "spark.kubernetes.authenticate.… is set by the operator: use spec.analytics.serviceAccountName"
_NODES: Final = (
    "the nodes of Spark pods have their own fields: use spec.analytics.nodeSelector and spec.analytics.tolerations"
)
_PODS: Final = (
    "templates, labels and feature steps of Spark pods are set by the operator, which restricts the pods and selects "
    "them by label: remove them"
)
_SECRETS: Final = (
    "Spark pods get the token of their broker and no other Secret, and variables DELAYMQ_… are reserved for the "
    "operator: remove them"
)
_HOST: Final = (
    "hostPath and nfs volumes cannot be mounted into Spark pods: use a volume claim, or spec.analytics.resultsClaim "
    "for results"
)
_FILES: Final = (
    "jars, files and archives cannot be loaded from outside: build an image that contains them, and set "
    "spec.analytics.image"
)
_SCRATCH: Final = (
    "spark.local.dir and spark.kubernetes.local.dirs.… are set by the operator, since the root file system is "
    "read-only: remove them"
)
_LOGIN: Final = "Kerberos is not supported: remove spark.kerberos.… and spark.kubernetes.kerberos.…"

OWNED_SPARK_KEYS: Final[dict[str, str]] = {
    "spark.master": _PLACE,
    "spark.submit.": _PLACE,
    # A submission that waits for the application's end would block a worker of the Spark operator.
    "spark.kubernetes.submission.": _PLACE,
    "spark.app.": _PLACE,
    "spark.kubernetes.namespace": _PLACE,
    "spark.kubernetes.context": _PLACE,
    "spark.kubernetes.driver.master": _PLACE,
    "spark.kubernetes.driver.pod.name": _PLACE,
    "spark.kubernetes.driver.resourceNamePrefix": _PLACE,
    "spark.kubernetes.executor.podNamePrefix": _PLACE,
    "spark.driver.cores": _SIZE,
    "spark.driver.memory": _SIZE,
    "spark.driver.memoryOverhead": _SIZE,
    "spark.driver.memoryOverheadFactor": _SIZE,
    "spark.driver.minMemoryOverhead": _SIZE,
    "spark.executor.cores": _SIZE,
    "spark.executor.memory": _SIZE,
    "spark.executor.memoryOverhead": _SIZE,
    "spark.executor.memoryOverheadFactor": _SIZE,
    "spark.executor.minMemoryOverhead": _SIZE,
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
    "spark.kubernetes.driver.podTemplateFile": _PODS,
    "spark.kubernetes.driver.podTemplateContainerName": _PODS,
    "spark.kubernetes.executor.podTemplateFile": _PODS,
    "spark.kubernetes.executor.podTemplateContainerName": _PODS,
    "spark.kubernetes.driver.label.": _PODS,
    "spark.kubernetes.executor.label.": _PODS,
    "spark.kubernetes.driver.service.label.": _PODS,
    "spark.kubernetes.driver.pod.featureSteps": _PODS,
    "spark.kubernetes.executor.pod.featureSteps": _PODS,
    "spark.kubernetes.driver.pod.excludedFeatureSteps": _PODS,
    "spark.kubernetes.executor.pod.excludedFeatureSteps": _PODS,
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
    # The Spark operator submits: it would read the files in its own pod, with its own credentials.
    "spark.jars": _FILES,
    "spark.jars.": _FILES,
    "spark.files": _FILES,
    "spark.archives": _FILES,
    "spark.kubernetes.file.upload.path": _FILES,
    "spark.local.dir": _SCRATCH,
    "spark.kubernetes.local.dirs.": _SCRATCH,
    "spark.kerberos.": _LOGIN,
    "spark.kubernetes.kerberos.": _LOGIN,
}
"""Properties, or prefixes of properties (ending with . or _), that spec.analytics.sparkConf must not contain."""
_BEGINNINGS: Final = tuple(key for key in OWNED_SPARK_KEYS if key.endswith((".", "_")))
_SUBMITTERS: Final = ("${env:", "${system:")
_SPARK_KEY: Final = re.compile(r"spark\.[A-Za-z0-9._/-]+")
"""Otherwise, `spark.master=local x` would be a separate property here, but spark.master for spark-submit."""


def spark_key_owner(key: str) -> str | None:
    """Return what to do instead of setting a Spark property, as a sentence; None if a user may set it."""
    if not _SPARK_KEY.fullmatch(key):
        return _SHAPE
    if key in OWNED_SPARK_KEYS:
        return OWNED_SPARK_KEYS[key]
    return next((OWNED_SPARK_KEYS[begins] for begins in _BEGINNINGS if key.startswith(begins)), None)


def takes_from_submitter(value: str) -> bool:
    """Return whether Spark would expand variables of the submitting process, which is the Spark operator."""
    return any(begins in value for begins in _SUBMITTERS)


def analytics_objects(broker: str) -> str:
    """Return the name of the drivers' ServiceAccount and RoleBinding and the Spark pods' NetworkPolicy:
    demo-analytics.
    """
    return f"{broker}-analytics"


def scheduled_token(at_s: float) -> str:
    """Return the token of the run due at a time (s since the epoch), in minutes, since schedules have no seconds."""
    return f"{int(at_s // 60):0{TOKEN_CHARS}d}"


def demanded_token(text: str) -> str:
    """Return the token of the run requested by an annotation's value."""
    return "d" + _hash(text)[: TOKEN_CHARS - 1]


def analytics_application(broker: str, group: int, token: str) -> str:
    """Return the name of a group's SparkApplication in a run, and of its result's ConfigMap:
    demo-analytics-0-29654400.

    A Broker name that is too long is truncated, and a hash distinguishes it from others with the same prefix.
    """
    prefix = broker
    if len(broker) > _MAX_PREFIX_CHARS:
        prefix = f"{broker[: _MAX_PREFIX_CHARS - _HASH_CHARS - 1].rstrip('-')}-{_hash(broker)[:_HASH_CHARS]}"
    return f"{prefix}-analytics-{group}-{token}"


def driver_pod(application: str) -> str:
    """Return the name of an application's driver pod, as assigned by the Spark operator."""
    return application + _DRIVER_SUFFIX


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
