"""Stacks of the tasks of the event loop as text, corresponding to a Java client's thread stacks."""

from __future__ import annotations

import asyncio
from types import FrameType
from typing import Final

MAX_TASKS: Final = 1_000
MAX_FRAMES: Final = 30
MAX_CHARACTERS: Final = 1_000_000
"""Maximum length of the response, which also limits the time to create it."""


def task_stacks() -> str:
    """Return a block for each task: its name, its coroutine, and its frames, innermost first."""
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    blocks: list[str] = []
    characters = 0
    for number, task in enumerate(tasks):
        block = _block(task)
        characters += len(block)
        if number == MAX_TASKS or characters > MAX_CHARACTERS:
            blocks.append(f"… and {len(tasks) - number} more tasks\n")
            break
        blocks.append(block)
    return "\n".join(blocks)


def _block(task: asyncio.Task[object]) -> str:
    work = task.get_coro()
    lines = [f"{task.get_name()}  TID: {id(task):x}  {getattr(work, '__qualname__', type(work).__name__)}"]
    for frame in reversed(_frames(work)):
        code = frame.f_code
        lines.append(f"    at {code.co_qualname}({code.co_filename}:{frame.f_lineno})")
    return "\n".join(lines) + "\n"


def _frames(work: object) -> list[FrameType]:
    """Yield the frames of a waiting task, following what it awaits; asyncio reports only the first one."""
    frames: list[FrameType] = []
    while work is not None and len(frames) < MAX_FRAMES:
        frame = getattr(work, "cr_frame", None) or getattr(work, "gi_frame", None) or getattr(work, "ag_frame", None)
        if frame is not None:
            frames.append(frame)
        work = getattr(work, "cr_await", None) or getattr(work, "gi_yieldfrom", None) or getattr(work, "ag_await", None)
    return frames
