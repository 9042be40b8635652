"""Requests to a broker's HTTP: one connection that is kept, tried again for a bounded time when it breaks.

Nothing that goes wrong shows the token. Redirects are not followed: the token is for the broker that was named.
"""

from __future__ import annotations

import errno
import http.client
import json
import logging
import random
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from delaymq_spark.store.address import TOKEN_VARIABLE, StorePathError, Token
from delaymq_spark.store.patience import PROGRESS_BYTES, Patience

CONNECT_TIMEOUT_S: Final = 10.0
# A cold disk under load answers late; a broker that is gone without a word must not hold a task for ever.
RESPONSE_TIMEOUT_S: Final = 45.0
# Slower than that is no reading: 4 MiB would take more than a minute.
MIN_BYTES_PER_S: Final = 65_536
# Tables are some megabytes at most; a foreign server must not fill the driver.
MAX_RESPONSE_BYTES: Final = 256 << 20
_MAX_ERROR_BYTES: Final = 65_536
_FIRST_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 3.0
# What a server may ask for with Retry-After.
_MAX_RETRY_AFTER_S: Final = 30.0
_PIECE_BYTES: Final = 1 << 20

_logger = logging.getLogger(__name__)


class SegmentGoneError(FileNotFoundError):
    """The broker has deleted the segment."""


class NoAnswerError(OSError):
    """The broker could not be reached, or gave no whole answer, for as long as was waited."""


