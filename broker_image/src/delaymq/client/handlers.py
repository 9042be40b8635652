"""What a push consumer calls for messages: what handlers may be and what they may answer."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum

from delaymq.client.messages import ReceivedMessage


class Outcome(Enum):
    """What a handler says about what it got; None counts as DONE."""

    DONE = "done"
    RETRY = "retry"


Handler = Callable[[ReceivedMessage], Awaitable[Outcome | None]]
BatchHandler = Callable[[list[ReceivedMessage]], Awaitable[Outcome | int | None]]
"""Gets messages of one queue, in its order. A number says how many of them, from the first on, are done."""
Handle = Callable[[Sequence[ReceivedMessage]], Awaitable[int]]
"""Both kinds in one form: how many messages from the first on are done."""


def of_one(handler: Handler) -> Handle:
    """Calls `handler` for the only message. TypeError for what cannot be a handler."""
    _check(handler)

    async def handle(messages: Sequence[ReceivedMessage]) -> int:
        outcome: object = await handler(messages[0])
        if outcome is None or outcome is Outcome.DONE:
            return 1
        if outcome is Outcome.RETRY:
            return 0
        raise TypeError(f"a handler returns None or an Outcome, not {outcome!r}")

    return handle


def of_batch(handler: BatchHandler) -> Handle:
    """Calls `handler` for all messages. TypeError for what cannot be a handler."""
    _check(handler)

    async def handle(messages: Sequence[ReceivedMessage]) -> int:
        outcome: object = await handler(list(messages))
        if outcome is None or outcome is Outcome.DONE:
            return len(messages)
        if outcome is Outcome.RETRY:
            return 0
        if type(outcome) is int and 0 <= outcome <= len(messages):
            return outcome
        raise TypeError(
            f"a handler of {len(messages)} messages returns None, an Outcome or how many are done, not {outcome!r}"
        )

    return handle


def _check(handler: object) -> None:
    if not callable(handler):
        raise TypeError(f"the handler must be a coroutine function (async def), not {handler!r}")
    plain = inspect.unwrap(handler)
    if inspect.isroutine(plain) and not inspect.iscoroutinefunction(plain):
        # A blocking handler would stop heartbeats, lock renewals and all other handlers of this loop.
        raise TypeError(
            f"the handler {plain.__qualname__} is a plain function: write `async def`,"
            " and `await asyncio.to_thread(work, message)` for work that blocks"
        )
