"""The topic in the groups of a Broker: observed state and changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from delaymq_operator.api import Topic
from delaymq_operator.api.topic import TopicGroupStatus
from delaymq_operator.reconcile.context import ReconcileContext
from delaymq_operator.reconcile.errors import BrokerRefused, BrokerUnreachable
from delaymq_operator.reconcile.ports import Endpoint, TopicConfig
from delaymq_operator.reconcile.topic.desired import desired_config, group_status
from delaymq_operator.reconcile.topic.shared_reads import MAX_AGE_POLLS, SharedBrokerReads, SharedRead, problem_of
from delaymq_operator.reconcile.topic.targets import Group

NOT_READY = "its broker is not ready"
_BROKER = "its broker"


@dataclass(frozen=True)
class ObservedTopic:
    """State of the topic in a group after a pass."""

    group: Group
    config: TopicConfig | None = None
    """None: the state is unknown; `problem` explains why."""
    problem: str | None = None
    refused: bool = False
    """Whether the broker rejected the topic's settings."""
    change: str | None = None
    """Change that was made."""

    def status(self, broker_uid: str) -> TopicGroupStatus | None:
        """Return the entry for the Topic's status."""
        return None if self.config is None else group_status(self.group.name, self.config, broker_uid)


class TopicInGroups:
    """A topic on the brokers of a Broker, using responses shared with the Broker's other topics."""

    def __init__(self, topic: Topic, answers: SharedBrokerReads, ctx: ReconcileContext) -> None:
        self._topic = topic
        self._answers = answers
        self._ctx = ctx

    async def reconcile(self, groups: Iterable[Group]) -> list[ObservedTopic]:
        """Apply the spec to the topic in all reachable groups."""
        seen = await asyncio.gather(*(self._observe(group) for group in groups))
        present = next((found.config for found in seen if found.config is not None), None)
        return list(await asyncio.gather(*(self._reconcile_group(found, present) for found in seen)))

    async def delete(self, group: Group) -> str | None:
        """Delete the topic and its messages in a group; return why it could not be deleted."""
        if group.endpoint is None:
            return NOT_READY
        answer = self._answer(group, group.endpoint)
        async with answer.lock:
            try:
                await self._ctx.admin.delete_topic(group.endpoint, self._topic.topic_name)
            except (BrokerUnreachable, BrokerRefused) as error:
                return problem_of(_BROKER, error)
            if answer.value is not None:
                answer.value.pop(self._topic.topic_name, None)
        return None

    async def _observe(self, group: Group) -> ObservedTopic:
        if group.endpoint is None:
            return ObservedTopic(group, problem=NOT_READY)
        settings = self._ctx.settings
        try:
            configs = await self._topics(group, group.endpoint, settings.poll_interval_s * MAX_AGE_POLLS)
            if self._topic.topic_name not in configs:
                # Check again before creating it: a producer may have created it in the meantime, with other settings.
                configs = await self._topics(group, group.endpoint, settings.progress_interval_s)
        except (BrokerUnreachable, BrokerRefused) as error:
            return ObservedTopic(group, problem=problem_of(_BROKER, error))
        return ObservedTopic(group, configs.get(self._topic.topic_name))

    async def _reconcile_group(self, found: ObservedTopic, elsewhere: TopicConfig | None) -> ObservedTopic:
        if found.problem is not None or found.group.endpoint is None or (found.group.leaving):
            return found
        config = desired_config(self._topic.topic_name, self._topic.spec, found.config, elsewhere)
        if config == found.config:
            return found
        answer = self._answer(found.group, found.group.endpoint)
        async with answer.lock:
            try:
                await self._ctx.admin.put_topic(found.group.endpoint, config)
            except BrokerUnreachable as error:
                answer.note_failure(error, self._ctx.clock())
                return ObservedTopic(found.group, problem=problem_of(_BROKER, error))
            except BrokerRefused as error:
                return ObservedTopic(found.group, found.config, problem=problem_of(_BROKER, error), refused=True)
            if answer.value is not None:
                answer.value[config.topic] = config
        return ObservedTopic(found.group, config, change=_change(found.config, config))

    async def _topics(self, group: Group, endpoint: Endpoint, max_age_s: float) -> dict[str, TopicConfig]:
        async def read_topics() -> dict[str, TopicConfig]:
            return dict(await self._ctx.admin.topics(endpoint))

        return await self._answer(group, endpoint).get(read_topics, self._ctx.clock, max_age_ms=max_age_s * 1000)

    def _answer(self, group: Group, endpoint: Endpoint) -> SharedRead[dict[str, TopicConfig]]:
        return self._answers.topics_of(group.name, endpoint)


def _change(before: TopicConfig | None, after: TopicConfig) -> str:
    if before is None:
        return f"created with {after.write_queues} queues"
    changed = [
        f"{what} {was} → {now}"
        for what, was, now in (
            ("write queues", before.write_queues, after.write_queues),
            ("read queues", before.read_queues, after.read_queues),
            ("permission", before.permission, after.permission),
        )
        if was != now
    ]
    return ", ".join(changed)
