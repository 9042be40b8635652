"""Audit log of one server: lines are written before their responses are sent, and synced in the background."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import msgspec

from delaymq.api_types.audit import AuditLine, AuditResult
from delaymq.audit import texts
from delaymq.audit.files import AuditFiles
from delaymq.audit.refusals import Refusals
from delaymq.clock import iso_time
from delaymq.throttled_log import ThrottledLogger

SUPPRESSED: Final = "audit.suppressed"
"""Action of a line that only states a number of suppressed attempts."""
SUMMARY_S: Final = 60.0
"""Time after which suppressed attempts are stated if no other line of their sender does it."""
RESULTS: Final = ("done", "unconfirmed", "refused")

_logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Attempt:
    """A change that a client requested, before its result is known."""

    via: Literal["remoting", "http", "message"]
    action: str
    peer: str
    """Address and port."""
    network: bytes = b""
    """The peer's network, by which refused attempts are limited."""
    code: int = 0
    route: str = ""
    target: Mapping[str, object] = field(default_factory=dict)
    account: str = ""
    verified: bool = False
    secrets: Iterable[str] = ()
    """Values of the request that a remark may repeat, and a line must not."""
    complete: Callable[[Attempt], None] | None = None
    """Sets target and secrets when a line is made, which is not for each refused attempt."""

    def completed(self) -> None:
        """Set what is missing, while the request is unchanged."""
        complete, self.complete = self.complete, None
        if complete is not None:
            complete(self)


class AuditLog:
    """Lines of one server. All methods except a task's `run` are for its thread."""

    def __init__(
        self,
        folder: Path | None,
        server: str,
        *,
        max_bytes: int,
        max_files: int,
        now_ms: Callable[[], int],
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder` is created with the first line. None: nothing is recorded."""
        self.folder = folder
        self._server = server
        self._files = None if folder is None else AuditFiles(folder, max_bytes, max_files)
        self._now_ms = now_ms
        self._steady_s = steady_s
        self._refusals = Refusals(steady_s())
        self._summary_at_s = steady_s() + SUMMARY_S
        self._unreported_drops = 0
        self.lines: dict[str, int] = dict.fromkeys(RESULTS, 0)
        """Number of written lines by result."""
        self.dropped = 0
        """Number of lines that could not be written."""
        self._throttled = ThrottledLogger(_logger, now_ms)

    @property
    def is_on(self) -> bool:
        """Whether lines are written."""
        return self._files is not None

    @property
    def suppressed(self) -> int:
        """Number of refused attempts that were not recorded."""
        return self._refusals.suppressed

    def record(self, attempt: Attempt, result: AuditResult, status: int, remark: str | None = None) -> None:
        """Record the result of an attempt. Never raises; refused attempts may be suppressed."""
        if self._files is None:
            return
        suppressed = 0
        try:
            if result == "refused":
                admitted = self._refusals.admit((attempt.network, attempt.account), self._steady_s())
                if admitted is None:
                    return
                suppressed = admitted
            attempt.completed()
            self._write(self._line(attempt, result, status, remark, suppressed))
        except Exception as error:
            self._drop(error)

    def task(self) -> _Sync | None:
        """Return a task that syncs the lines; state suppressed attempts from time to time."""
        if self._files is None:
            return None
        try:
            now_s = self._steady_s()
            if now_s >= self._summary_at_s:
                self._summary_at_s = now_s + SUMMARY_S
                self._state_suppressed()
            descriptor = self._files.sync_descriptor()
        except Exception as error:
            self._throttled.warning("cannot sync the audit log: %s", error)
            return None
        return None if descriptor is None else _Sync(descriptor, self._throttled)

    def close(self) -> None:
        """Write and sync what is left."""
        if self._files is None:
            return
        self._summary_at_s = 0.0
        task = self.task()
        if task is not None:
            task.run()
            task.finish()
        self._files.close()

    def _line(
        self, attempt: Attempt, result: AuditResult, status: int, remark: str | None, suppressed: int
    ) -> AuditLine:
        now_ms = self._now_ms()
        most = texts.MAX_REFUSED_NAME_CHARACTERS if result == "refused" else texts.MAX_NAME_CHARACTERS
        return AuditLine(
            time=iso_time(now_ms),
            time_ms=now_ms,
            server=self._server,
            via=attempt.via,
            action=attempt.action,
            result=result,
            status=status,
            peer=attempt.peer,
            code=attempt.code,
            route=attempt.route,
            account=texts.name(attempt.account, most),
            verified=attempt.verified,
            target=texts.targets(attempt.target, most),
            remark="" if result == "done" else texts.remark(remark, attempt.secrets),
            suppressed=suppressed,
        )

    def _write(self, line: AuditLine) -> None:
        assert self._files is not None
        line.dropped = self._unreported_drops
        self._files.append(texts.as_line(msgspec.json.encode(line)))
        self._unreported_drops = 0
        self.lines[line.result] += 1

    def _drop(self, error: Exception) -> None:
        self.dropped += 1
        self._unreported_drops += 1
        text = "cannot write to the audit log (%s): %s: changes continue without their lines, which are counted"
        self._throttled.error(text, self.folder, error)

    def _state_suppressed(self) -> None:
        count = self._refusals.unreported()
        if count:
            attempt = Attempt(via="remoting", action=SUPPRESSED, peer="")
            try:
                self._write(self._line(attempt, "refused", 0, "", count))
            except Exception as error:
                self._drop(error)


class _Sync:
    """Task of the background jobs: syncs the current file in a thread."""

    def __init__(self, descriptor: int, throttled: ThrottledLogger) -> None:
        self._descriptor = descriptor
        self._throttled = throttled
        self._error: OSError | None = None

    def run(self) -> None:
        """Sync, in any thread."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._error = error
        finally:
            os.close(self._descriptor)

    def finish(self) -> None:
        """Report an error."""
        if self._error is not None:
            self._throttled.warning("cannot sync the audit log: %s", self._error)
