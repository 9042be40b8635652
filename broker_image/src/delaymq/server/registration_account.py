"""Account with which a broker signs requests to NameServers; its file is reloaded when it changes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from delaymq.config.file_signature import FileSignature

if TYPE_CHECKING:
    from delaymq.transport.connection import RemotingConnection

MAX_FILE_BYTES: Final = 65_536

_logger = logging.getLogger(__name__)


class AccountError(Exception):
    """The account file is unusable; the text says what to do."""


class RegistrationAccount:
    """Access key and secret key of a file `accessKey: …`, `secretKey: …`, as last read successfully."""

    def __init__(self, path: str) -> None:
        """With an empty `path`, requests are not signed."""
        self._path = Path(path) if path else None
        self._signature: FileSignature | None = None
        self._problem = ""
        self._keys: tuple[str, str] | None = None

    async def refresh(self) -> tuple[str, str] | None:
        """Reload the file if it changed, and return access key and secret key.

        Raises AccountError if no account was ever read.
        """
        if self._path is None:
            return None
        await asyncio.get_running_loop().run_in_executor(None, self._read, self._path)
        if self._keys is None:
            raise AccountError(self._problem)
        return self._keys

    @staticmethod
    async def sign_requests(connection: RemotingConnection, keys: tuple[str, str], timeout_ms: int) -> None:
        """Sign further requests of a connection, if the NameServer has rules; raise TransportError on failure.

        RocketMQ's signature is never used instead, because a captured registration would stay valid for ever.
        """
        from delaymq.transport.signing import sign_requests

        connection.sign = None
        await sign_requests(connection, *keys, rocketmq=False, timeout_ms=timeout_ms)

    def _read(self, path: Path) -> None:
        # Not loaded by brokers without an account.
        from delaymq.access.accounts import check_keys
        from delaymq.access.errors import AccessError
        from delaymq.access.yaml_tree import read_yaml

        try:
            signature = FileSignature.of(path.stat())
            if signature == self._signature:
                return
            with path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
            tree = read_yaml(data.decode("utf-8-sig")) if len(data) <= MAX_FILE_BYTES else None
            if not isinstance(tree, dict) or not tree.get("accessKey") or not tree.get("secretKey"):
                raise AccessError("set `accessKey:` and `secretKey:`, each on a separate line")
            access_key, secret_key = str(tree["accessKey"]), str(tree["secretKey"])
            check_keys(access_key, secret_key)
        except UnicodeDecodeError:
            self._log_problem(f"namesrvAccountFile {path} is not UTF-8")
        except OSError as error:
            self._log_problem(f"cannot read namesrvAccountFile {path}: {error.strerror}")
        except AccessError as error:
            self._log_problem(f"namesrvAccountFile {path}: {error}")
        else:
            self._signature, self._problem = signature, ""
            self._keys = access_key, secret_key

    def _log_problem(self, problem: str) -> None:
        if problem != self._problem and self._keys is not None:
            _logger.error("%s; the previous account is kept", problem)
        self._problem = problem
