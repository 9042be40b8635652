"""Consumer groups across all brokers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from delaymq.cli.target.connection import unknown_group
from delaymq.cli.terminal.output import progress
from delaymq.cli.views.topics import AT_ONCE
from delaymq.client import Admin, Client, GroupConfig, GroupMembers, NoRouteError
from delaymq.message import names
from delaymq.message.names import dead_letter_topic
from delaymq.protocol.bodies import ConsumeOffset, MessageQueue


@dataclass(slots=True)
class GroupView:
    """A group and the data collected about it."""

    group: str
    configs: dict[str, GroupConfig] = field(default_factory=dict)
    """By broker name."""
    members: GroupMembers = field(default_factory=GroupMembers)
    progress: dict[MessageQueue, ConsumeOffset] = field(default_factory=dict)
    dead_letters: int = 0

    @property
    def lag(self) -> int:
        """Messages that the group has not consumed, including retries."""
        return sum(max(each.broker_offset - each.consumer_offset, 0) for each in self.progress.values())

    @property
    def topics(self) -> list[str]:
        subscribed = set(self.members.subscriptions) | {queue.topic for queue in self.progress}
        return sorted(topic for topic in subscribed if not topic.startswith(names.RETRY_PREFIX))

    def row(self) -> dict[str, Any]:
        """Return the group as JSON, with the names of /api/v1/groups."""
        return {
            "group": self.group,
            "model": self.members.model,
            "consumeType": self.members.consume_type,
            "members": len(self.members.members),
            "topics": self.topics,
            "lag": self.lag,
            "deadLetters": self.dead_letters,
        }

    def details(self) -> dict[str, Any]:
        """Return the group as JSON with members, subscriptions, progress and settings."""
        return self.row() | {
            "members": member_rows(self.members),
            "subscriptions": [
                {"topic": topic, "expression": each.sub_string, "type": each.expression_type or "TAG"}
                for topic, each in sorted(self.members.subscriptions.items())
            ],
            "progress": [
                {
                    "topic": queue.topic,
                    "broker": queue.broker_name,
                    "queueId": queue.queue_id,
                    "maxOffset": offset.broker_offset,
                    "consumerOffset": offset.consumer_offset,
                    "lag": max(offset.broker_offset - offset.consumer_offset, 0),
                    "lastConsumedMs": offset.last_timestamp or None,
                }
                for queue, offset in sorted_progress(self.progress)
            ],
            "settings": [
                {
                    "broker": name,
                    "consume": config.consume,
                    "broadcast": config.broadcast,
                    "retryQueues": config.retry_queues,
                    "retryMaxTimes": config.retry_max_times,
                }
                for name, config in sorted(self.configs.items())
            ],
        }


def sorted_progress(progress: dict[MessageQueue, ConsumeOffset]) -> list[tuple[MessageQueue, ConsumeOffset]]:
    """Return the progress sorted by topic, broker and queue."""
    return sorted(progress.items(), key=lambda each: (each[0].topic, each[0].broker_name, each[0].queue_id))


def member_rows(members: GroupMembers) -> list[dict[str, Any]]:
    """Return the members as JSON."""
    return [
        {"clientId": each.client_id, "address": each.client_addr, "language": each.language, "version": each.version}
        for _, each in sorted(members.members.items())
    ]


async def load_groups(client: Client, contains: str, *, with_system: bool, with_progress: bool) -> list[GroupView]:
    """Return the groups whose name contains `contains`, sorted by name."""
    admin = Admin(client)
    found: dict[str, GroupView] = {}
    for broker_name, address in (await admin.masters()).items():
        for group, config in (await admin.group_configs(address)).items():
            if contains in group and (with_system or not names.is_system_group(group)):
                found.setdefault(group, GroupView(group)).configs[broker_name] = config
    if with_progress:
        gate = asyncio.Semaphore(AT_ONCE)
        with progress("groups", len(found)) as step:

            async def load(seen: GroupView) -> None:
                async with gate:
                    await _load_details(admin, seen)
                    step()

            await asyncio.gather(*map(load, found.values()))
    return [found[group] for group in sorted(found)]


async def load_group(client: Client, group: str) -> GroupView:
    """Return one group; raise CommandError if no broker has it."""
    seen = GroupView(group, await group_settings(client, group))
    await _load_details(Admin(client), seen)
    return seen


async def group_settings(client: Client, group: str) -> dict[str, GroupConfig]:
    """Return a group's settings by broker; raise CommandError if no broker has it."""
    admin = Admin(client)
    found: dict[str, GroupConfig] = {}
    known: set[str] = set()
    for broker_name, address in (await admin.masters()).items():
        configs = await admin.group_configs(address)
        known |= configs.keys()
        if group in configs:
            found[broker_name] = configs[group]
    if not found:
        raise unknown_group(group, (names.retry_topic(each) for each in known if not names.is_system_group(each)))
    return found


async def _load_details(admin: Admin, seen: GroupView) -> None:
    seen.members = await admin.group_members(seen.group)
    try:
        seen.progress = await admin.consumer_progress(seen.group)
    except NoRouteError:
        seen.progress = {}  # created, but never used for consumption
    try:
        stats = await admin.topic_stats(dead_letter_topic(seen.group))
        seen.dead_letters = sum(each.max_offset - each.min_offset for each in stats.values())
    except NoRouteError:
        seen.dead_letters = 0
