"""Secret of a group, which proves that a process is one of its members; its file is reloaded when it changes."""

from __future__ import annotations

import asyncio
import hmac
import logging
from pathlib import Path
from typing import Final

from delaymq.config.file_signature import FileSignature

MAX_FILE_BYTES: Final = 4_096
MIN_SECRET_BYTES: Final = 16
MAX_SECRETS: Final = 4
CHECK_INTERVAL_S: Final = 2.0
"""Interval between checks for a changed file."""

_logger = logging.getLogger(__name__)


class SecretError(Exception):
    """The secret file is unusable; the text says what to do."""


class GroupSecret:
    """Secrets of a file, one per line, as last read successfully.

    The first one is used for connections to other members; all are accepted. A secret is therefore replaced without
    interruption: add the new one as the second line on all members, then exchange the lines, then remove the old one.
    """

    def __init__(self, path: str) -> None:
        """Read the file. Raises SecretError if it is unusable, or if no file is configured."""
        if not path:
            raise SecretError(
                "replication needs a secret: write at least 16 random characters to a file, the same on all members of"
                " the group, and set haSecretFile"
            )
        self._path = Path(path)
        self._signature, self.values = _read(self._path)
        self._problem = ""

    def tokens(self, cluster: str, group: str) -> tuple[str, ...]:
        """Return what only members know, one for each secret, for registrations with NameServers."""
        about = "\0".join(("DelayMQ name server", cluster, group)).encode()
        return tuple(hmac.digest(secret, about, "sha256")[:16].hex() for secret in self.values)

    @property
    def first(self) -> bytes:
        """Secret with which this member connects."""
        return self.values[0]

    async def watch(self) -> None:
        """Reload the file whenever it changes, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            await loop.run_in_executor(None, self.refresh)

    def refresh(self) -> None:
        """Reload the file if it changed. An unusable one is logged, and the previous secrets are kept."""
        try:
            if FileSignature.of(self._path.stat()) == self._signature:
                self._problem = ""
                return
            self._signature, self.values = _read(self._path)
        except OSError as error:
            self._log_problem(f"cannot read haSecretFile {self._path}: {error.strerror}")
        except SecretError as error:
            self._log_problem(str(error))
        else:
            self._problem = ""
            _logger.info("the secret of the group was reloaded")

    def _log_problem(self, problem: str) -> None:
        if problem != self._problem:
            _logger.error("%s; the previous secret is kept", problem)
        self._problem = problem


def _read(path: Path) -> tuple[FileSignature, tuple[bytes, ...]]:
    try:
        signature = FileSignature.of(path.stat())
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SecretError(f"cannot read haSecretFile {path}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise SecretError(f"haSecretFile {path} exceeds {MAX_FILE_BYTES} bytes: is it the right file?")
    secrets = tuple(dict.fromkeys(line.strip() for line in data.splitlines() if line.strip()))
    if not secrets or min(map(len, secrets)) < MIN_SECRET_BYTES:
        raise SecretError(
            f"haSecretFile {path} must have a secret of at least {MIN_SECRET_BYTES} random characters on each line"
        )
    if len(secrets) > MAX_SECRETS:
        raise SecretError(f"haSecretFile {path} has {len(secrets)} secrets: keep at most {MAX_SECRETS}")
    return signature, secrets
