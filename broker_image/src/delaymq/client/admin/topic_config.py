"""Configuration of a topic on a broker."""

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
    """Configuration returned by Admin.topic_configs and written by Admin.put_topic."""

    topic: str
    write_queues: int = 8
    """Number of queues to which producers send."""
    read_queues: int = 8
    """Number of queues that consumers read; more than `write_queues` while a topic is being reduced."""
    permission: int = PERM_READ_WRITE
    """Permission: 4 read, 2 write, 6 both; plus 1: new topics may be created from it as a template."""
    order: bool = False
    """Order flag of the NameServers' settings (Admin.put_order), the only source for brokers."""
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    """System flags: 1 unit, 2 unit subscription."""

    def to_header(self) -> CreateTopicRequestHeader:
        """Return the header of the request that creates or changes it (17). ValueError for values that no broker
        accepts.
        """
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
        """Return the configuration from a broker's response."""
        return cls(
            topic=config.topic_name,
            write_queues=config.write_queue_nums,
            read_queues=config.read_queue_nums,
            permission=config.perm,
            order=config.order,
            filter_type=config.topic_filter_type,
            sys_flag=config.topic_sys_flag,
        )
