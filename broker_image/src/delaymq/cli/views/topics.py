"""Topics across all brokers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from delaymq.cli.errors import EXIT_USAGE, CommandError
from delaymq.cli.target.connection import closest_name
from delaymq.cli.terminal.output import progress
from delaymq.cli.terminal.times import format_time
from delaymq.client import Admin, Client, NoRouteError, RefusedError, TopicConfig
from delaymq.message import names
from delaymq.protocol.bodies import MessageQueue, TopicOffset

KINDS: Final = ("normal", "retry", "deadLetter", "system")
PERMISSIONS: Final = {6: "rw", 4: "r", 2: "w", 0: ""}
AT_ONCE: Final = 16
"""Maximum concurrent requests when reading many topics or groups."""


@dataclass(slots=True)
class TopicView:
    """A topic and the data collected about it."""

    topic: str
    kind: str
    configs: dict[str, TopicConfig] = field(default_factory=dict)
    """By broker name."""
    offsets: list[tuple[MessageQueue, TopicOffset]] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    @property
    def messages(self) -> int:
        return sum(each.max_offset - each.min_offset for _, each in self.offsets)

    @property
    def last_stored_ms(self) -> int | None:
        return max((each.last_update_timestamp for _, each in self.offsets), default=0) or None

    @property
    def permission(self) -> str:
        """Union of the clients' permissions on all brokers."""
        either = 0
        for config in self.configs.values():
            either |= config.permission
        return PERMISSIONS.get(either & 6, "")

    def row(self) -> dict[str, Any]:
        """Return the topic as JSON, with the names of /api/v1/topics and the queues of all brokers."""
        return {
            "topic": self.topic,
            "kind": self.kind,
            "permission": self.permission,
            "brokers": sorted(self.configs),
            "readQueues": sum(config.read_queues for config in self.configs.values()),
            "writeQueues": sum(config.write_queues for config in self.configs.values()),
            "messages": self.messages,
            "lastStoredMs": self.last_stored_ms,
        }

    def details(self) -> dict[str, Any]:
        """Return the topic as JSON with queues and groups."""
        queues = [
            {
                "broker": queue.broker_name,
                "queueId": queue.queue_id,
                "minOffset": offset.min_offset,
                "maxOffset": offset.max_offset,
                "lastStoredMs": offset.last_update_timestamp or None,
            }
            for queue, offset in self.offsets
        ]
        return self.row() | {"queues": queues, "groups": self.groups}

    def cells(self) -> tuple[str, ...]:
        """Return the topic as a table row."""
        row = self.row()
        queues = str(row["readQueues"])
        if row["readQueues"] != row["writeQueues"]:
            queues = f"{row['readQueues']} read, {row['writeQueues']} write"
        last = format_time(self.last_stored_ms)
        return (self.topic, self.kind, self.permission, last, str(len(self.configs)), queues, str(self.messages))


def kind_of(topic: str, own: set[str]) -> str:
    """Return the kind of a topic; `own` are the names of clusters and brokers, which are system topics."""
    if topic.startswith(names.RETRY_PREFIX):
        return "retry"
    if topic.startswith(names.DLQ_PREFIX):
        return "deadLetter"
    return "system" if names.is_system_topic(topic, *own) else "normal"


async def load_topics(client: Client, kind: str, contains: str, *, with_messages: bool) -> list[TopicView]:
    """Return the topics of one kind, or all, sorted by name."""
    admin = Admin(client)
    own = await own_names(admin)
    found: dict[str, TopicView] = {}
    for broker_name, address in (await admin.masters()).items():
        for topic, config in (await admin.topic_configs(address)).items():
            its_kind = kind_of(topic, own)
            if (kind == "all" or kind == its_kind) and contains in topic:
                found.setdefault(topic, TopicView(topic, its_kind)).configs[broker_name] = config
    if with_messages:
        await _add_offsets(admin, list(found.values()))
    return [found[topic] for topic in sorted(found)]


async def own_names(admin: Admin) -> set[str]:
    """Return the names of brokers and clusters, each of which has a system topic."""
    info = await admin.cluster_info()
    clusters = set(info.cluster_addr_table)
    return clusters | set(info.broker_addr_table) | {f"{name}_{names.REPLY_TOPIC_POSTFIX}" for name in clusters}


async def _add_offsets(admin: Admin, topics: list[TopicView]) -> None:
    gate = asyncio.Semaphore(AT_ONCE)
    with progress("topics", len(topics)) as step:

        async def add(seen: TopicView) -> None:
            async with gate:
                seen.offsets = await _offsets(admin, seen.topic)
                step()

        await asyncio.gather(*map(add, topics))


async def _offsets(admin: Admin, topic: str) -> list[tuple[MessageQueue, TopicOffset]]:
    try:
        stats = await admin.topic_stats(topic)
    except (NoRouteError, RefusedError):
        return []  # deleted meanwhile, or without a route like some of RocketMQ's system topics
    return sorted(stats.items(), key=lambda each: (each[0].broker_name, each[0].queue_id))


async def load_topic(client: Client, topic: str) -> TopicView:
    """Return one topic with its queues and groups; raise CommandError if it does not exist."""
    admin = Admin(client)
    masters = await topic_masters(client, topic, None)
    seen = TopicView(topic, kind_of(topic, await own_names(admin)))
    seen.configs = {name: config for name, (_, config) in masters.items()}
    seen.offsets = await _offsets(admin, topic)
    try:
        seen.groups = await admin.topic_groups(topic)
    except NoRouteError:
        seen.groups = []
    return seen


async def topic_masters(client: Client, topic: str, cluster: str | None) -> dict[str, tuple[str, TopicConfig]]:
    """Return broker name → address and topic settings; raise CommandError if no broker has the topic."""
    admin = Admin(client)
    found: dict[str, tuple[str, TopicConfig]] = {}
    known: set[str] = set()
    for broker_name, address in (await admin.masters(cluster)).items():
        configs = await admin.topic_configs(address)
        known |= configs.keys()
        if topic in configs:
            found[broker_name] = (address, configs[topic])
    if not found:
        raise unknown_topic(topic, known)
    return found


def unknown_topic(topic: str, known: set[str] | list[str]) -> CommandError:
    """Return the error for an unknown topic, with similar names."""
    problem = names.topic_problem(topic)
    if problem is not None:
        return CommandError(problem, EXIT_USAGE)
    near = closest_name(topic, known)
    hint = f": did you mean {near}?" if near else ": create it with `delaymq topic create`"
    return CommandError(f"no broker has topic {topic}{hint}")
