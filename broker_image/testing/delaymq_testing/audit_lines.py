"""Audit logs in a folder, for tests: their lines, and a log with a clock of the test's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from delaymq.audit.files import file_name, file_numbers
from delaymq.audit.log import Attempt, AuditLog

NOW_MS = 1_700_000_000_000


class Clock:
    """A wall clock in ms and a steady one in s, which the test moves."""

    def __init__(self) -> None:
        self.ms = NOW_MS
        self.s = 1_000.0

    def now_ms(self) -> int:
        return self.ms

    def steady_s(self) -> float:
        return self.s


def opened(folder: Path, clock: Clock | None = None, *, max_bytes: int = 1 << 20, max_files: int = 4) -> AuditLog:
    """A log in `folder`."""
    clock = clock or Clock()
    return AuditLog(folder, "b", max_bytes=max_bytes, max_files=max_files, now_ms=clock.now_ms, steady_s=clock.steady_s)


def attempt(action: str = "topic.put", *, account: str = "", network: bytes = b"1234", **target: str) -> Attempt:
    """A request of one peer."""
    return Attempt(
        via="remoting", action=action, peer="10.0.0.9:1", network=network, code=17, target=target, account=account
    )


def text_of(folder: Path) -> str:
    """All files, the oldest first."""
    return "".join((folder / file_name(number)).read_text("ascii") for number in file_numbers(folder))


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """All lines, the oldest first."""
    return [json.loads(line) for line in text_of(folder).splitlines()]
