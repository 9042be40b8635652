"""Offsets of a consumer group at the broker of each queue (RocketMQ: RemoteBrokerOffsetStore)."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from delaymq.client.core.queue_calls import QueueCalls
from delaymq.client.errors import ClientError
from delaymq.protocol.bodies import MessageQueue

_logger = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """Offset store. `load` may raise ClientError (retry later); `save` logs offsets that could not be saved and
    keeps them.
    """

    async def load(self, queue: MessageQueue) -> int | None: ...
    async def save(self, offsets: dict[MessageQueue, int]) -> None: ...
    def forget_saved(self) -> None: ...


class BrokerOffsets:
    """Offsets at the broker of each queue; only changed offsets are sent."""

    def __init__(self, calls: QueueCalls) -> None:
        self._calls = calls
        self._saved: dict[MessageQueue, int] = {}
        self._is_told = False

    async def load(self, queue: MessageQueue) -> int | None:
        offset = await self._calls.committed_offset(queue)
        self._saved.pop(queue, None)
        return offset

    async def save(self, offsets: dict[MessageQueue, int]) -> None:
        changed = [item for item in offsets.items() if self._saved.get(item[0]) != item[1]]
        ends = await asyncio.gather(*(self._save(queue, offset) for queue, offset in changed))
        errors = [error for error in ends if error is not None]
        if errors:
            # Retried every few seconds for all queues of a broker, so one line is enough.
            level = logging.DEBUG if self._is_told else logging.WARNING
            _logger.log(level, "the offsets of %d queues are not committed yet: %s", len(errors), errors[0])
        if changed:
            self._is_told = bool(errors)

    def forget_saved(self) -> None:
        """Send all offsets again, since the broker may have lost saved ones when it was killed."""
        self._saved.clear()

    async def _save(self, queue: MessageQueue, offset: int) -> ClientError | None:
        try:
            await self._calls.commit(queue, offset)
        except ClientError as error:
            return error
        self._saved[queue] = offset
        return None
