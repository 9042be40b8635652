"""Topics of the broker: topics.json, its version, and automatic creation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import structs

from delaymq.broker.requests.errors import system_error, topic_missing
from delaymq.config import BrokerConfig
from delaymq.message import names
from delaymq.protocol.bodies import DataVersion, RegisterBody, TopicConfig, TopicTable

FILE_NAME: Final = "topics.json"
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""The file is read as a whole. MAX_TOPICS topics take about 4 MB."""
MAX_TOPICS: Final = 20_000
"""Prevents a client with made-up topic names from filling memory, routes and disk. About this many fit a
registration.
"""
# Shares of MAX_TOPICS that may be used up by sends, and by groups with their retry and dead-letter topics:
_SHARE_OF_SENDS: Final = (4, 5)
_SHARE_OF_GROUPS: Final = (19, 20)
MAX_QUEUES: Final = 16_384
"""Each queue is a directory with files. RocketMQ's benchmark topic has 1,024 queues."""

READ: Final = 4
WRITE: Final = 2
INHERIT: Final = 1
UNIT: Final = 1
UNIT_SUBSCRIPTION: Final = 2
READ_WRITE: Final = READ | WRITE
WITHOUT_CONFIG: Final = frozenset({names.OP_HALF_TOPIC, names.MARKS_TOPIC})
"""Topics that only the broker writes and that have no topic config."""


def parse_table(data: bytes) -> TopicTable:
    """Parse topics.json. Raises RequestError if it is unreadable."""
    return TopicTable.decode(data, max_bytes=MAX_FILE_BYTES)


