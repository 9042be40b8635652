"""Seeks, lookups of offsets, and manual commits of a polled consumer."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping

from delaymq.client.consumer.group_member import GroupMember
from delaymq.client.consumer.lite_reading import ShareOrAssignment
from delaymq.client.consumer.offset_store.lite_offsets import SeekableOffsets
from delaymq.protocol.bodies import MessageQueue


class SeekingMember(GroupMember, ABC):
    """A consumer whose caller can choose the offsets at which it continues."""

    _offsets: SeekableOffsets
    _shares: ShareOrAssignment

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at `offset` of `queue`, and discard its prefetched messages. The offset is committed like any
        other progress.

        An offset outside the queue is replaced by the nearest one in it. ValueError if the queue is not assigned to
        this consumer.
        """
        if offset < 0:
            raise ValueError(f"offset {offset} is invalid: offsets start at 0")
        if queue not in (self._shares.assigned or self.assigned):
            raise ValueError(
                f"{queue} is not assigned to this consumer: its assigned queues are {self.assigned or 'none yet'}"
            )
        self._offsets.seek(queue, offset)
        await self._assignment.reset({queue: offset})

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the oldest message of `queue`. Errors as `seek`, and ClientError if the broker cannot be
        queried.
        """
        await self.seek(queue, await self._calls.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue at the next new message of `queue`. Errors as `seek_to_begin`."""
        await self.seek(queue, await self._calls.max_offset(queue))

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at `timestamp_ms` (ms since 1970) or later. Raises
        ClientError.
        """
        return await self._calls.offset_at(queue, timestamp_ms)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's offset on the broker (the next message to consume), or None if there is none. Raises
        ClientError.
        """
        return await self._calls.committed_offset(queue)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit `offsets` (the next messages to consume), or the offsets after all messages polled so far.

        Without `offsets`, all polled messages count as consumed. Raises ClientError if a broker rejects an offset;
        the other offsets are committed nevertheless.
        """
        if offsets is None:
            self._finish_taken()
            offsets = self._offsets.unless_sought(self._assignment.offsets())
        stored = await asyncio.gather(
            *(self._calls.commit(queue, offset) for queue, offset in offsets.items()), return_exceptions=True
        )
        for result in stored:
            if isinstance(result, BaseException):
                raise result

    def reset_offsets(self, offsets: dict[MessageQueue, int]) -> None:
        """Continue at these offsets, as requested by an administrator."""
        self._background.spawn(self._reset(offsets))

    async def _reset(self, offsets: dict[MessageQueue, int]) -> None:
        # The request also contains queues of other members, whose progress must be kept for their next owners.
        ours = self._shares.assigned or self.assigned
        offsets = {queue: offset for queue, offset in offsets.items() if queue in ours}
        for queue, offset in offsets.items():
            self._offsets.seek(queue, offset)
        await self._offsets.commit(offsets)
        await self._assignment.reset(offsets)

    @abstractmethod
    def _finish_taken(self) -> None:
        """Mark all polled messages as consumed."""
