"""SparkApplication that analyses the store of a group: a driver and executors, in pods of the restricted standard.

The templates contain everything that the pods need: the Spark operator's webhook, which would fill in other fields,
may be disabled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from delaymq_operator.api import analytics_names, names
from delaymq_operator.api.analytics import AnalyticsSpec, SparkPod
from delaymq_operator.api.broker import Broker
from delaymq_operator.manifests.metadata import Manifest, new_object, selector
from delaymq_operator.manifests.pods import DATA_PATH, container_security, pod_security

TMP_PATH = "/tmp"
SPARK_LOCAL_PATH = "/tmp/spark-local"
STORE_PATH = "/mnt/delaymq"
"""Mount path of a group's volume, if it is read directly; the broker's store is a directory in it."""
RESULTS_PATH = "/results"
CA_PATH = "/etc/delaymq-ca"
_EXECUTORS_MANAGED_BY = "spark"
"""Label value of executors: watches do not select it, since executors can be numerous and are irrelevant to the
operator.
"""
_RATIO_DIGITS = 2
_OWN_CONF = {
    "spark.local.dir": SPARK_LOCAL_PATH,
    # spark-submit 4.3 creates a NetworkPolicy for each application, which the Spark operator's role does not allow.
    "spark.kubernetes.driver.pod.excludedFeatureSteps": "org.apache.spark.deploy.k8s.features.NetworkPolicyFeatureStep",
}


@dataclass(frozen=True, kw_only=True)
class AnalyticsRun:
    """Parameters of a run for one group."""

    group: int
    token: str
    """Token of the run."""
    image: str
    read: Literal["HTTP", "Volume"]
    cluster_domain: str = names.DEFAULT_CLUSTER_DOMAIN
    https: bool = False
    """Whether the broker's HTTP port requires TLS."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the broker by configuration key. They are not on its volume, but available by HTTP."""


def analytics_application(broker: Broker, spec: AnalyticsSpec, run: AnalyticsRun) -> Manifest:
    """Return the SparkApplication of a group in a run."""
    name = analytics_names.analytics_application(broker.name, run.group, run.token)
    found = new_object(broker, "SparkApplication", name, "analytics", run.group)
    account = spec.service_account_name or analytics_names.analytics_objects(broker.name)
    labels = names.labels(broker.name, "analytics", run.group)
    driver = _pod_size(spec.driver) | {
        "serviceAccount": account,
        "labels": labels,
        "envSecretKeyRefs": _token(broker),
        "template": _template(broker, spec, run, analytics_names.SPARK_DRIVER_CONTAINER),
    }
    executor = _pod_size(spec.executor) | {
        "instances": spec.executor.instances,
        # Network policies select by them, so they must not depend on what the Spark operator passes on.
        "labels": labels | {names.MANAGED_BY_LABEL: _EXECUTORS_MANAGED_BY},
        "envSecretKeyRefs": _token(broker),
        "template": _template(broker, spec, run, analytics_names.SPARK_EXECUTOR_CONTAINER),
    }
    # Executors run code, not requests to the API server.
    executor["template"]["spec"]["automountServiceAccountToken"] = False
    found["spec"] = {
        "type": "Python",
        "mode": "cluster",
        "pythonVersion": "3",
        "sparkVersion": analytics_names.ANALYTICS_SPARK_VERSION,
        "image": run.image,
        "imagePullPolicy": spec.image_pull_policy,
        "mainApplicationFile": analytics_names.ANALYTICS_MAIN_FILE,
        "arguments": _arguments(broker, spec, run, name),
        "restartPolicy": {"type": "Never"},
        "sparkConf": spark_conf(spec),
        "driver": driver,
        "executor": executor,
    }
    if spec.image_pull_secrets:
        found["spec"]["imagePullSecrets"] = [reference.name for reference in spec.image_pull_secrets]
    return found


def store_address(broker: Broker, run: AnalyticsRun) -> str:
    """Return the location of the store for the pods: the broker's HTTP by the name of its group's Service, or the
    mounted volume.
    """
    if run.read == "Volume":
        return f"{STORE_PATH}/store"
    service = names.group_object(broker.name, run.group)
    scheme = "https" if run.https else "http"
    return f"{scheme}://{service}.{broker.namespace}.{run.cluster_domain}:{names.BROKER_HTTP_PORT}"


