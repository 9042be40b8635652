"""Resets of a group's offsets, through its members or without any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from delaymq.client.admin.base import AdminCalls
from delaymq.client.admin.reading import QueueReading
from delaymq.client.core.queue_calls import QueueCalls
from delaymq.client.errors import ClientError, RefusedError, reading_answer
from delaymq.message.names import group_problem
from delaymq.protocol.bodies import ConsumeOffset, ConsumeStats, MessageQueue, ResetOffset
from delaymq.protocol.codes import RequestCode, ResponseCode
from delaymq.protocol.command import request_command
from delaymq.protocol.headers import GetConsumeStatsRequestHeader, ResetOffsetRequestHeader

EARLIEST: Final = 0
"""As a time of `reset_offset`: the oldest existing message."""
LATEST: Final = -1
"""As a time of `reset_offset`: after the newest message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueReset:
    """Offsets of a queue before and after a reset."""

    old: int
    """Previous offset; 0 also if the group had none."""
    new: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ResetOutcome:
    """Result of a reset."""

    queues: dict[MessageQueue, QueueReset]
    told_members: bool
    """Whether members were notified: they continue there within their next commits (Java: 10 s), not immediately."""


class ResetCalls(AdminCalls):
    """Requests that reset a group's offsets."""

    async def reset_offset(self, group: str, topic: str, at_ms: int) -> ResetOutcome:
        """Reset `group` in all queues of `topic` to the first message stored at `at_ms` or later.

        EARLIEST and LATEST are valid times. Brokers notify connected members (222) and use the message nearest to the
        time; at brokers without members, the offsets are set (15). NoRouteError for an unknown topic.
        """
        problem = group_problem(group)
        if problem is not None:
            raise ValueError(problem)
        if at_ms < LATEST:
            raise ValueError(f"{at_ms} is not a valid time: use ms since the epoch, EARLIEST or LATEST")
        route = await self._client.route(topic, fresh=True)
        done: dict[MessageQueue, QueueReset] = {}
        told_members = False
        for broker_name in sorted(route.brokers):
            address = route.master(broker_name)
            if address is None:
                raise ClientError(
                    f"broker {broker_name} currently has no master, so its offsets cannot be set: retry later"
                )
            before = await self._progress_on(address, group, topic)
            queues = [queue for queue in route.readable if queue.broker_name == broker_name]
            told = await self._tell_members(address, group, topic, at_ms, queues)
            if told is None:
                told = await self._set_offsets(group, queues, at_ms)
            else:
                told_members = True
            done |= {
                queue: QueueReset(old=before[queue].consumer_offset if queue in before else 0, new=offset)
                for queue, offset in told.items()
            }
        return ResetOutcome(queues=done, told_members=told_members)

    async def set_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set the offset of `group` in a queue; a connected member overwrites it with its next commit."""
        problem = group_problem(group)
        if problem is not None or offset < 0:
            raise ValueError(problem or f"an offset must be 0 or more, not {offset}")
        await QueueCalls(self._client, group).commit(queue, offset)

    async def _progress_on(self, address: str, group: str, topic: str) -> dict[MessageQueue, ConsumeOffset]:
        header = GetConsumeStatsRequestHeader(consumer_group=group, topic=topic)
        answer = await self._client.request(address, request_command(RequestCode.GET_CONSUME_STATS, header.to_fields()))
        with reading_answer(address):
            return ConsumeStats.decode(answer.body).offset_table

    async def _tell_members(
        self, address: str, group: str, topic: str, at_ms: int, queues: list[MessageQueue]
    ) -> dict[MessageQueue, int] | None:
        """Return the new offsets sent by the broker to the members; None if it has none."""
        try:
            return await self._invoke_reset(address, group, topic, at_ms)
        except RefusedError as error:
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return None
            if error.code != ResponseCode.SYSTEM_ERROR or "not exist" not in error.remark:
                raise
        # Brokers reject a reset while the group has no offset in a queue, so the new offsets are set first.
        await self._set_offsets(group, queues, at_ms)
        try:
            return await self._invoke_reset(address, group, topic, at_ms)
        except RefusedError as error:
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return None
            raise

    async def _invoke_reset(self, address: str, group: str, topic: str, at_ms: int) -> dict[MessageQueue, int]:
        header = ResetOffsetRequestHeader(topic=topic, group=group, timestamp=at_ms, is_force=True)
        command = request_command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.to_fields())
        answer = await self._client.request(address, command)
        with reading_answer(address):
            return ResetOffset.decode(answer.body).offset_table

    async def _set_offsets(self, group: str, queues: list[MessageQueue], at_ms: int) -> dict[MessageQueue, int]:
        calls, reading = QueueCalls(self._client, group), QueueReading(self._client)
        done = {}
        for queue in queues:
            low, high = await reading.bounds(queue)
            if at_ms in (EARLIEST, LATEST):
                offset = low if at_ms == EARLIEST else high
            else:
                offset = await reading.first_at(queue, at_ms)
            done[queue] = offset
            await calls.commit(queue, offset)
        return done
