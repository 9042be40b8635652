"""Offsets of a lite pull consumer: those at the brokers, except after a seek."""

from __future__ import annotations

from delaymq.client.consumer.offset_store.broker_offsets import BrokerOffsets
from delaymq.protocol.bodies import MessageQueue


class SeekableOffsets:
    """Offsets with seeks. `save` runs automatically and does nothing without auto commit; `commit` is requested by
    the caller.
    """

    def __init__(self, at_brokers: BrokerOffsets, *, saves: bool) -> None:
        self._at_brokers = at_brokers
        self._saves = saves
        self._sought: dict[MessageQueue, int] = {}

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Make the next reader of `queue` start at `offset`; until then nothing is saved for it."""
        self._sought[queue] = offset

    async def load(self, queue: MessageQueue) -> int | None:
        sought = self._sought.pop(queue, None)
        return await self._at_brokers.load(queue) if sought is None else sought

    async def save(self, offsets: dict[MessageQueue, int]) -> None:
        if self._saves:
            await self.commit(self.unless_sought(offsets))

    def unless_sought(self, offsets: dict[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return offsets of queues without a pending seek."""
        return {queue: offset for queue, offset in offsets.items() if queue not in self._sought}

    async def commit(self, offsets: dict[MessageQueue, int]) -> None:
        """Commit the offsets at their brokers; failures are logged and retried with the next commit."""
        await self._at_brokers.save(offsets)

    def forget_saved(self) -> None:
        self._at_brokers.forget_saved()