class Topics:
    """Table of topics. Each change increments its version, so that NameServers accept the new table."""

    __slots__ = ("_config", "_now_ms", "changed", "dirty", "on_change", "system", "table", "version")

    def __init__(self, config: BrokerConfig, level_count: int, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._now_ms = now_ms
        self.table: dict[str, TopicConfig] = {}
        self.version = DataVersion(0, now_ms())
        self.changed: Callable[[TopicConfig], None] | None = None
        """Called when a topic was created or changed."""
        self.on_change: Callable[[str], None] = lambda name: None
        """Called with the name of each topic that was created, changed or deleted."""
        self.dirty = False
        self.system: set[str] = set(WITHOUT_CONFIG | names.SYSTEM_TOPICS)
        for topic in _fresh_topics(config, level_count):
            self.table[topic.topic_name] = topic
            self.system.add(topic.topic_name)

    def apply(self, config: BrokerConfig) -> None:
        """Apply a changed configuration. Its defaults apply to topics that are created later."""
        permission_changed = config.broker_permission != self._config.broker_permission
        self._config = config
        if permission_changed:
            self.announce()
        default = self.table.get(names.AUTO_CREATE_TOPIC)
        if default is None and config.auto_create_topic_enable:
            self.put(_auto_create_topic(config))

    def restore(self, stored: TopicTable) -> None:
        """Restore the topics of topics.json. System topics keep the larger number of queues."""
        for name, config in stored.topic_config_table.items():
            if name in WITHOUT_CONFIG or names.topic_problem(name) is not None:
                continue
            config.topic_name = name
            fresh = self.table.get(name)
            if fresh is not None:
                config.read_queue_nums = max(config.read_queue_nums, fresh.read_queue_nums)
                config.write_queue_nums = max(config.write_queue_nums, fresh.write_queue_nums)
                config.perm = fresh.perm
            elif name == names.AUTO_CREATE_TOPIC:
                continue  # automatic creation has been disabled since
            self.table[name] = config
        # Each start uses a new version, so that NameServers replace the last registration, for example that of a drain.
        self.version = DataVersion(stored.data_version.counter + 1, self._now_ms())

    def adopt(self, queues: Iterable[tuple[str, int]]) -> list[str]:
        """Create topics for stored queues without one (crash before topics.json was written). Returns their names."""
        counts: dict[str, int] = {}
        for topic, queue_id in queues:
            if topic not in self.table and names.topic_problem(topic) is None and not self.is_system(topic):
                counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        for topic, count in counts.items():
            self.table[topic] = TopicConfig(topic, count, count, READ_WRITE)
            self._count_up(topic)
        return sorted(counts)

    def register_timer_topic(self) -> None:
        """Create the topic of timed messages.

        RocketMQ 4.9 deletes the queues of topics without a configuration when any topic is deleted.
        """
        if names.TIMER_TOPIC not in self.table:
            self.put(TopicConfig(names.TIMER_TOPIC, 1, 1, READ_WRITE))
            self.system.add(names.TIMER_TOPIC)

    def get(self, topic: str) -> TopicConfig | None:
        """Return the topic, or None."""
        return self.table.get(topic)

    def is_system(self, topic: str) -> bool:
        """Return whether `topic` is a system topic, which can be neither changed nor deleted."""
        return topic in self.system or names.is_system_topic(topic)

    def encode(self) -> bytes:
        """Return topics.json, which is also the body of response 21."""
        return TopicTable(self.version, self.table).encode()

    def register_body(self, topics: dict[str, TopicConfig], *, withdrawn: bool) -> bytes:
        """Return the body of request 103: `topics` with the broker's permission; `withdrawn` removes writing."""
        permission = self._config.broker_permission
        if permission & READ_WRITE != READ_WRITE:
            # As in RocketMQ, a restricted broker permission replaces those of all topics.
            topics = {name: structs.replace(topic, perm=permission) for name, topic in topics.items()}
        if withdrawn:
            topics = {name: structs.replace(topic, perm=topic.perm & ~WRITE) for name, topic in topics.items()}
        body = RegisterBody(TopicTable(self.version, topics))
        return body.encode_compressed() if self._config.compressed_register else body.encode()

    def put(self, topic: TopicConfig) -> None:
        """Add or replace a topic."""
        self.table[topic.topic_name] = topic
        self._count_up(topic.topic_name)
        if self.changed is not None:
            self.changed(topic)

    def announce(self) -> None:
        """Register all topics again. NameServers accept a table only with a new version."""
        self._count_up()
        if self.changed is not None:
            for topic in list(self.table.values()):
                self.changed(topic)

    def remove(self, topic: str) -> bool:
        """Remove a topic. Returns whether it existed."""
        if self.table.pop(topic, None) is None:
            return False
        self._count_up(topic)
        return True

    def replicate(self, name: str, topic: TopicConfig | None) -> None:
        """Adopt a topic of the master, or its deletion (None). ValueError for an illegal name."""
        if topic is None:
            self.table.pop(name, None)
        elif (problem := names.topic_problem(name)) is not None:
            raise ValueError(f"a topic has the name {name[:128]!r}: {problem}")
        else:
            topic.topic_name = name
            self.table[name] = topic
        self._count_up()

    def create_for_send(
        self, topic: str, default_topic: str, default_queue_nums: int, *, unit_mode: bool = False
    ) -> TopicConfig:
        """Return the topic of a first send, created from `default_topic` if that topic may be inherited.

        Raises RequestError 1 for an illegal name, 17 if the topic has to be created manually.
        """
        problem = names.topic_problem(topic)
        if problem is not None:
            raise system_error(problem)
        if topic.startswith(names.RETRY_PREFIX):
            return self.create_for_group(topic, 1, unit_mode=unit_mode)
        default = self.table.get(default_topic)
        if default is None or not default.perm & INHERIT or topic in WITHOUT_CONFIG:
            raise topic_missing(topic)
        if default_topic == names.AUTO_CREATE_TOPIC and not self._config.auto_create_topic_enable:
            raise topic_missing(topic)
        count = min(default_queue_nums, default.write_queue_nums)
        if count < 1:
            raise system_error(f"topic[{topic}] would get {count} queues: send a defaultTopicQueueNums of 1 or more")
        self._check_share(_SHARE_OF_SENDS)
        flag = UNIT if unit_mode else 0
        made = TopicConfig(topic, count, count, default.perm & ~INHERIT, default.topic_filter_type, flag)
        self.put(made)
        return made

    def create_for_group(
        self, topic: str, queue_nums: int, *, unit_mode: bool = False, own: bool = False
    ) -> TopicConfig:
        """Return the retry or dead-letter topic of a group, created if necessary.

        Raises RequestError 1 if the name is not legal for a topic. With `own`, the broker itself needs the topic, and
        limits do not apply.
        """
        config = self.table.get(topic)
        if config is not None:
            return config
        problem = names.topic_problem(topic)
        if problem is not None:
            raise system_error(f"the group's topic cannot be created: {problem}")
        if not own:
            self._check_share(_SHARE_OF_GROUPS)
        count = min(max(queue_nums, 1), MAX_QUEUES)
        made = TopicConfig(topic, count, count, READ_WRITE, topic_sys_flag=UNIT_SUBSCRIPTION if unit_mode else 0)
        self.put(made)
        return made

    def check_room(self) -> None:
        """Raise RequestError 1 if the broker has its maximum number of topics."""
        self._check_share((1, 1))

    def _check_share(self, share: tuple[int, int]) -> None:
        most = MAX_TOPICS * share[0] // share[1]
        if len(self.table) < most:
            return
        if share == (1, 1):
            raise system_error(f"the broker already has {most} topics: delete some")
        raise system_error(
            f"the broker already has {most} topics; the last {MAX_TOPICS - most} of {MAX_TOPICS} are reserved for"
            f" administrators{' and for groups' if share == _SHARE_OF_SENDS else ''}: delete some, or create topics"
            " manually (mqadmin updateTopic)"
        )

    def _count_up(self, name: str | None = None) -> None:
        self.version = DataVersion(self.version.counter + 1, self._now_ms())
        self.dirty = True
        if name is not None:
            self.on_change(name)


def checked_topic(topic: TopicConfig) -> TopicConfig:
    """Return an administrator's `topic` if it is valid. Raises RequestError 1 with the problem otherwise."""
    problem = names.topic_problem(topic.topic_name)
    if problem is not None:
        raise system_error(problem)
    for which, count in (("readQueueNums", topic.read_queue_nums), ("writeQueueNums", topic.write_queue_nums)):
        if not 0 <= count <= MAX_QUEUES:
            raise system_error(f"{which}={count} is out of range: use 0 to {MAX_QUEUES} queues")
    if not 0 <= topic.perm <= READ_WRITE | INHERIT:
        raise system_error(f"perm={topic.perm} is invalid: use 2 (write), 4 (read) or 6 (both)")
    if topic.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
        raise system_error(f"topicFilterType={topic.topic_filter_type[:32]!r} is neither SINGLE_TAG nor MULTI_TAG")
    return topic


def _auto_create_topic(config: BrokerConfig) -> TopicConfig:
    count = config.default_topic_queue_nums
    return TopicConfig(names.AUTO_CREATE_TOPIC, count, count, READ_WRITE | INHERIT)


def _fresh_topics(config: BrokerConfig, level_count: int) -> list[TopicConfig]:
    """Return the topics of a new broker, as RocketMQ 4.9 creates them."""
    cluster = config.broker_cluster_name
    cluster_perm = INHERIT | (READ_WRITE if config.cluster_topic_enable else 0)
    broker_perm = INHERIT | (READ_WRITE if config.broker_topic_enable else 0)
    topics = [
        TopicConfig(names.SELF_TEST_TOPIC, 1, 1, READ_WRITE),
        TopicConfig(names.BENCHMARK_TOPIC, 1024, 1024, READ_WRITE),
        TopicConfig(cluster, 16, 16, cluster_perm),
        TopicConfig(config.broker_name, 1, 1, broker_perm),
        TopicConfig(names.OFFSET_MOVED_TOPIC, 1, 1, READ_WRITE),
        TopicConfig(names.SCHEDULE_TOPIC, max(18, level_count), max(18, level_count), READ_WRITE),
        TopicConfig(names.reply_topic(cluster), 1, 1, READ_WRITE),
    ]
    if config.auto_create_topic_enable:
        topics.append(_auto_create_topic(config))
    if config.trace_topic_enable:
        topics.append(TopicConfig(config.msg_trace_topic_name, 1, 1, READ_WRITE))
    return [topic for topic in topics if names.topic_problem(topic.topic_name) is None]
