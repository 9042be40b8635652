"""A topic as one broker has it."""

from __future__ import annotations

from dataclasses import dataclass

from delaymq.message import names
from delaymq.message.names import topic_problem
from delaymq.protocol import bodies
from delaymq.protocol.headers import CreateTopicRequestHeader

PERM_READ_WRITE = 6
MAX_PERM = 7


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicConfig:
    """What Admin.topic_configs reads and Admin.put_topic writes."""

    topic: str
    write_queues: int = 8
    """Queues that producers send to."""
    read_queues: int = 8
    """Queues that consumers read; more than `write_queues` while a topic is made smaller."""
    permission: int = PERM_READ_WRITE
    """4 read, 2 write, 6 both; 1 more: new topics may be made after this one."""
    order: bool = False
    """As the NameServers' order settings say (Admin.put_order): brokers take it from there only."""
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    """1 unit, 2 unit subscription."""

    def to_header(self) -> CreateTopicRequestHeader:
        """The header of the request that makes or changes it (17). ValueError for what no broker takes."""
        problem = topic_problem(self.topic)
        if problem is not None:
            raise ValueError(problem)
        for name, count in (("write_queues", self.write_queues), ("read_queues", self.read_queues)):
            if count < 0:
                raise ValueError(f"{name} must be 0 or more, not {count}")
        if not 0 <= self.permission <= MAX_PERM:
            raise ValueError(f"permission must be 2 (write), 4 (read) or 6 (both), not {self.permission}")
        return CreateTopicRequestHeader(
            topic=self.topic,
            default_topic=names.AUTO_CREATE_TOPIC,
            read_queue_nums=self.read_queues,
            write_queue_nums=self.write_queues,
            perm=self.permission,
            topic_filter_type=self.filter_type,
            order=self.order,
            topic_sys_flag=self.sys_flag,
        )

    @classmethod
    def from_wire(cls, config: bodies.TopicConfig) -> TopicConfig:
        """As a broker states it."""
        return cls(
            topic=config.topic_name,
            write_queues=config.write_queue_nums,
            read_queues=config.read_queue_nums,
            permission=config.perm,
            order=config.order,
            filter_type=config.topic_filter_type,
            sys_flag=config.topic_sys_flag,
        )
