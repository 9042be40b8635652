"""Consumer groups: list, members, progress."""

from __future__ import annotations

from dataclasses import dataclass, field

from delaymq.client.admin.base import MAX_TABLE_BYTES
from delaymq.client.admin.group_config import GroupConfig
from delaymq.client.admin.topics import TopicCalls
from delaymq.client.errors import reading_answer
from delaymq.message.names import dead_letter_topic, retry_topic
from delaymq.protocol.bodies import (
    Connection,
    ConsumeOffset,
    ConsumerConnection,
    ConsumeStats,
    GroupTable,
    MessageQueue,
    SubscriptionData,
)
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import request_command
from delaymq.protocol.headers import (
    DeleteSubscriptionGroupRequestHeader,
    GetConsumeStatsRequestHeader,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupMembers:
    """A group as currently known to the brokers; without members, everything is empty."""

    members: dict[str, Connection] = field(default_factory=dict)
    """Members by client ID; a member known to several brokers appears once."""
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    """Subscriptions by topic, including the group's retry topic."""
    model: str | None = None
    """CLUSTERING or BROADCASTING."""
    consume_type: str | None = None
    """CONSUME_PASSIVELY (pushed) or CONSUME_ACTIVELY (pulled)."""
    consume_from: str | None = None


class GroupCalls(TopicCalls):
    """Requests about consumer groups, whose retries and dead letters are topics."""

    async def groups(self) -> list[str]:
        """Return all groups known to any master, including system groups."""
        found: set[str] = set()
        for address in (await self.masters()).values():
            found.update(await self.group_configs(address))
        return sorted(found)

    async def group_configs(self, address: str) -> dict[str, GroupConfig]:
        """Return all groups of the broker at `address`."""
        answer = await self._client.request(address, request_command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        with reading_answer(address):
            table = GroupTable.decode(answer.body, max_bytes=MAX_TABLE_BYTES).subscription_group_table
        return {name: GroupConfig.from_wire(config) for name, config in table.items()}

    async def put_group(self, config: GroupConfig, *, cluster: str | None = None) -> None:
        """Create or change a group on all masters. ValueError for an illegal name or number."""
        config.to_wire()
        for address in (await self.masters(cluster)).values():
            await self.put_group_on(address, config)

    async def put_group_on(self, address: str, config: GroupConfig) -> None:
        """Create or change a group on the broker at `address`; it is durable on return."""
        body = config.to_wire().encode()
        await self._client.request(address, request_command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))

    async def delete_group(self, group: str, *, keep_offsets: bool = False, keep_dead_letters: bool = False) -> None:
        """Delete a group on all masters, including its offsets, pending retries and dead letters.

        A remaining member creates the group again on brokers that create groups automatically.
        """
        header = DeleteSubscriptionGroupRequestHeader(group_name=group, remove_offset=not keep_offsets)
        topics = [retry_topic(group), *(() if keep_dead_letters else (dead_letter_topic(group),))]
        for address in (await self.masters()).values():
            await self._client.request(
                address, request_command(RequestCode.DELETE_SUBSCRIPTIONGROUP, header.to_fields())
            )
            for topic in topics:
                await self.delete_topic_on(address, topic)
        for topic in topics:
            await self.delete_route(topic)

    async def group_members(self, group: str) -> GroupMembers:
        """Return the current members on all masters; empty if there are none, also for a group that never existed."""
        members: dict[str, Connection] = {}
        subscriptions: dict[str, SubscriptionData] = {}
        first: ConsumerConnection | None = None
        for address in (await self.masters()).values():
            told = await self._consumers_at(address, group)
            if told is None:
                continue
            first = first or told
            members.update((each.client_id, each) for each in told.connection_set)
            subscriptions |= told.subscription_table
        return GroupMembers(
            members=members,
            subscriptions=subscriptions,
            model=first.message_model if first else None,
            consume_type=first.consume_type if first else None,
            consume_from=first.consume_from_where if first else None,
        )

    async def consumer_progress(self, group: str, topic: str | None = None) -> dict[MessageQueue, ConsumeOffset]:
        """Return the progress of `group` in each queue with an offset. NoRouteError for a group that never existed."""
        route = await self._client.route(retry_topic(group), fresh=True)
        header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
        found: dict[MessageQueue, ConsumeOffset] = {}
        for address in route.addresses():
            answer = await self._client.request(
                address, request_command(RequestCode.GET_CONSUME_STATS, header.to_fields())
            )
            with reading_answer(address):
                found |= ConsumeStats.decode(answer.body).offset_table
        return found
