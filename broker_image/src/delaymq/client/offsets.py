"""Where a push consumer keeps its offsets: at the broker (clustering) or in a file of its own (broadcasting)."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Protocol

from delaymq.client.errors import ClientError
from delaymq.client.queue_calls import QueueCalls
from delaymq.protocol.bodies import MessageQueue

_logger = logging.getLogger(__name__)


class Offsets(Protocol):
    """`load` may raise ClientError (try again later); `save` logs what could not be saved and keeps the rest."""

    async def load(self, queue: MessageQueue) -> int | None: ...
    async def save(self, offsets: dict[MessageQueue, int]) -> None: ...
    def forget_saved(self) -> None: ...


class BrokerOffsets:
    """At the broker of each queue; only what changed since the last time is sent."""

    def __init__(self, calls: QueueCalls) -> None:
        self._calls = calls
        self._saved: dict[MessageQueue, int] = {}

    async def load(self, queue: MessageQueue) -> int | None:
        offset = await self._calls.committed_offset(queue)
        self._saved.pop(queue, None)
        return offset

    async def save(self, offsets: dict[MessageQueue, int]) -> None:
        changed = [item for item in offsets.items() if self._saved.get(item[0]) != item[1]]
        await asyncio.gather(*(self._save(queue, offset) for queue, offset in changed))

    def forget_saved(self) -> None:
        """What was saved may be lost, since the broker may have been killed: it is all sent again."""
        self._saved.clear()

    async def _save(self, queue: MessageQueue, offset: int) -> None:
        try:
            await self._calls.commit(queue, offset)
        except ClientError as error:
            _logger.warning("offset %d of %s/%d not committed: %s", offset, queue.topic, queue.queue_id, error)
        else:
            self._saved[queue] = offset


class FileOffsets:
    """In one JSON file, replaced atomically; without a path in memory only."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._offsets: dict[str, int] | None = None

    async def load(self, queue: MessageQueue) -> int | None:
        if self._offsets is None:
            self._offsets = await asyncio.to_thread(self._read)
        return self._offsets.get(_name(queue))

    async def save(self, offsets: dict[MessageQueue, int]) -> None:
        before = dict(self._offsets or {})
        after = before | {_name(queue): offset for queue, offset in offsets.items()}
        self._offsets = after
        if after == before or self._path is None:
            return
        try:
            await asyncio.to_thread(self._write, after)
        except OSError as error:
            _logger.warning("offsets not saved to %s: %s", self._path, error.strerror)

    def forget_saved(self) -> None:
        """A file loses nothing."""

    def _read(self) -> dict[str, int]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            table = json.loads(self._path.read_bytes())
            return {str(name): int(offset) for name, offset in table.items()}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            # Everybody gets every message anyway: to begin as a new member is better than not to begin.
            _logger.warning("offsets in %s cannot be read and are left aside: %s", self._path, error)
            return {}

    def _write(self, table: dict[str, int]) -> None:
        assert self._path is not None
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        draft.write_text(json.dumps(table, indent=1, sort_keys=True))
        draft.replace(self._path)


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic}@{queue.broker_name}@{queue.queue_id}"
