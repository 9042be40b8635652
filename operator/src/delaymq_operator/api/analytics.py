"""spec.analytics and status.analytics of a Broker: what its store is analysed with, and what the runs found.

Times are RFC 3339 texts in UTC, sizes bytes, lateness ms.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from delaymq_operator.api.resource import ApiStruct, NameRef, StatusStruct

RunState = Literal["Starting", "Submitted", "Running", "Succeeded", "Failed"]


class SparkPod(ApiStruct, frozen=True, kw_only=True):
    """What Spark's driver asks for and may use. Names and formats are a SparkApplication's."""

    cores: Annotated[int, Meta(ge=1, le=64)] = 1
    core_request: str | int | None = None
    """A quantity; None: `cores`."""
    core_limit: str | int | None = None
    """A quantity; None: no limit."""
    memory: str = "1g"
    """Of the JVM's heap: a number and m or g."""
    memory_overhead: str | None = None
    """What Python and the rest of the process get beside the heap; None: as Spark does, 40 % and 384 MiB at least."""


class SparkExecutor(SparkPod, frozen=True, kw_only=True):
    """The same of each executor, and how many there are."""

    instances: Annotated[int, Meta(ge=1, le=100)] = 1


class AnalyticsSpec(ApiStruct, frozen=True, kw_only=True):
    """What a user writes; an empty one allows runs on demand only."""

    schedule: str | None = None
    """A cron line of five fields, or @hourly, @daily, @weekly, @monthly. The operator checks what the CRD cannot."""
    time_zone: str = "Etc/UTC"
    """IANA's name."""
    suspend: bool = False
    """No scheduled runs; those on demand go on."""
    read: Literal["HTTP", "Volume"] = "HTTP"
    image: str | None = None
    """None: the operator's setting `analytics_image`."""
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    image_pull_secrets: tuple[NameRef, ...] = ()
    service_account_name: str | None = None
    """None: one is made and bound to the role of analytics."""
    driver: SparkPod = SparkPod()
    executor: SparkExecutor = SparkExecutor()
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()
    """Handed on to Kubernetes as they are."""
    spark_conf: dict[str, str] = field(default_factory=dict)
    """Further Spark properties; `names.spark_key_owner` says which are the operator's."""
    deadline_seconds: Annotated[int, Meta(ge=60, le=86_400)] = 3600
    """From the application's creation."""
    successful_runs_history_limit: Annotated[int, Meta(ge=0, le=20)] = 3
    failed_runs_history_limit: Annotated[int, Meta(ge=0, le=20)] = 1
    keyed_topics: tuple[str, ...] = ()
    promise_p99_milliseconds: Annotated[int, Meta(ge=0, le=86_400_000)] = 100
    min_dead_percent: Annotated[int, Meta(ge=0, le=100)] = 25
    results_claim: str | None = None
    """A volume claim for the Parquet files; None: only the ConfigMap of a run has its results."""
    results_history_limit: Annotated[int, Meta(ge=1, le=1000)] = 30
    """Runs of each group that keep their results in the claim."""


class AnalyticsGroupStatus(StatusStruct, frozen=True, kw_only=True):
    """One group: its newest application, and the figures of the last one that succeeded."""

    group: int
    name: str
    """RocketMQ's broker name, such as demo-0."""
    application: str | None = None
    state: RunState | None = None
    started_at: str | None = None
    completed_at: str | None = None
    message: str | None = None
    """Why it failed, or what it waits for: a sentence."""
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
    """Whether every part of the store could be read."""
    skipped: int | None = None
    """How many parts could not."""
    report: str | None = None
    """The ConfigMap that has summary.json.gz and report.html.gz."""


class AnalyticsStatus(StatusStruct, frozen=True, kw_only=True):
    """The newest run, and the sums (lateness: the worst) of what the groups' last successful ones found."""

    since: str | None = None
    """When spec.analytics was first seen: the first schedule time is after it."""
    last_schedule_time: str | None = None
    next_schedule_time: str | None = None
    analyzed: str | None = None
    """The text of the annotation delaymq.io/analyze that was last acted on."""
    run: str | None = None
    """Token of the newest run."""
    state: RunState | None = None
    application: str | None = None
    completed_at: str | None = None
    """When a run last ended that analysed a group."""
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
