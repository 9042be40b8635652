"""Calls of a handler: arguments, outcome and notifications."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from delaymq.client.consumer.handlers.retries import shown
from delaymq.client.consumer.handlers.types import Again, Handle
from delaymq.client.consumer.queues.queue_reader import QueueReader
from delaymq.client.consumer.stats.consumer_stats import Tally
from delaymq.client.messages import ReceivedMessage
from delaymq.client.trace.format import ConsumeEnd
from delaymq.client.trace.tracer import Tracer

_logger = logging.getLogger(__name__)


class Run:
    """A running handler call with messages of one queue."""

    __slots__ = ("abandoned", "abandoning", "again", "began_s", "ended", "messages", "reader", "warned")

    def __init__(self, reader: QueueReader, messages: Sequence[ReceivedMessage], began_s: float) -> None:
        self.reader = reader
        self.messages = messages
        self.began_s = began_s
        self.abandoned: set[int] = set()
        """Offsets of messages that took too long and were revoked from this handler."""
        self.abandoning: asyncio.Event | None = None
        """Set when the revoked messages are known."""
        self.ended = False
        """Whether the handler has finished; then nothing more is revoked."""
        self.warned = False
        self.again: Again | None = None
        """Redelivery of its messages, if the handler requested one."""

    @property
    def kept(self) -> list[tuple[int, ReceivedMessage]]:
        """Messages that were not revoked, with their indexes."""
        whole = list(enumerate(self.messages))
        return [each for each in whole if each[1].queue_offset not in self.abandoned] if self.abandoned else whole


class HandlerCalls:
    """Calls `handle`, with statistics and traces. `late_ms`: duration from which a call is traced as too late."""

    def __init__(self, handle: Handle, tally: Tally, tracer: Tracer | None, late_ms: int) -> None:
        self._handle = handle
        self._tally = tally
        self._tracer = tracer
        self._late_ms = late_ms

    async def done(self, run: Run) -> int:
        """Return the number of the run's leading messages that the handler has consumed."""
        begun = None if self._tracer is None else self._tracer.begins(run.messages)
        failed = False
        try:
            result = await self._handle(run.messages)
            if isinstance(result, int):
                done = result
            else:
                done, run.again = 0, result
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # A task awaited by the handler was cancelled, not this worker.
            _logger.warning("the handler was cancelled on %s", all_shown(run.messages), exc_info=True)
            done, failed = 0, True
        except (SystemExit, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException:  # not only Exception: a worker that ends is not replaced
            _logger.warning("the handler failed on %s", all_shown(run.messages), exc_info=True)
            done, failed = 0, True
        took_ms = (asyncio.get_running_loop().time() - run.began_s) * 1000
        self._tally.handler_took(run.messages[0], took_ms)
        if self._tracer is not None and begun is not None:
            self._tracer.ends(begun, self._end_of(run, done, failed, took_ms))
        if run.abandoning is not None:
            await run.abandoning.wait()
        run.ended = True
        if done == len(run.messages) and not run.abandoned:
            self._tally.consumed(run.messages)
            return done
        kept = run.kept
        if len(kept) < len(run.messages):
            _logger.warning("the handler finished too late for %s; its outcome is ignored", all_shown(run.messages))
        self._tally.consumed([message for place, message in kept if place < done])
        self._tally.failed([message for place, message in kept if place >= done])
        return done

    def _end_of(self, run: Run, done: int, failed: bool, took_ms: float) -> ConsumeEnd:
        """Return the outcome of the handler for traces."""
        if failed:
            return ConsumeEnd.ERROR
        if took_ms >= self._late_ms:
            return ConsumeEnd.TOO_LATE
        return ConsumeEnd.SUCCESS if done == len(run.messages) else ConsumeEnd.FAILED


def all_shown(messages: Sequence[ReceivedMessage]) -> str:
    """Return a description: the first message, and the number of others."""
    more = f" and {len(messages) - 1} more from its queue" if len(messages) > 1 else ""
    return shown(messages[0]) + more
