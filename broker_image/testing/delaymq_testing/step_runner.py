"""Runs pieces of work that wait for system calls, in the thread of the test."""

from typing import TypeVar

from delaymq.blocking_steps import BlockingSteps

T = TypeVar("T")


def at_once(steps: BlockingSteps[T]) -> T:
    """Does all of it here; what it returns."""
    error: Exception | None = None
    while True:
        try:
            work = next(steps) if error is None else steps.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result
        error = None
        try:
            work()
        except Exception as caught:
            error = caught
