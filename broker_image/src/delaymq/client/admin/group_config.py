"""Configuration of a consumer group on a broker."""

from __future__ import annotations

from dataclasses import dataclass

from delaymq.message.names import group_problem
from delaymq.protocol.bodies import SubscriptionGroupConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupConfig:
    """Configuration returned by Admin.group_configs and written by Admin.put_group."""

    group: str
    consume: bool = True
    """Whether the group may consume; False: its pulls are rejected."""
    broadcast: bool = True
    """Whether its members may use broadcasting."""
    retry_queues: int = 1
    """Number of queues of its retry topic on this broker."""
    retry_max_times: int = 16
    """Number of redeliveries before a message goes to the dead-letter topic."""
    from_min: bool = True
    broker_id: int = 0
    which_broker_when_slow: int = 1
    notify_members: bool = True
    """Whether members are notified immediately when one joins or leaves."""

    def to_wire(self) -> SubscriptionGroupConfig:
        """Return the body of the request that creates or changes it (200). ValueError for values that no broker
        accepts.
        """
        problem = group_problem(self.group)
        if problem is not None:
            raise ValueError(problem)
        if self.retry_queues < 0:
            raise ValueError(f"retry_queues must be 0 or more, not {self.retry_queues}")
        return SubscriptionGroupConfig(
            group_name=self.group,
            consume_enable=self.consume,
            consume_from_min_enable=self.from_min,
            consume_broadcast_enable=self.broadcast,
            retry_queue_nums=self.retry_queues,
            retry_max_times=self.retry_max_times,
            broker_id=self.broker_id,
            which_broker_when_consume_slowly=self.which_broker_when_slow,
            notify_consumer_ids_changed_enable=self.notify_members,
        )

    @classmethod
    def from_wire(cls, config: SubscriptionGroupConfig) -> GroupConfig:
        """Return the configuration from a broker's response."""
        return cls(
            group=config.group_name,
            consume=config.consume_enable,
            broadcast=config.consume_broadcast_enable,
            retry_queues=config.retry_queue_nums,
            retry_max_times=config.retry_max_times,
            from_min=config.consume_from_min_enable,
            broker_id=config.broker_id,
            which_broker_when_slow=config.which_broker_when_consume_slowly,
            notify_members=config.notify_consumer_ids_changed_enable,
        )
