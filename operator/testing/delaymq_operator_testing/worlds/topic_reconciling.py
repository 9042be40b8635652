"""Reconciliation of Topics in a TopicWorld."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from delaymq_operator.reconcile.context import Key, Outcome
from delaymq_operator.reconcile.topic import reconcile_topic

from delaymq_operator_testing.worlds.topic import TopicWorld

T = TypeVar("T")


def run(scenario: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(scenario)


def settle(world: TopicWorld, *keys: Key) -> Outcome:
    """Reconcile each key once, in order, and return the last outcome."""

    async def all_of_them() -> Outcome:
        outcome = Outcome()
        for key in keys:
            outcome = await reconcile_topic(key, world.world)
        return outcome

    return run(all_of_them())
