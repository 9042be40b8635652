"""What operators ask: topics, groups, messages, brokers.

Here: `Admin`, whose methods stand by subject in the modules beside. Not here: sending and consuming. Invariant: every
request is one that RocketMQ 4.9's brokers and NameServers serve, so all of it works against them too.
"""

from typing import Self

from delaymq.client.admin.access import AccessCalls
from delaymq.client.admin.base import ORDER_NAMESPACE
from delaymq.client.admin.brokers import BrokerCalls
from delaymq.client.admin.groups import GroupCalls, GroupMembers
from delaymq.client.admin.members import MemberCalls
from delaymq.client.admin.messages import MessageCalls
from delaymq.client.admin.resets import EARLIEST, LATEST, QueueReset, ResetCalls, ResetOutcome

__all__ = ["EARLIEST", "LATEST", "ORDER_NAMESPACE", "Admin", "GroupMembers", "QueueReset", "ResetOutcome"]


class Admin(GroupCalls, MemberCalls, ResetCalls, MessageCalls, BrokerCalls, AccessCalls):
    """Requests of an administrator over a client's connections; it needs no start and no close of its own.

    Errors are the client's; RefusedError when a broker or NameServer says no.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Connections are the client's."""
