"""A piece of work that waits for system calls on its way, written as one function.

What the generator yields holds up whoever runs it: a server has it done in a thread, and raises there what came of it.
All else of it runs on the server's own thread, where nothing else runs meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")

BlockingSteps = Generator[Callable[[], None], None, T]