def spark_conf(spec: AnalyticsSpec) -> dict[str, str]:
    """Return the Spark properties: the user's, except reserved ones, then the operator's."""
    users = {
        key: value
        for key, value in spec.spark_conf.items()
        if analytics_names.spark_key_owner(key) is None and not analytics_names.takes_from_submitter(value)
    }
    return dict(sorted((users | _OWN_CONF).items()))


def _arguments(broker: Broker, spec: AnalyticsSpec, run: AnalyticsRun, name: str) -> list[str]:
    found = ["report", "--store", store_address(broker, run), "--publish", f"configmap/{broker.namespace}/{name}"]
    # The end of a store that is being written may be incomplete; the result lists skipped parts.
    found += ["--skipped-ok", "--min-dead-ratio", f"{spec.min_dead_percent / 100:.{_RATIO_DIGITS}f}"]
    found += ["--promise-p99-ms", str(spec.promise_p99_milliseconds)]
    if spec.keyed_topics:
        # As one argument, since a topic name may start with -.
        found.append(f"--keyed-topics={','.join(spec.keyed_topics)}")
    if run.read == "Volume":
        levels, hours = run.settings.get("messageDelayLevel", ""), run.settings.get("fileReservedTime", "")
        found += ["--levels", levels] if levels else []
        # The command rejects 0: a broker without retention by age is analysed with the default.
        found += ["--retention-hours", hours] if hours.isdecimal() and int(hours) > 0 else []
    if spec.results_claim is not None:
        # The name ends with the run's token, by which the command identifies older runs of this group.
        found += ["--out", f"{RESULTS_PATH}/{name}", "--keep-runs", str(spec.results_history_limit)]
    return found


def _pod_size(pod: SparkPod) -> Manifest:
    found: dict[str, Any] = {"cores": pod.cores, "memory": pod.memory}
    optional = {
        "coreRequest": pod.core_request,
        "coreLimit": pod.core_limit,
        "memoryOverhead": pod.memory_overhead,
    }
    return found | {key: str(value) for key, value in optional.items() if value is not None}


def _token(broker: Broker) -> Manifest:
    secret = {"name": names.token_secret(broker.name), "key": names.TOKEN_KEY}
    return {analytics_names.ANALYTICS_TOKEN_VARIABLE: secret}


def _template(broker: Broker, spec: AnalyticsSpec, run: AnalyticsRun, container: str) -> Manifest:
    volumes: list[Manifest] = [{"name": "tmp", "emptyDir": {}}, {"name": "work", "emptyDir": {}}]
    mounts: list[Manifest] = [{"name": "tmp", "mountPath": TMP_PATH}, {"name": "work", "mountPath": DATA_PATH}]
    pod: Manifest = {
        "securityContext": pod_security(),
        # Variables of Services would look like settings: a Service delaymq-x sets DELAYMQ_X_PORT.
        "enableServiceLinks": False,
        "volumes": volumes,
        "containers": [{"name": container, "securityContext": container_security(), "volumeMounts": mounts}],
    }
    if run.read == "Volume":
        claim = names.group_claim(broker.name, run.group)
        # Read-only for the container: the volume itself is in use for writing on this node already.
        volumes.append({"name": "store", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": "store", "mountPath": STORE_PATH, "readOnly": True})
        pod["affinity"] = _same_node_affinity(broker, run.group)
    if run.read == "HTTP" and run.https:
        items = [{"key": names.CA_KEY, "path": names.CA_KEY}]
        volumes.append({"name": "ca", "secret": {"secretName": broker.certificate_secret, "items": items}})
        mounts.append({"name": "ca", "mountPath": CA_PATH, "readOnly": True})
        # Python verifies servers by this file instead of the system's CAs.
        pod["containers"][0]["env"] = [{"name": "SSL_CERT_FILE", "value": f"{CA_PATH}/{names.CA_KEY}"}]
    if spec.results_claim is not None:
        volumes.append({"name": "results", "persistentVolumeClaim": {"claimName": spec.results_claim}})
        mounts.append({"name": "results", "mountPath": RESULTS_PATH})
    if spec.node_selector:
        pod["nodeSelector"] = dict(sorted(spec.node_selector.items()))
    if spec.tolerations:
        pod["tolerations"] = list(spec.tolerations)
    return {"spec": pod}


def _same_node_affinity(broker: Broker, group: int) -> Manifest:
    term = {
        "labelSelector": {"matchLabels": selector(broker, "broker", group)},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
