"""The consumer groups: subscriptionGroup.json, and when a group comes into being by itself."""

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
# The file is read whole; MAX_GROUPS have some 6 MB, and go into one answer.
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
# A client that makes up group names must not fill memory and disk.
MAX_GROUPS: Final = 20_000
# What is kept of it for administrators: a twentieth.
_RESERVED_SHARE: Final = 20


def parse_table(data: bytes) -> GroupTable:
    """subscriptionGroup.json; RequestError when it cannot be read."""
    return GroupTable.decode(data, max_bytes=MAX_FILE_BYTES)


def retry_queue(group: SubscriptionGroupConfig, retry_topic: TopicConfig) -> int:
    """Any queue of its retry topic that members read: a group may have been given more since the topic was made."""
    return randrange(max(min(group.retry_queue_nums, retry_topic.read_queue_nums), 1))


class Groups:
    """Which consumer groups there are, and what they may."""

    __slots__ = ("_config", "_now_ms", "dirty", "table", "version")

    def __init__(self, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._now_ms = now_ms
        self.table = {name: SubscriptionGroupConfig(name) for name in names.SYSTEM_GROUPS}
        self.version = DataVersion(0, now_ms())
        self.dirty = False

    def apply(self, config: BrokerConfig) -> None:
        """Takes a changed configuration."""
        self._config = config

    def restore(self, stored: GroupTable) -> None:
        """Takes what subscriptionGroup.json says."""
        for name, group in stored.subscription_group_table.items():
            group.group_name = name
            self.table[name] = group
        self.version = stored.data_version

    def encode(self) -> bytes:
        """subscriptionGroup.json, also the answer to 201."""
        return GroupTable(self.version, self.table).encode()

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The group; made if it may be, None if there is none."""
        config = self.table.get(group)
        if config is not None:
            return config
        if not self._config.auto_create_subscription_group and not group.startswith(names.SYSTEM_GROUP_PREFIX):
            return None
        if names.group_problem(group) is not None or len(self.table) >= MAX_GROUPS - MAX_GROUPS // _RESERVED_SHARE:
            return None
        config = SubscriptionGroupConfig(group)
        self.table[group] = config
        self._count_up()
        return config

    def may_notify(self, group: str) -> bool:
        """Whether the members of a group want to be told when others come and go."""
        if not self._config.notify_consumer_ids_changed_enable:
            return False
        config = self.table.get(group)
        return config is None or config.notify_consumer_ids_changed_enable

    def put(self, group: SubscriptionGroupConfig) -> None:
        """Adds or replaces a group; RequestError 1 says what is wrong with it."""
        problem = names.group_problem(group.group_name)
        if problem is not None:
            raise system_error(problem)
        if not 0 <= group.retry_queue_nums <= MAX_QUEUES:
            raise system_error(f"retryQueueNums={group.retry_queue_nums} is out of range: write 0 to {MAX_QUEUES}")
        if group.group_name not in self.table and len(self.table) >= MAX_GROUPS:
            raise system_error(f"the broker has {MAX_GROUPS} groups already: delete some")
        self.table[group.group_name] = group
        self._count_up()

    def disable_consuming(self, group: str) -> None:
        """Forbids a group to consume, until an administrator allows it again."""
        self.table[group].consume_enable = False
        self._count_up()

    def remove(self, group: str) -> bool:
        """Forgets a group; whether there was one."""
        if self.table.pop(group, None) is None:
            return False
        self._count_up()
        return True

    def _count_up(self) -> None:
        self.version = DataVersion(self.version.counter + 1, self._now_ms())
        self.dirty = True
