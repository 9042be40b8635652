"""Backup source that reads a running broker's store over /api/v1/store, with a renewed pin."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import ssl
import time
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from delaymq.api_types.store import Files, PinBody, Positions, Store
from delaymq.cli.errors import EXIT_UNREACHABLE, CommandError
from delaymq.cli.target.contexts import Target
from delaymq.cli.target.http_api import NEEDS_RIGHTS, checked_url
from delaymq.cli.target.http_sessions import NO_HEADERS, SessionClient, credentials_hint
from delaymq.cli.target.https import https_options, https_problem, needs_https, needs_https_text
from delaymq.http_client import AnswerTooLargeError, HttpClient, NotSentError, Reply
from delaymq.store.backup.manifest import sizes_from
from delaymq.store.backup.source import SourceState
from delaymq.store.errors import BackupError, SegmentGoneError
from delaymq.store.segments import segment_name

TIMEOUT_S: Final = 30.0
MAX_RESPONSE_BYTES: Final = 512 << 20
"""Positions of 80,000 queues take some 5 MB, 200,000 consumer offsets with long names some 100 MB."""
LEASE_MS: Final = 120_000
RENEW_S: Final = 20.0
TRIES: Final = 6
"""Attempts per request while the broker is busy or restarting: some 15 s."""
CONFIRM_TIMEOUT_S: Final = 60.0
_RETRIED: Final = frozenset({429, 503})
_T = TypeVar("_T")


class RemoteSource:
    """Implementation of BackupSource with one connection and sequential requests."""

    def __init__(self, asked: Target, folder: str) -> None:
        self._shown = checked_url(asked.http)
        client = HttpClient(
            self._shown,
            timeout_s=TIMEOUT_S,
            max_answer_bytes=MAX_RESPONSE_BYTES,
            keeps_connection=True,
            https=https_options(asked),
        )
        # A backup may take longer than a session.
        self._client = SessionClient(client, asked.http_account, asked.token)
        # One name per target folder: a run after a killed one takes over its pin.
        self.holder = "backup-" + hashlib.sha256(os.path.abspath(folder).encode()).hexdigest()[:12]
        self._pinned: int | None = None
        self._renewed_at = 0.0
        self._store_id = ""
        self._boot_id = ""
        """Start of the member of a group that is copied; empty without replicas."""

    def state(self) -> SourceState:
        """See BackupSource: set a pin, then read the tables, then the end offset."""
        for _ in range(100):
            told = self._get("/api/v1/store", Store)
            self._store_id = told.store_id
            if self._boot_id and told.boot_id != self._boot_id:
                raise self._restarted()
            self._boot_id = told.boot_id if told.member else ""
            if not self._pin(told.start_offset):
                continue
            files = self._get("/api/v1/store/files", Files)
            positions = self._get("/api/v1/store/positions", Positions)
            try:
                return self._state(told, files, positions)
            except (TypeError, ValueError) as error:
                raise self._unusable(error) from error
        raise BackupError("the broker deletes segments faster than they can be pinned: try again later")

    def _state(self, told: Store, files: Files, positions: Positions) -> SourceState:
        # The broker states the end and the required version at one instant.
        last = self._confirmed(max(files.log_end_offset, positions.log_end_offset))
        return SourceState(
            minimum_reader=last.minimum_reader,
            store_id=told.store_id,
            broker_name=told.broker_name,
            message_delay_level=told.message_delay_level,
            sizes=sizes_from(msgspec.to_builtins(told.files)),
            small_files={name: text.encode() for name, text in files.files.items()},
            ended_queues=[
                (str(topic), int(queue_id), int(end))
                for topic, queue_id, first, end in positions.queues
                if int(first) >= int(end) > 0
            ],
            start_offset=told.start_offset,
            end_offset=last.end_offset,
        )

    def _confirmed(self, needed: int) -> Store:
        """Return the store's description once it covers the tables (under SYNC_FLUSH a moment later)."""
        give_up_at = time.monotonic() + CONFIRM_TIMEOUT_S
        while (told := self._get("/api/v1/store", Store)).end_offset < needed:
            if time.monotonic() > give_up_at:
                raise BackupError(
                    f"the broker did not confirm its commit log up to offset {needed}: check the broker's log output"
                )
            time.sleep(0.05)
        return told

    def read(self, base: int, position: int, count: int) -> bytes:
        """See BackupSource."""
        headers = {"Range": f"bytes={position}-{position + count - 1}"}
        reply = self._request("GET", f"/api/v1/store/segments/{segment_name(base)}", headers=headers)
        status, data = reply.status, reply.data
        if status == 206 and len(data) > count:
            raise BackupError(f"{self._shown} returned more data than requested: is it a DelayMQ broker?")
        if status == 206 and data:
            if reply.headers.get("DelayMQ-Store-Id") != self._store_id:
                raise BackupError(
                    f"{self._shown} now reaches another store: give an address that reaches only one broker"
                )
            if self._boot_id and reply.headers.get("DelayMQ-Boot-Id") != self._boot_id:
                raise self._restarted()
            return data
        problem = reply.problem
        if status == 404 and problem.code == "segment_gone":
            raise SegmentGoneError(problem.message)
        raise BackupError(f"{self._shown} did not return its commit log ({status} {problem.code}): {problem.message}")

    def pin(self, oldest: int) -> None:
        """Renew the pin periodically; release copied segments."""
        if self._pinned is not None and time.monotonic() - self._renewed_at > RENEW_S:
            self._pin(max(oldest, self._pinned))

    def close(self) -> None:
        """Release the pin and close the connection."""
        if self._pinned is not None:
            with contextlib.suppress(CommandError, BackupError):
                self._request("DELETE", f"/api/v1/store/pins/{self.holder}")
        self._client.client.close()

    def _pin(self, offset: int) -> bool:
        """Set or renew the pin; return False if the log now starts after `offset`."""
        wanted = PinBody(holder=self.holder, offset=offset, lease_ms=LEASE_MS)
        reply = self._request("POST", "/api/v1/store/pins", body=msgspec.json.encode(wanted))
        if reply.status == 201:
            self._pinned, self._renewed_at = offset, time.monotonic()
            return True
        problem = reply.problem
        if reply.status == 409 and problem.code == "offset_gone":
            # Either the segment is already copied, or a read will find it gone.
            self._renewed_at = time.monotonic()
            return False
        why = problem.message or "does the broker have the same version as this command?"
        raise BackupError(f"{self._shown} rejected the pin ({reply.status} {problem.code}): {why}")

    def _get(self, path: str, kind: type[_T]) -> _T:
        reply = self._request("GET", path)
        if needs_https(reply):
            raise CommandError(needs_https_text(self._shown))
        if reply.status != 200:
            problem = reply.problem
            why = problem.message or "is it a DelayMQ broker?"
            raise CommandError(f"{self._shown}{path} returned {reply.status} {problem.code}: {why}")
        try:
            return msgspec.json.decode(reply.data, type=kind)
        except msgspec.ValidationError as error:
            raise self._unusable(error) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CommandError(f"{self._shown} did not return JSON: is it a DelayMQ broker?") from error

    def _request(
        self, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] = NO_HEADERS
    ) -> Reply:
        """Send a request and return the reply; retry while the broker is busy or a connection broke.

        Raises CommandError.
        """
        for attempt in range(TRIES):
            if attempt:
                time.sleep(0.25 * 2**attempt)
            try:
                reply = self._client.request(method, path, body, headers)
            except AnswerTooLargeError as error:
                raise CommandError(f"{error}: is it a DelayMQ broker?") from error
            except (http.client.HTTPException, OSError) as error:
                if attempt + 1 == TRIES or self._pinned is None:
                    raise self._unreachable(error) from error
                continue
            if reply.status not in _RETRIED:
                break
        if reply.status in (401, 403):
            problem = reply.problem
            if problem.code in NEEDS_RIGHTS:
                raise CommandError(f"{self._shown}: {problem.message}")
            raise CommandError(f"{self._shown} returned {reply.status}: {credentials_hint(problem.code)}")
        return reply

    def _unreachable(self, error: Exception) -> CommandError:
        cause = error.reason if isinstance(error, NotSentError) else error
        if isinstance(cause, ssl.SSLError):
            return CommandError(https_problem(self._shown, cause), EXIT_UNREACHABLE)
        return CommandError(
            f"cannot connect to a broker at {self._shown} ({error}): is it running, and is this its HTTP address?",
            EXIT_UNREACHABLE,
        )

    def _restarted(self) -> BackupError:
        return BackupError(
            f"the member of a replicated group at {self._shown} was restarted, or is now another one, and its log may"
            " have been cut: run the backup again, which compares the copied data with the log"
        )

    def _unusable(self, error: Exception) -> CommandError:
        return CommandError(
            f"{self._shown} returned data that cannot be backed up ({error}): does the broker have the same version as"
            " this command?"
        )
