"""Work with blocking system calls, written as one generator function.

The generator yields functions that block. A server runs them in a thread, and raises their errors in the generator. The
remaining code runs exclusively on the server's own thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")

BlockingSteps = Generator[Callable[[], None], None, T]
