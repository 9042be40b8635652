"""Consumer groups: subscriptionGroup.json, and automatic creation."""

from __future__ import annotations

from collections.abc import Callable
from random import randrange
from typing import Final

from delaymq.broker.requests.errors import system_error
from delaymq.broker.topics import MAX_QUEUES
from delaymq.config import BrokerConfig
from delaymq.message import names
from delaymq.protocol.bodies import DataVersion, GroupTable, SubscriptionGroupConfig, TopicConfig

FILE_NAME: Final = "subscriptionGroup.json"
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""The file is read as a whole. MAX_GROUPS groups take about 6 MB, and fit into one response."""
MAX_GROUPS: Final = 20_000
"""Prevents a client with made-up group names from filling memory and disk."""
_RESERVED_SHARE: Final = 20
"""Share of MAX_GROUPS that is reserved for administrators: one twentieth."""


def parse_table(data: bytes) -> GroupTable:
    """Parse subscriptionGroup.json. Raises RequestError if it is unreadable."""
    return GroupTable.decode(data, max_bytes=MAX_FILE_BYTES)


def retry_queue(group: SubscriptionGroupConfig, retry_topic: TopicConfig) -> int:
    """Return a random queue of the group's retry topic that members read.

    The group may have been given more queues since the topic was created.
    """
    return randrange(max(min(group.retry_queue_nums, retry_topic.read_queue_nums), 1))


class Groups:
    """Table of consumer groups and their configuration."""

    __slots__ = ("_config", "_now_ms", "dirty", "is_followed", "on_change", "table", "version")

    def __init__(self, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._now_ms = now_ms
        self.table = {name: SubscriptionGroupConfig(name) for name in names.SYSTEM_GROUPS}
        self.version = DataVersion(0, now_ms())
        self.is_followed = False
        """Whether the entries are those of another broker, and this one creates none."""
        self.on_change: Callable[[str], None] = lambda name: None
        """Called with the name of each group that was created, changed or deleted."""
        self.dirty = False

    def apply(self, config: BrokerConfig) -> None:
        """Apply a changed configuration."""
        self._config = config

    def restore(self, stored: GroupTable) -> None:
        """Restore the groups of subscriptionGroup.json."""
        for name, group in stored.subscription_group_table.items():
            group.group_name = name
            self.table[name] = group
        self.version = stored.data_version

    def encode(self) -> bytes:
        """Return subscriptionGroup.json, which is also the body of response 201."""
        return GroupTable(self.version, self.table).encode()

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group, created if permitted, or None."""
        config = self.table.get(group)
        if config is not None or self.is_followed:
            return config
        if not self._config.auto_create_subscription_group and not group.startswith(names.SYSTEM_GROUP_PREFIX):
            return None
        if names.group_problem(group) is not None or len(self.table) >= MAX_GROUPS - MAX_GROUPS // _RESERVED_SHARE:
            return None
        config = SubscriptionGroupConfig(group)
        self.table[group] = config
        self._count_up(group)
        return config

    def may_notify(self, group: str) -> bool:
        """Return whether the members of a group want notifications of membership changes."""
        if not self._config.notify_consumer_ids_changed_enable:
            return False
        config = self.table.get(group)
        return config is None or config.notify_consumer_ids_changed_enable

    def put(self, group: SubscriptionGroupConfig) -> None:
        """Add or replace a group. Raises RequestError 1 if it is invalid."""
        problem = names.group_problem(group.group_name)
        if problem is not None:
            raise system_error(problem)
        if not 0 <= group.retry_queue_nums <= MAX_QUEUES:
            raise system_error(f"retryQueueNums={group.retry_queue_nums} is out of range: use 0 to {MAX_QUEUES}")
        if group.group_name not in self.table and len(self.table) >= MAX_GROUPS:
            raise system_error(f"the broker already has {MAX_GROUPS} groups: delete some")
        self.table[group.group_name] = group
        self._count_up(group.group_name)

    def disable_consuming(self, group: str) -> None:
        """Disable consumption by a group until an administrator enables it again."""
        self.table[group].consume_enable = False
        self._count_up(group)

    def remove(self, group: str) -> bool:
        """Remove a group. Returns whether it existed."""
        if self.table.pop(group, None) is None:
            return False
        self._count_up(group)
        return True

    def replicate(self, name: str, group: SubscriptionGroupConfig | None) -> None:
        """Adopt a group of the master, or its deletion (None). ValueError for an illegal name."""
        if group is None:
            self.table.pop(name, None)
        elif name not in self.table and (problem := names.group_problem(name)) is not None:
            raise ValueError(f"a group has the name {name[:128]!r}: {problem}")
        else:
            group.group_name = name
            self.table[name] = group
        self._count_up()

    def _count_up(self, name: str | None = None) -> None:
        self.version = DataVersion(self.version.counter + 1, self._now_ms())
        self.dirty = True
        if name is not None:
            self.on_change(name)
