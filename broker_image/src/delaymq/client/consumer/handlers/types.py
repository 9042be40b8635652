"""Handlers of push consumers and their outcomes."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from delaymq.client.messages import ReceivedMessage

MIN_SUSPEND_MS: Final = 10
MAX_SUSPEND_MS: Final = 30_000
"""RocketMQ's limits; a queue suspended for longer could not be distinguished from a stuck one."""


class Outcome(Enum):
    """Outcome of a handler call; None counts as DONE."""

    DONE = "done"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class Retry:
    """Redeliver the remaining messages after the delay of a delay level; -1: move them to the dead-letter topic
    immediately.

    For ordered and broadcasting consumers it counts as Outcome.RETRY.
    """

    delay_level: int

    def __post_init__(self) -> None:
        if self.delay_level == 0 or self.delay_level < -1:
            raise ValueError(
                f"the delay level of a retry must be 1 or more, or -1 for the dead-letter topic, not {self.delay_level}"
            )


@dataclass(frozen=True, slots=True)
class Suspend:
    """Redeliver the remaining messages after a pause, during which an ordered consumer's queue is suspended.

    For consumers that are not ordered it counts as Outcome.RETRY.
    """

    pause_ms: int

    def __post_init__(self) -> None:
        if not MIN_SUSPEND_MS <= self.pause_ms <= MAX_SUSPEND_MS:
            raise ValueError(
                f"a queue can be suspended for {MIN_SUSPEND_MS} to {MAX_SUSPEND_MS} ms, not {self.pause_ms}: for a "
                "longer pause, suspend it repeatedly"
            )


Again = Retry | Suspend
Handler = Callable[[ReceivedMessage], Awaitable[Outcome | Again | None]]
BatchHandler = Callable[[list[ReceivedMessage]], Awaitable[Outcome | Again | int | None]]
"""Receives messages of one queue in order. A returned number n means that the first n are consumed."""
Handle = Callable[[Sequence[ReceivedMessage]], Awaitable[int | Again]]
"""Common form of both kinds: returns the number of leading messages that are consumed, or how to redeliver all of
them.
"""


def of_one(handler: Handler) -> Handle:
    """Return a function that calls `handler` with a single message. TypeError if it cannot be a handler."""
    _check(handler)

    async def handle(messages: Sequence[ReceivedMessage]) -> int | Again:
        outcome: object = await handler(messages[0])
        if outcome is None or outcome is Outcome.DONE:
            return 1
        if outcome is Outcome.RETRY:
            return 0
        if isinstance(outcome, Again):
            return outcome
        raise TypeError(f"a handler must return None, an Outcome, a Retry or a Suspend, not {outcome!r}")

    return handle


def of_batch(handler: BatchHandler) -> Handle:
    """Return a function that calls `handler` with all messages. TypeError if it cannot be a handler."""
    _check(handler)

    async def handle(messages: Sequence[ReceivedMessage]) -> int | Again:
        outcome: object = await handler(list(messages))
        if outcome is None or outcome is Outcome.DONE:
            return len(messages)
        if outcome is Outcome.RETRY:
            return 0
        if isinstance(outcome, Again):
            return outcome
        if type(outcome) is int and 0 <= outcome <= len(messages):
            return outcome
        raise TypeError(
            f"a handler of {len(messages)} messages must return None, an Outcome, a Retry, a Suspend or the number "
            f"of consumed messages, not {outcome!r}"
        )

    return handle


def _check(handler: object) -> None:
    if not callable(handler):
        raise TypeError(f"the handler must be a coroutine function (async def), not {handler!r}")
    plain = inspect.unwrap(handler)
    if inspect.isroutine(plain) and not inspect.iscoroutinefunction(plain):
        # A blocking handler would stop heartbeats, lock renewals and all other handlers of this loop.
        raise TypeError(
            f"the handler {plain.__qualname__} is a plain function: use `async def`, and `await "
            "asyncio.to_thread(work, message)` for blocking work"
        )
