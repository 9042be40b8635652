"""The Topic resource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from delaymq.api_types.delay_settings import MAX_DELAY_S, MAX_NUMBER, MAX_OVERDUE_SPREAD_MS, MAX_WINDOW_MS
from delaymq.message.names import topic_problem
from msgspec import Meta

from delaymq_operator.api.conditions import Condition
from delaymq_operator.api.errors import SpecError
from delaymq_operator.api.names import MAX_BROKER_NAME_CHARS
from delaymq_operator.api.resource import ApiStruct, Resource, StatusStruct, metadata_of, spec_of, status_of

Permission = Literal["ReadWrite", "ReadOnly", "WriteOnly"]


class BrokerRef(ApiStruct, frozen=True, kw_only=True):
    """Reference to the Broker, in the same namespace."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_BROKER_NAME_CHARS)]


class LatenessObjective(ApiStruct, frozen=True, kw_only=True):
    """Service level objective of deliveries."""

    within_milliseconds: Annotated[int, Meta(ge=1, le=MAX_NUMBER)]
    percent: Annotated[float, Meta(gt=0, lt=100)]


class OverdueSpec(ApiStruct, frozen=True, kw_only=True):
    """Treatment of messages that came due while a broker was not running."""

    treatment: Literal["Deliver", "Spread", "Shift", "Drop", "Pause"] = "Deliver"
    after_milliseconds: Annotated[int, Meta(ge=0, le=MAX_NUMBER)] = 600_000
    over_milliseconds: Annotated[int, Meta(ge=1, le=MAX_OVERDUE_SPREAD_MS)] | None = None

    def __post_init__(self) -> None:
        if (self.treatment == "Spread") != (self.over_milliseconds is not None):
            raise ValueError("overMilliseconds is the duration of the treatment Spread: give both of them, or neither")


class TopicDelaySpec(ApiStruct, frozen=True, kw_only=True):
    """Limits and promises of delayed messages. Those that are omitted are removed from the brokers."""

    max_delay_seconds: Annotated[int, Meta(ge=1, le=MAX_DELAY_S)] | None = None
    max_pending_messages: Annotated[int, Meta(ge=0, le=MAX_NUMBER)] | None = None
    max_pending_bytes: Annotated[int, Meta(ge=0, le=MAX_NUMBER)] | None = None
    when_topic_is_gone: Literal["Recreate", "DeadLetter", "Drop"] = "Recreate"
    lateness_objective: LatenessObjective | None = None
    max_per_second: Annotated[int, Meta(ge=1, le=MAX_NUMBER)] | None = None
    spread_over_milliseconds: Annotated[int, Meta(ge=1, le=MAX_WINDOW_MS)] | None = None
    overdue: OverdueSpec | None = None


class TopicSpec(ApiStruct, frozen=True, kw_only=True):
    """Desired state; a setting that is None keeps its value on the broker."""

    broker_ref: BrokerRef
    topic_name: Annotated[str, Meta(min_length=1, max_length=127)] | None = None
    queues: Annotated[int, Meta(ge=1, le=1024)] | None = None
    permission: Permission | None = None
    order: bool | None = None
    delay: TopicDelaySpec | None = None
    """None: the delay settings on the brokers are not changed."""
    deletion_policy: Literal["Delete", "Retain", "RefuseWhilePending"] = "Delete"


class TopicGroupStatus(StatusStruct, frozen=True, kw_only=True):
    """The topic in a broker group, as reported by the broker."""

    name: str
    """Broker name in RocketMQ, such as demo-0."""
    write_queues: int = 0
    read_queues: int = 0
    permission: Literal["None", "ReadWrite", "ReadOnly", "WriteOnly"] | None = None
    broker_uid: str | None = None
    """The metadata.uid of the Broker at that time; None: written by an older operator."""


class TopicDelayStatus(StatusStruct, frozen=True, kw_only=True):
    """Pending delayed messages of the topic in all groups."""

    pending_messages: int = 0
    pending_bytes: int = 0
    next_due_time: str | None = None
    latest_due_time: str | None = None


class TopicStatus(StatusStruct, frozen=True, kw_only=True):
    """Observed state."""

    observed_generation: int | None = None
    conditions: tuple[Condition, ...] = ()
    topic_name: str | None = None
    groups: tuple[TopicGroupStatus, ...] = ()
    delay: TopicDelayStatus | None = None
    """None: not observed yet."""


class Topic(Resource, frozen=True, kw_only=True):
    """A Topic as stored by the API server."""

    spec: TopicSpec
    status: TopicStatus = TopicStatus()

    @property
    def topic_name(self) -> str:
        """Name of the topic in RocketMQ."""
        return self.spec.topic_name if self.spec.topic_name is not None else self.name


def claim_of(body: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the namespace, Broker and topic of a Topic from its body, even if its spec is invalid."""
    spec, metadata = body.get("spec") or {}, body["metadata"]
    broker = str((spec.get("brokerRef") or {}).get("name") or "")
    return metadata.get("namespace") or "", broker, str(spec.get("topicName") or metadata["name"])


def parse_topic(body: Mapping[str, Any]) -> Topic:
    """Return a Topic from its body. SpecError if its spec is invalid."""
    spec = spec_of("Topic", body, TopicSpec)
    topic = Topic(spec=spec, status=status_of(body, TopicStatus), **metadata_of("Topic", body))
    problem = topic_problem(topic.topic_name)
    if problem is not None:
        raise SpecError(f"spec.topicName: {problem.rstrip('.')}")
    return topic
