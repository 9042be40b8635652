"""The Topic resource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

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


class TopicSpec(ApiStruct, frozen=True, kw_only=True):
    """Desired state; a setting that is None keeps its value on the broker."""

    broker_ref: BrokerRef
    topic_name: Annotated[str, Meta(min_length=1, max_length=127)] | None = None
    queues: Annotated[int, Meta(ge=1, le=1024)] | None = None
    permission: Permission | None = None
    order: bool | None = None
    deletion_policy: Literal["Delete", "Retain"] = "Delete"


class TopicGroupStatus(StatusStruct, frozen=True, kw_only=True):
    """The topic in a broker group, as reported by the broker."""

    name: str
    """Broker name in RocketMQ, such as demo-0."""
    write_queues: int = 0
    read_queues: int = 0
    permission: Literal["None", "ReadWrite", "ReadOnly", "WriteOnly"] | None = None
    broker_uid: str | None = None
    """The metadata.uid of the Broker at that time; None: written by an older operator."""


class TopicStatus(StatusStruct, frozen=True, kw_only=True):
    """Observed state."""

    observed_generation: int | None = None
    conditions: tuple[Condition, ...] = ()
    topic_name: str | None = None
    groups: tuple[TopicGroupStatus, ...] = ()


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
