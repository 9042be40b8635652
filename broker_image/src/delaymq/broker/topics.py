"""The broker's topics: topics.json, its version, and when a topic comes into being by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import structs

from delaymq.broker.errors import system_error, topic_missing
from delaymq.config import BrokerConfig
from delaymq.message import names
from delaymq.protocol.bodies import DataVersion, RegisterBody, TopicConfig, TopicTable

FILE_NAME: Final = "topics.json"
# The file is read whole; MAX_TOPICS have some 4 MB.
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
# A client that makes up topic names must not fill memory, routes and disk; about this many fit a registration.
MAX_TOPICS: Final = 20_000
# What others than administrators may fill of it: producers by sends, and groups with their retries and dead letters.
_SHARE_OF_SENDS: Final = (4, 5)
_SHARE_OF_GROUPS: Final = (19, 20)
# Each queue is a directory with files; the benchmark topic of RocketMQ has 1,024.
MAX_QUEUES: Final = 16_384

READ: Final = 4
WRITE: Final = 2
INHERIT: Final = 1
UNIT: Final = 1
UNIT_SUBSCRIPTION: Final = 2
READ_WRITE: Final = READ | WRITE
# What the broker itself writes without a topic config of its own.
WITHOUT_CONFIG: Final = frozenset({names.OP_HALF_TOPIC, names.MARKS_TOPIC})


def parse_table(data: bytes) -> TopicTable:
    """topics.json; RequestError when it cannot be read."""
    return TopicTable.decode(data, max_bytes=MAX_FILE_BYTES)


class Topics:
    """Which topics there are. Every change counts the version up, so that NameServers take the table anew."""

    __slots__ = ("_config", "_now_ms", "changed", "dirty", "system", "table", "version")

    def __init__(self, config: BrokerConfig, level_count: int, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._now_ms = now_ms
        self.table: dict[str, TopicConfig] = {}
        self.version = DataVersion(0, now_ms())
        self.changed: Callable[[TopicConfig], None] | None = None
        """Called when a topic was made or changed."""
        self.dirty = False
        self.system: set[str] = set(WITHOUT_CONFIG | names.SYSTEM_TOPICS)
        for topic in _fresh_topics(config, level_count):
            self.table[topic.topic_name] = topic
            self.system.add(topic.topic_name)

    def apply(self, config: BrokerConfig) -> None:
        """Takes a changed configuration; it counts for topics made from now on."""
        permission_changed = config.broker_permission != self._config.broker_permission
        self._config = config
        if permission_changed:
            self.announce()
        default = self.table.get(names.AUTO_CREATE_TOPIC)
        if default is None and config.auto_create_topic_enable:
            self.put(_auto_create_topic(config))

    def restore(self, stored: TopicTable) -> None:
        """Takes what topics.json says; system topics keep the larger number of queues."""
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
                continue  # it was on at the last start and is off now
            self.table[name] = config
        # A new version at each start: what the last run registered, as when it was drained, must not stay in force.
        self.version = DataVersion(stored.data_version.counter + 1, self._now_ms())

    def adopt(self, queues: Iterable[tuple[str, int]]) -> list[str]:
        """Makes topics for stored queues that have none (the broker died before it wrote topics.json); their names."""
        counts: dict[str, int] = {}
        for topic, queue_id in queues:
            if topic not in self.table and names.topic_problem(topic) is None and not self.is_system(topic):
                counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        for topic, count in counts.items():
            self.table[topic] = TopicConfig(topic, count, count, READ_WRITE)
        if counts:
            self._count_up()
        return sorted(counts)

    def get(self, topic: str) -> TopicConfig | None:
        """The topic, or None."""
        return self.table.get(topic)

    def is_system(self, topic: str) -> bool:
        """Whether `topic` is the broker's own: it can be neither changed nor deleted."""
        return topic in self.system or names.is_system_topic(topic)

    def encode(self) -> bytes:
        """topics.json, also the answer to 21."""
        return TopicTable(self.version, self.table).encode()

    def register_body(self, topics: dict[str, TopicConfig], *, withdrawn: bool) -> bytes:
        """Body of 103: `topics` with what the broker as a whole permits; `withdrawn` takes the writes from all."""
        permission = self._config.broker_permission
        if permission & READ_WRITE != READ_WRITE:
            # Without one of them, all topics say so, as RocketMQ's do.
            topics = {name: structs.replace(topic, perm=permission) for name, topic in topics.items()}
        if withdrawn:
            topics = {name: structs.replace(topic, perm=topic.perm & ~WRITE) for name, topic in topics.items()}
        body = RegisterBody(TopicTable(self.version, topics))
        return body.encode_compressed() if self._config.compressed_register else body.encode()

    def put(self, topic: TopicConfig) -> None:
        """Adds or replaces a topic."""
        self.table[topic.topic_name] = topic
        self._count_up()
        if self.changed is not None:
            self.changed(topic)

    def announce(self) -> None:
        """Has all topics told anew; NameServers take only a table with a new version."""
        self._count_up()
        if self.changed is not None:
            for topic in list(self.table.values()):
                self.changed(topic)

    def remove(self, topic: str) -> bool:
        """Forgets a topic; whether there was one."""
        if self.table.pop(topic, None) is None:
            return False
        self._count_up()
        return True

    def create_for_send(
        self, topic: str, default_topic: str, default_queue_nums: int, *, unit_mode: bool = False
    ) -> TopicConfig:
        """The topic for a first send to it: made after `default_topic` if that one may be inherited.

        RequestError 1 for an illegal name, 17 when the topic has to be made by hand.
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
        """The retry or dead-letter topic of a group, made if need be; RequestError 1 when the name is no topic's.

        `own`: the broker itself has something to put there, and finds room in any case.
        """
        config = self.table.get(topic)
        if config is not None:
            return config
        problem = names.topic_problem(topic)
        if problem is not None:
            raise system_error(f"the group's topic cannot be made: {problem}")
        if not own:
            self._check_share(_SHARE_OF_GROUPS)
        count = min(max(queue_nums, 1), MAX_QUEUES)
        made = TopicConfig(topic, count, count, READ_WRITE, topic_sys_flag=UNIT_SUBSCRIPTION if unit_mode else 0)
        self.put(made)
        return made

    def check_room(self) -> None:
        """RequestError 1 when there are as many topics as may be."""
        self._check_share((1, 1))

    def _check_share(self, share: tuple[int, int]) -> None:
        most = MAX_TOPICS * share[0] // share[1]
        if len(self.table) < most:
            return
        if share == (1, 1):
            raise system_error(f"the broker has {most} topics already: delete some")
        raise system_error(
            f"the broker has {most} topics already, the rest of {MAX_TOPICS} is kept for administrators"
            f"{' and for groups' if share == _SHARE_OF_SENDS else ''}: delete some, or create topics by hand"
            " (mqadmin updateTopic)"
        )

    def _count_up(self) -> None:
        self.version = DataVersion(self.version.counter + 1, self._now_ms())
        self.dirty = True


def checked_topic(topic: TopicConfig) -> TopicConfig:
    """`topic` as an administrator asks for it; RequestError 1 says what is wrong with it."""
    problem = names.topic_problem(topic.topic_name)
    if problem is not None:
        raise system_error(problem)
    for which, count in (("readQueueNums", topic.read_queue_nums), ("writeQueueNums", topic.write_queue_nums)):
        if not 0 <= count <= MAX_QUEUES:
            raise system_error(f"{which}={count} is out of range: ask for 0 to {MAX_QUEUES} queues")
    if not 0 <= topic.perm <= READ_WRITE | INHERIT:
        raise system_error(f"perm={topic.perm} is none: 2 is write, 4 read, 6 both")
    if topic.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
        raise system_error(f"topicFilterType={topic.topic_filter_type[:32]!r} is neither SINGLE_TAG nor MULTI_TAG")
    return topic


def _auto_create_topic(config: BrokerConfig) -> TopicConfig:
    count = config.default_topic_queue_nums
    return TopicConfig(names.AUTO_CREATE_TOPIC, count, count, READ_WRITE | INHERIT)


def _fresh_topics(config: BrokerConfig, level_count: int) -> list[TopicConfig]:
    """The topics of a fresh broker, as RocketMQ 4.9 makes them."""
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
