"""spec.analytics and status.analytics of a Broker: settings and results of analyses.

Times are RFC 3339 strings in UTC, sizes bytes, lateness ms.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from delaymq_operator.api.resource import ApiStruct, NameRef, StatusStruct

RunState = Literal["Starting", "Submitted", "Running", "Succeeded", "Failed"]


class SparkPod(ApiStruct, frozen=True, kw_only=True):
    """Resources of the Spark driver. Names and formats are those of a SparkApplication."""

    cores: Annotated[int, Meta(ge=1, le=64)] = 1
    core_request: str | int | None = None
    """A quantity; None: `cores`."""
    core_limit: str | int | None = None
    """A quantity; None: no limit."""
    memory: str = "1g"
    """Size of the JVM's heap: a number followed by m or g."""
    memory_overhead: str | None = None
    """Memory of the pod in addition to the heap, for Python and the rest of the process; None: as in Spark, 40 %,
    but at least 384 MiB.
    """


class SparkExecutor(SparkPod, frozen=True, kw_only=True):
    """Number and resources of the executors."""

    instances: Annotated[int, Meta(ge=1, le=100)] = 1


class AnalyticsSpec(ApiStruct, frozen=True, kw_only=True):
    """Desired state; an empty one permits runs on demand only."""

    schedule: str | None = None
    """A cron expression of five fields, or @hourly, @daily, @weekly, @monthly. The operator checks what the CRD
    cannot.
    """
    time_zone: str = "Etc/UTC"
    """IANA name of the time zone."""
    suspend: bool = False
    """Whether scheduled runs are suspended; runs on demand are not."""
    read: Literal["HTTP", "Volume"] = "HTTP"
    image: str | None = None
    """None: the operator's setting `analytics_image`."""
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    image_pull_secrets: tuple[NameRef, ...] = ()
    service_account_name: str | None = None
    """None: the operator creates one and binds it to the role of analytics."""
    driver: SparkPod = SparkPod()
    executor: SparkExecutor = SparkExecutor()
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()
    """Passed to Kubernetes unchanged."""
    spark_conf: dict[str, str] = field(default_factory=dict)
    """Further Spark properties; `names.spark_key_owner` determines which ones the operator sets."""
    deadline_seconds: Annotated[int, Meta(ge=60, le=86_400)] = 3600
    """Time limit from the application's creation."""
    successful_runs_history_limit: Annotated[int, Meta(ge=0, le=20)] = 3
    failed_runs_history_limit: Annotated[int, Meta(ge=0, le=20)] = 1
    keyed_topics: tuple[str, ...] = ()
    promise_p99_milliseconds: Annotated[int, Meta(ge=0, le=86_400_000)] = 100
    min_dead_percent: Annotated[int, Meta(ge=0, le=100)] = 25
    results_claim: str | None = None
    """Volume claim for the Parquet files; None: only the ConfigMap of a run contains its results."""
    results_history_limit: Annotated[int, Meta(ge=1, le=1000)] = 30
    """Number of runs per group whose results are kept in the claim."""


class AnalyticsGroupStatus(StatusStruct, frozen=True, kw_only=True):
    """State of a group: its most recent application, and the results of the last successful one."""

    group: int
    name: str
    """RocketMQ's broker name, such as demo-0."""
    application: str | None = None
    state: RunState | None = None
    started_at: str | None = None
    completed_at: str | None = None
    message: str | None = None
    """Why it failed, or what it is waiting for, as a sentence."""
    messages: int | None = None
    total_bytes: int | None = None
    live_bytes: int | None = None
    dead_bytes: int | None = None
    reclaimable_bytes: int | None = None
    pending: int | None = None
    delivered: int | None = None
    lost: int | None = None
    duplicates: int | None = None
    early: int | None = None
    worst_lateness_ms: int | None = None
    p99_lateness_ms: int | None = None
    complete: bool | None = None
    """Whether every part of the store was readable."""
    skipped: int | None = None
    """Number of unreadable parts."""
    report: str | None = None
    """ConfigMap with summary.json.gz and report.html.gz."""


class AnalyticsStatus(StatusStruct, frozen=True, kw_only=True):
    """The most recent run, and the sums (for lateness the maximum) of the groups' last successful results."""

    since: str | None = None
    """Time when spec.analytics was first observed; the first scheduled run follows it."""
    last_schedule_time: str | None = None
    next_schedule_time: str | None = None
    analyzed: str | None = None
    """Value of the annotation delaymq.io/analyze that was last processed."""
    run: str | None = None
    """Token of the most recent run."""
    state: RunState | None = None
    application: str | None = None
    completed_at: str | None = None
    """End of the last run that analysed a group."""
    messages: int | None = None
    total_bytes: int | None = None
    live_bytes: int | None = None
    dead_bytes: int | None = None
    reclaimable_bytes: int | None = None
    pending: int | None = None
    lost: int | None = None
    worst_lateness_ms: int | None = None
    complete: bool | None = None
    groups: tuple[AnalyticsGroupStatus, ...] = ()
