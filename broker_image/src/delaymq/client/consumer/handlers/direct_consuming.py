"""Consumption of a message on an administrator's request, independent of its queue."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from delaymq.client.consumer.handlers.retries import shown
from delaymq.client.consumer.handlers.types import Handle
from delaymq.client.messages import ReceivedMessage
from delaymq.protocol.bodies import ConsumeDirectlyResult, ConsumeResult

MAX_REMARK_CHARACTERS: Final = 1_000

_logger = logging.getLogger(__name__)


async def consume_directly(
    handle: Handle, message: ReceivedMessage, *, ordered: bool, timeout_ms: int
) -> ConsumeDirectlyResult:
    """Call the handler once and return its outcome. Nothing is retried or committed."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    remark: str | None = None
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            done = await handle([message])
        result = ConsumeResult.SUCCESS if done == 1 else ConsumeResult.LATER
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        result, remark = ConsumeResult.THROW_EXCEPTION, "CancelledError"
    except (SystemExit, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        _logger.warning(
            ("the handler failed on %s, which was sent for direct consumption"), shown(message), exc_info=True
        )
        result, remark = ConsumeResult.THROW_EXCEPTION, f"{type(error).__name__}: {error}"[:MAX_REMARK_CHARACTERS]
    spent_ms = int((loop.time() - began) * 1000)
    return ConsumeDirectlyResult(order=ordered, consume_result=result, remark=remark, spent_time_mills=spent_ms)
