"""Validation of `spec.analytics` by a real API server: accepted values, defaults, error messages."""

from __future__ import annotations

import pytest
from delaymq_operator.api import analytics_names, names, parse_broker
from delaymq_operator_testing.api_server import ApiServer
from delaymq_operator_testing.crd_requests import Spec, not_kept, refusal, rules_without, would_make

SCHEDULE = (
    "a schedule has five fields (minute, hour, day of the month, month, day of the week), or is @hourly, @daily, "
    "@weekly or @monthly: use a value like 0 3 * * *"
)
TIME_ZONE = "a time zone is an IANA name: use a value like Europe/Berlin or Etc/UTC"
CPU = "CPU is a number of cores above 0: use a value like 500m or 2"
CPU_LIMIT = (
    "the requested CPU (coreRequest, or cores if it is not set) exceeds coreLimit: raise coreLimit, or lower "
    "coreRequest"
)
MEMORY = "memory is a whole number followed by m or g, as in Spark: use a value like 512m or 2g"
LITTLE_MEMORY = "Spark requires at least 512m: use 512m or more"
TOPIC = "a topic name consists of letters, digits, -, _, % and |: use a name like orders_paid"
ONE_LINE = "a value is a single line of text: remove line breaks and control characters"
SUBMITTERS = (
    "variables would be expanded by the Spark operator, which submits the application: write the value itself, not "
    "${env:…} or ${system:…}"
)
PROPERTY = (
    "a Spark property is spark. followed by letters, digits, -, _, . and /: use a name like "
    "spark.sql.shuffle.partitions"
)

REFUSED: list[tuple[Spec, str, str]] = [
    *(
        ({"schedule": schedule}, "schedule", SCHEDULE)
        for schedule in (
            "0 3 * *",
            "0 0 3 * * *",
            "@yearly",
            "every day",
            "0 3 * * *;",
            "TZ=UTC 0 3 * * *",
            " 0 3 * * *",
        )
    ),
    *(({"timeZone": zone}, "timeZone", TIME_ZONE) for zone in ("+02:00", "Europe/", "../etc/passwd", "Europe Berlin")),
    ({"read": "NFS"}, "read", 'Unsupported value: "NFS": supported values: "HTTP", "Volume"'),
    (
        {"image": "a b"},
        "image",
        ("an image name contains no spaces: use a name like registry.example/delaymq/spark:0.1.0"),
    ),
    (
        {"driver": {"cores": 0}},
        "driver.cores",
        "spec.analytics.driver.cores in body should be greater than or equal to 1",
    ),
    ({"driver": {"coreRequest": "much"}}, "driver.coreRequest", CPU),
    ({"executor": {"coreLimit": "one"}}, "executor.coreLimit", CPU),
    ({"driver": {"coreLimit": "500m"}}, "driver.coreLimit", CPU_LIMIT),
    ({"executor": {"coreRequest": 2, "coreLimit": "1500m"}}, "executor.coreLimit", CPU_LIMIT),
    *(({"driver": {"memory": text}}, "driver.memory", MEMORY) for text in ("1Gi", "1.5g", "0g", "g", "1024")),
    ({"driver": {"memory": "511m"}}, "driver.memory", LITTLE_MEMORY),
    ({"executor": {"memory": "1m"}}, "executor.memory", LITTLE_MEMORY),
    ({"executor": {"memoryOverhead": "384Mi"}}, "executor.memoryOverhead", MEMORY),
    (
        {"executor": {"instances": 101}},
        "executor.instances",
        "spec.analytics.executor.instances in body should be less than or equal to 100",
    ),
    (
        {"deadlineSeconds": 59},
        "deadlineSeconds",
        "spec.analytics.deadlineSeconds in body should be greater than or equal to 60",
    ),
    (
        {"failedRunsHistoryLimit": 21},
        "failedRunsHistoryLimit",
        "spec.analytics.failedRunsHistoryLimit in body should be less than or equal to 20",
    ),
    (
        {"resultsHistoryLimit": 0},
        "resultsHistoryLimit",
        "spec.analytics.resultsHistoryLimit in body should be greater than or equal to 1",
    ),
    ({"keyedTopics": ["a,b"]}, "keyedTopics[0]", TOPIC),
    ({"keyedTopics": ["a", "a"]}, "keyedTopics[1]", 'Duplicate value: "a"'),
    (
        {"resultsClaim": names.group_claim("demo", 31)},
        "resultsClaim",
        "the volume of a broker is reserved for its store: use another claim for results",
    ),
    ({"sparkConf": {"sql.shuffle.partitions": "1"}}, "sparkConf", PROPERTY),
    ({"sparkConf": {"spark.master=local x": "1"}}, "sparkConf", PROPERTY),
    ({"sparkConf": {"spark.ui.enabled": "a\nb"}}, "sparkConf[spark.ui.enabled]", ONE_LINE),
    ({"sparkConf": {"spark.x": "a ${env:HOME}"}}, "sparkConf[spark.x]", SUBMITTERS),
    ({"sparkConf": {"spark.x": "${system:user.name}"}}, "sparkConf[spark.x]", SUBMITTERS),
    ({"sparkConf": {f"spark.x{number}": "" for number in range(51)}}, "sparkConf", "must have at most 50 items"),
]
"""Invalid `spec.analytics`, the field below it, and the error message."""

