"""A running broker's store as the source of a backup: over /api/v1/store, with a pin that is renewed."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import ssl
import time
import urllib.parse
from typing import Any, Final

from delaymq.cli.errors import EXIT_UNREACHABLE, CommandError
from delaymq.cli.target.http_api import checked_url, error_of, json_object
from delaymq.store.backup.manifest import FileSizes, sizes_from
from delaymq.store.backup.source import SourceState
from delaymq.store.errors import BackupError, SegmentGoneError
from delaymq.store.segments import segment_name

TIMEOUT_S: Final = 30.0
MAX_ANSWER_BYTES: Final = 512 << 20
"""Positions of 80,000 queues have some 5 MB, 200,000 consumer offsets with long names a hundred."""
LEASE_MS: Final = 120_000
RENEW_S: Final = 20.0
TRIES: Final = 6
"""Of each request, while the broker says that it is busy, or restarts: some 15 s."""
LONGEST_CONFIRM_S: Final = 60.0
_RETRIED: Final = frozenset({429, 503})


class RemoteSource:
    """See BackupSource. One connection, used for one request after the other."""

    def __init__(self, url: str, token: str, folder: str) -> None:
        self._url = urllib.parse.urlsplit(checked_url(url))
        self._token = token
        # One name a target folder: a run that was killed is followed by one that takes over its pin.
        self.holder = "backup-" + hashlib.sha256(os.path.abspath(folder).encode()).hexdigest()[:12]
        self._connection: http.client.HTTPConnection | None = None
        self._pinned: int | None = None
        self._renewed_at = 0.0
        self._store_id = ""
        self._answered_of: str | None = None

    def look(self) -> SourceState:
        """See BackupSource: first a pin, then the tables, then the end."""
        for _ in range(100):
            told = self._get_json("/api/v1/store")
            try:
                start, self._store_id = int(told["startOffset"]), str(told["storeId"])
                if not self._pin(start):
                    continue
                files = self._get_json("/api/v1/store/files")
                positions = self._get_json("/api/v1/store/positions")
                return self._state(told, files, positions, start)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise CommandError(
                    f"{self._shown} does not tell what a backup needs ({error!r}): is the broker of this version?"
                ) from error
        raise BackupError("the broker deletes its log faster than it can be pinned")

    def _state(self, told: dict[str, Any], files: dict[str, Any], positions: dict[str, Any], start: int) -> SourceState:
        sizes: FileSizes = sizes_from(told["files"])
        return SourceState(
            store_id=str(told["storeId"]),
            broker_name=str(told["brokerName"]),
            message_delay_level=str(told["messageDelayLevel"]),
            sizes=sizes,
            small_files={str(name): str(text).encode() for name, text in files["files"].items()},
            ended_queues=[
                (str(topic), int(queue_id), int(end))
                for topic, queue_id, first, end in positions["queues"]
                if first >= end > 0
            ],
            start_offset=start,
            end_offset=self._confirmed(max(int(files["logEndOffset"]), int(positions["logEndOffset"]))),
        )

    def _confirmed(self, needed: int) -> int:
        """The confirmed end, once it covers what the tables are about (under SYNC_FLUSH a moment later)."""
        give_up_at = time.monotonic() + LONGEST_CONFIRM_S
        while (end := int(self._get_json("/api/v1/store")["endOffset"])) < needed:
            if time.monotonic() > give_up_at:
                raise BackupError(f"the broker did not get its log to the disk up to {needed}: look at its log")
            time.sleep(0.05)
        return end

    def read(self, base: int, position: int, count: int) -> bytes:
        """See BackupSource."""
        headers = {"Range": f"bytes={position}-{position + count - 1}"}
        status, data = self._ask("GET", f"/api/v1/store/segments/{segment_name(base)}", headers=headers)
        if status == 206 and len(data) > count:
            raise BackupError(f"{self._shown} gives more of its log than it was asked for: is it a DelayMQ broker?")
        if status == 206 and data:
            if self._answered_of != self._store_id:
                raise BackupError(
                    f"{self._shown} leads to another store by now: back up each broker by its own address"
                )
            return data
        code, message = error_of(data)
        if status == 404 and code == "segment_gone":
            raise SegmentGoneError(message)
        raise BackupError(f"{self._shown} does not give its log ({status} {code}): {message}")

    def keep(self, oldest: int) -> None:
        """Renews the pin from time to time; what is copied it lets go."""
        if self._pinned is not None and time.monotonic() - self._renewed_at > RENEW_S:
            self._pin(max(oldest, self._pinned))

    def close(self) -> None:
        """Releases the pin and the connection."""
        if self._pinned is not None:
            with contextlib.suppress(CommandError, BackupError):
                self._ask("DELETE", f"/api/v1/store/pins/{self.holder}")
        self._drop()

    @property
    def _shown(self) -> str:
        return urllib.parse.urlunsplit(self._url)

    def _pin(self, offset: int) -> bool:
        """False when the log begins later by now."""
        wanted = {"holder": self.holder, "offset": offset, "leaseMs": LEASE_MS}
        status, data = self._ask("POST", "/api/v1/store/pins", body=json.dumps(wanted).encode())
        if status == 201:
            self._pinned, self._renewed_at = offset, time.monotonic()
            return True
        code, message = error_of(data)
        if status == 409 and code == "offset_gone":
            # Of a segment that is copied already, or a read finds that it is gone.
            self._renewed_at = time.monotonic()
            return False
        raise BackupError(
            f"{self._shown} gives no pin ({status} {code}): {message or 'is the broker of this version?'}"
        )

    def _get_json(self, path: str) -> dict[str, Any]:
        status, data = self._ask("GET", path)
        if status != 200:
            code, message = error_of(data)
            raise CommandError(f"{self._shown}{path} answers {status} {code}: {message or 'is it a DelayMQ broker?'}")
        return json_object(data, self._shown, "a store")

    def _ask(
        self, method: str, path: str, *, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body; tried again while the broker is busy or a connection broke. CommandError."""
        sent = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        if body is not None:
            sent["Content-Type"] = "application/json"
        sent |= headers or {}
        for attempt in range(TRIES):
            if attempt:
                time.sleep(0.25 * 2**attempt)
            try:
                status, data = self._once(method, path, body, sent)
            except (http.client.HTTPException, OSError) as error:
                self._drop()
                if attempt + 1 == TRIES or self._pinned is None:
                    raise self._nobody(error) from error
                continue
            if status not in _RETRIED:
                break
        if status in (401, 403):
            raise CommandError(f"{self._shown} wants its httpToken: give it in DELAYMQ_HTTP_TOKEN or with --token-file")
        return status, data

    def _nobody(self, error: Exception) -> CommandError:
        return CommandError(
            f"no broker at {self._shown} ({error}): is it running, and is that its HTTP address?", EXIT_UNREACHABLE
        )

    def _once(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        if self._connection is None:
            host = self._url.hostname or ""
            if self._url.scheme == "https":
                context = ssl.create_default_context()
                self._connection = http.client.HTTPSConnection(host, self._url.port, timeout=TIMEOUT_S, context=context)
            else:
                self._connection = http.client.HTTPConnection(host, self._url.port, timeout=TIMEOUT_S)
        self._connection.request(method, self._url.path.rstrip("/") + path, body=body, headers=headers)
        answer = self._connection.getresponse()
        self._answered_of = answer.getheader("DelayMQ-Store-Id")
        data = answer.read(MAX_ANSWER_BYTES + 1)
        if len(data) > MAX_ANSWER_BYTES:
            raise CommandError(f"{self._shown} answers more than {MAX_ANSWER_BYTES} bytes: is it a DelayMQ broker?")
        return answer.status, data

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