class AnswerError(OSError):
    """The answer is none that can be used; asking again will not help."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(errno.EIO, message)
        self.status = status


class _TryAgainError(Exception):
    """What may be over in a moment; `pause_s` is what the broker asks for."""

    def __init__(self, why: str, pause_s: float | None = None) -> None:
        super().__init__(why)
        self.pause_s = pause_s


@dataclass(frozen=True, slots=True)
class _Failure:
    code: str
    message: str


class BrokerClient:
    """One connection to a broker; not for two threads at once."""

    def __init__(self, url: str, token: Token | None, patience_s: float) -> None:
        """`patience_s`: how long a question may take without progress (PROGRESS_BYTES), all tries together."""
        self.url = url
        self._token = token
        parts = urlsplit(url)
        self._scheme, self._prefix = parts.scheme, parts.path
        # Without a port http.client takes the end of an IPv6 address for one.
        self._host, self._port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self._connection: http.client.HTTPConnection | None = None
        # Of its own: http.client lets go of it before the last answer is read.
        self._socket: socket.socket | None = None
        self._patience = Patience(patience_s)

    def __repr__(self) -> str:
        return f"BrokerClient({self.url!r})"

    def close(self) -> None:
        """Let go of the connection; the next request makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = self._socket = None

    def get_json(self, path: str) -> Any:
        """The answer to GET `path`. NoAnswerError, AnswerError, SegmentGoneError; StorePathError when it is refused."""
        patience = self._patience
        patience.renew()
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                patience.begin_try()
                return self._get_json(path)
            except _TryAgainError as problem:
                pause_s = self._wait(problem, pause_s)
            except BaseException:
                self.close()
                raise

    def read_into(self, path: str, position: int, buffer: memoryview, store_id: str | None) -> int:
        """Fill `buffer` with the bytes of `path` from `position` on; fewer where they end. Errors as of `get_json`."""
        filled = reached = 0
        patience = self._patience
        patience.renew()
        pause_s = _FIRST_PAUSE_S
        while filled < len(buffer):
            try:
                patience.begin_try()
                for count in self._read(path, position + filled, buffer[filled:], store_id):
                    filled += count
                return filled
            except _TryAgainError as problem:
                # A few bytes with each try would never come to an end.
                if filled >= reached + PROGRESS_BYTES:
                    reached = filled
                    patience.renew()
                    pause_s = _FIRST_PAUSE_S
                pause_s = self._wait(problem, pause_s)
            except BaseException:
                # What is left of the answer would be taken for the next one.
                self.close()
                raise
        return filled

    def _wait(self, problem: _TryAgainError, pause_s: float) -> float:
        self.close()
        asked_s = min(problem.pause_s or 0.0, _MAX_RETRY_AFTER_S)
        # Tasks that lost one broker should not come back to it all at once.
        chosen_s = max(asked_s, pause_s) * random.uniform(0.75, 1.25)
        left_s = self._patience.left_s()
        if left_s <= chosen_s:
            tried = f"tried for {self._patience.seconds:.0f} s"
            raise NoAnswerError(errno.ETIMEDOUT, f"{self.url}: {problem}; {tried}") from None
        if pause_s == _FIRST_PAUSE_S:
            _logger.warning("%s: %s; trying again for %.0f s at most", self.url, problem, left_s)
        time.sleep(chosen_s)
        return min(pause_s * 2, _MAX_PAUSE_S)

    def _get_json(self, path: str) -> Any:
        response = self._request(path, {"Accept": "application/json"})
        with response:
            if response.status != 200:
                raise self._refused(response, path)
            data = self._body(response, MAX_RESPONSE_BYTES)
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise AnswerError(
                f"{self.url}: the answer to {path} is no JSON: no broker of DelayMQ answers there"
            ) from None

    def _read(self, path: str, position: int, buffer: memoryview, store_id: str | None) -> Any:
        """Yields how many bytes came each time."""
        headers = {"Range": f"bytes={position}-{position + len(buffer) - 1}", "Accept-Encoding": "identity"}
        response = self._request(path, headers)
        with response:
            if response.status == 416:
                self._body(response, _MAX_ERROR_BYTES)
                return
            if response.status != 206:
                raise self._refused(response, path)
            self._check_range(response, position, store_id)
            wanted = min(len(buffer), response.length if response.length is not None else len(buffer))
            filled = 0
            late_at = time.monotonic() + RESPONSE_TIMEOUT_S + wanted / MIN_BYTES_PER_S
            while filled < wanted:
                try:
                    # What is there: `readinto` would wait for all of it, however slowly it comes.
                    piece = self._piece(response, min(wanted - filled, _PIECE_BYTES))
                except (OSError, http.client.HTTPException) as error:
                    raise _TryAgainError(f"the connection broke ({_text(error)})") from None
                count = len(piece)
                if count == 0:
                    raise _TryAgainError(f"the answer ended {wanted - filled} bytes early")
                buffer[filled : filled + count] = piece
                filled += count
                yield count
                if time.monotonic() > late_at:
                    raise _TryAgainError(f"{filled} bytes in {RESPONSE_TIMEOUT_S:.0f} s and more are too few")
            if response.length is None or response.length:
                self.close()

    def _check_range(self, response: http.client.HTTPResponse, position: int, store_id: str | None) -> None:
        stated = response.getheader("Content-Range", "")
        if not stated.startswith(f"bytes {position}-"):
            raise AnswerError(f"{self.url}: another range was sent than was asked for ({stated[:60]!r})")
        other = response.getheader("DelayMQ-Store-Id")
        if store_id is not None and other is not None and other != store_id:
            raise AnswerError(
                f"{self.url}: another store answers than at the beginning ({other[:60]}, not {store_id}): name one "
                "broker, not an address that several share"
            )

    def _request(self, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        if self._token is not None:
            headers = headers | {"Authorization": f"Bearer {self._token.text}"}
        if self._connection is not None:
            try:
                return self._send(path, headers)
            except AnswerError:
                raise
            except OSError:
                # A kept connection may have been closed meanwhile, or its broker be gone without a word.
                self.close()
        return self._send_anew(path, headers)

    def _send_anew(self, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        try:
            return self._send(path, headers)
        except AnswerError:
            raise
        except ssl.SSLCertVerificationError as error:
            raise AnswerError(
                f"{self.url}: its certificate is not trusted ({error.verify_message}): name the host that it is made "
                "for, and let SSL_CERT_FILE name its authority"
            ) from None
        except ssl.SSLError as error:
            raise AnswerError(f"{self.url}: no TLS ({error.reason}): is it http:// there?") from None
        except UnicodeError:
            raise AnswerError(f"{self.url}: a host cannot have that name: give http://HOST:PORT") from None
        except OSError as error:
            raise _TryAgainError(f"no answer ({_text(error)})") from None

    def _send(self, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        connection = self._connected()
        if self._socket is not None:
            self._socket.settimeout(self._patience.wait_s(RESPONSE_TIMEOUT_S))
        try:
            connection.request("GET", self._prefix + path, headers=headers)
            return connection.getresponse()
        except http.client.RemoteDisconnected:
            raise
        except http.client.HTTPException as error:
            raise AnswerError(
                f"{self.url}: what answers there does not speak HTTP ({type(error).__name__}): give the broker's HTTP "
                "port (httpPort, 8080 unless it was changed)"
            ) from None

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            # A name may have several addresses, which are tried one after the other.
            count = len(socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM))
            timeout_s = min(CONNECT_TIMEOUT_S, self._patience.wait_s(RESPONSE_TIMEOUT_S) / max(count, 1))
            if self._scheme == "https":
                self._connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=timeout_s, context=ssl.create_default_context()
                )
            else:
                self._connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
            self._connection.connect()
            self._socket = self._connection.sock
        return self._connection

    def _piece(self, response: http.client.HTTPResponse, most: int) -> bytes:
        """The next bytes of an answer; none at its end."""
        if self._socket is not None and not response.isclosed():
            self._socket.settimeout(self._patience.wait_s(RESPONSE_TIMEOUT_S))
        piece = response.read1(most)
        self._patience.note_bytes(len(piece))
        return piece

    def _refused(self, response: http.client.HTTPResponse, path: str) -> Exception:
        """What to raise for a status that is not the one wished for."""
        status = response.status
        failure = _failure(self._body(response, _MAX_ERROR_BYTES))
        if response.length is None or response.length:
            self.close()
        if failure is not None and failure.code == "segment_gone":
            return SegmentGoneError(errno.ENOENT, "the broker has deleted the segment")
        if status == 401:
            said = "does not take the token" if self._token is not None else "asks for a token"
            return StorePathError(
                f"{self.url} {said} (401): give its httpToken by {TOKEN_VARIABLE}, to the driver and to all executors, "
                "or by the option `token`"
            )
        if status == 403:
            return StorePathError(f"{self.url} refuses (403): {failure.message if failure else 'no reason given'}")
        if status in (429, 503):
            asked = response.getheader("Retry-After", "")
            pause_s = float(asked) if asked.isascii() and asked.isdigit() and len(asked) < 6 else None
            return _TryAgainError(failure.message if failure else f"the answer is {status}", pause_s)
        if status in (502, 504):
            return _TryAgainError(f"the answer is {status}")
        said = failure.message if failure else response.reason
        return AnswerError(f"{self.url}{path} was answered with {status} ({said[:200]})", status)

    def _body(self, response: http.client.HTTPResponse, limit: int) -> bytes:
        pieces, count = [], 0
        late_at = time.monotonic() + RESPONSE_TIMEOUT_S + limit / MIN_BYTES_PER_S
        try:
            while piece := self._piece(response, _PIECE_BYTES):
                pieces.append(piece)
                count += len(piece)
                if count > limit:
                    self.close()
                    raise AnswerError(f"{self.url}: the answer has more than {limit} bytes: no broker sends that")
                if time.monotonic() > late_at:
                    raise _TryAgainError("the answer does not end")
            if response.length:
                raise _TryAgainError(f"the answer ended {response.length} bytes early")
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, AnswerError):
                raise
            raise _TryAgainError(f"the connection broke ({_text(error)})") from None
        return b"".join(pieces)


def _failure(data: bytes) -> _Failure | None:
    """The one form of errors that brokers have; None for others'."""
    try:
        error = json.loads(data)["error"]
        return _Failure(str(error["code"])[:100], str(error["message"])[:500])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it takes too long"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200]
