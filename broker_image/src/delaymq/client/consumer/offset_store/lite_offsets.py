"""Offsets of a lite pull consumer: those at the brokers, but where it was told to go on elsewhere."""

from __future__ import annotations

from delaymq.client.consumer.offset_store.broker_offsets import BrokerOffsets
from delaymq.protocol.bodies import MessageQueue


class SeekableOffsets:
    """`save` is what happens by itself, and does nothing without auto commit; `commit` is what the caller asks for."""

    def __init__(self, at_brokers: BrokerOffsets, *, saves: bool) -> None:
        self._at_brokers = at_brokers
        self._saves = saves
        self._sought: dict[MessageQueue, int] = {}

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """The next reader of `queue` begins at `offset`; until then nothing is saved for it."""
        self._sought[queue] = offset

    async def load(self, queue: MessageQueue) -> int | None:
        sought = self._sought.pop(queue, None)
        return await self._at_brokers.load(queue) if sought is None else sought

    async def save(self, offsets: dict[MessageQueue, int]) -> None:
        if self._saves:
            await self.commit(self.unless_sought(offsets))

    def unless_sought(self, offsets: dict[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Those of queues whose readers go on where they are."""
        return {queue: offset for queue, offset in offsets.items() if queue not in self._sought}

    async def commit(self, offsets: dict[MessageQueue, int]) -> None:
        """Stores the offsets at their brokers; what cannot be stored is logged and stored with the next commit."""
        await self._at_brokers.save(offsets)

    def forget_saved(self) -> None:
        self._at_brokers.forget_saved()