ACCEPTED: list[Spec] = [
    {},
    {"schedule": "*/15 0-6,22 1 JAN-JUN MON#1", "timeZone": "America/Argentina/Buenos_Aires", "suspend": True},
    {"schedule": "@daily", "timeZone": "Etc/GMT+5", "read": "Volume", "resultsClaim": "results"},
    {"resultsClaim": "results", "resultsHistoryLimit": 1000},
    {"driver": {"coreRequest": "100m", "coreLimit": 1, "memory": "512m", "memoryOverhead": "64m"}},
    {"executor": {"instances": 100, "cores": 4, "coreLimit": 4, "memory": "64g"}},
    {"image": "registry.example:5000/a/b@sha256:0", "imagePullSecrets": [{"name": "a"}], "serviceAccountName": "spark"},
    {"nodeSelector": {"disk": "fast"}, "tolerations": [{"key": "spot", "operator": "Exists"}]},
    {
        "sparkConf": {
            "spark.sql.shuffle.partitions": "64",
            "spark.kubernetes.driver.annotation.example.com/team": "shop",
            "spark.kubernetes.executor.volumes.persistentVolumeClaim.spark-local-dir-1.options.claimName": "OnDemand",
            "spark.kubernetes.driverEnv.TZ": "Europe/Berlin",
            "spark.driver.extraJavaOptions": "-Dx=ü y",
            "spark.executor.extraJavaOptions": "${spark.driver.extraJavaOptions}",
        }
    },
    {"keyedTopics": ["a", "b|%"], "promiseP99Milliseconds": 0, "minDeadPercent": 100, "deadlineSeconds": 86400},
    {"successfulRunsHistoryLimit": 0, "failedRunsHistoryLimit": 20},
]


@pytest.mark.parametrize(("analytics", "field", "sentence"), REFUSED)
def test_invalid_analytics_are_rejected(
    api_server: ApiServer, namespace: str, analytics: Spec, field: str, sentence: str
) -> None:
    said = refusal(api_server, namespace, "Broker", "demo", {"analytics": analytics})
    assert said == [(f"spec.analytics.{field}", sentence)]


@pytest.mark.parametrize("key", sorted(analytics_names.OWNED_SPARK_KEYS))
def test_reserved_spark_property_is_rejected_with_remedy(api_server: ApiServer, namespace: str, key: str) -> None:
    begins = key.endswith((".", "_"))
    analytics = {"sparkConf": {key + "x" if begins else key: "1"}}
    said = refusal(api_server, namespace, "Broker", "demo", {"analytics": analytics})
    assert said == [("spec.analytics.sparkConf", analytics_names.OWNED_SPARK_KEYS[key])]


@pytest.mark.parametrize("analytics", ACCEPTED)
def test_valid_analytics_are_stored_unchanged(api_server: ApiServer, namespace: str, analytics: Spec) -> None:
    made = would_make(api_server, namespace, "Broker", "demo", {"analytics": analytics})
    assert not_kept(analytics, made["spec"]["analytics"]) == []
    assert parse_broker(made).spec == parse_broker(made | {"spec": {"analytics": analytics}}).spec


def test_empty_analytics_get_every_default(api_server: ApiServer, namespace: str) -> None:
    assert would_make(api_server, namespace, "Broker", "demo", {"analytics": {}})["spec"]["analytics"] == {
        "timeZone": "Etc/UTC",
        "suspend": False,
        "read": "HTTP",
        "imagePullPolicy": "IfNotPresent",
        "driver": {"cores": 1, "memory": "1g"},
        "executor": {"instances": 1, "cores": 1, "memory": "1g"},
        "deadlineSeconds": 3600,
        "successfulRunsHistoryLimit": 3,
        "failedRunsHistoryLimit": 1,
        "promiseP99Milliseconds": 100,
        "minDeadPercent": 25,
        "resultsHistoryLimit": 30,
    }


def test_every_analytics_rule_has_test_case() -> None:
    told = {sentence for _, _, sentence in REFUSED} | set(analytics_names.OWNED_SPARK_KEYS.values())
    assert rules_without("Broker", told, below="spec.analytics") == []
