"""Administration of topics, groups, messages and brokers.

Here: `Admin`, whose methods are grouped by subject in the other modules of this package. Not here: sending and
consuming. Invariant: all requests are served by RocketMQ 4.9's brokers and NameServers, so every method works with
them too.
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
    """Administrative requests over a client's connections; it needs no start or close.

    Raises the errors of the client; RefusedError if a broker or NameServer rejects a request.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: the connections belong to the client."""
