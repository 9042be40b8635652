"""GET requests to a broker: tried again for a limited time, with errors that say what to do.

No error or log line shows the token. Redirects are not followed: the token is for the named broker only.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import logging
import random
import ssl
import time
from collections.abc import Generator
from typing import Final

from delaymq.http_client import AnswerCutError, AnswerTooLargeError, HttpClient, NotSentError, Response, problem_of

from delaymq_spark.store.address import TOKEN_VARIABLE, StorePathError, Token
from delaymq_spark.store.patience import PROGRESS_BYTES, Patience

MAX_RESPONSE_BYTES: Final = 256 << 20
"""Tables have some megabytes at most; a foreign server must not fill the driver's memory."""
_FIRST_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 3.0
_MAX_RETRY_AFTER_S: Final = 30.0
"""Longest pause that a server may request with Retry-After."""
_PIECE_BYTES: Final = 1 << 20

_logger = logging.getLogger(__name__)


class SegmentGoneError(FileNotFoundError):
    """The broker has deleted the segment."""


class NoAnswerError(OSError):
    """The broker could not be reached, or sent no complete response, within the patience."""


class AnswerError(OSError):
    """The response is unusable, and trying again will not help."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(errno.EIO, message)
        self.status = status


class _TryAgainError(Exception):
    """A fault that may be temporary; `pause_s` is the pause that the broker requests."""

    def __init__(self, why: str, pause_s: float | None = None) -> None:
        super().__init__(why)
        self.pause_s = pause_s


class BrokerClient:
    """One connection to a broker; not for concurrent use by threads."""

    def __init__(self, url: str, token: Token | None, patience_s: float) -> None:
        """`patience_s`: longest time of a request without progress (PROGRESS_BYTES), over all tries."""
        self.url = url
        self._has_token = token is not None
        self._patience = Patience(patience_s)
        self._client = HttpClient(
            url,
            token.text if token is not None else "",
            timeout_s=self._patience,
            max_answer_bytes=MAX_RESPONSE_BYTES,
            keeps_connection=True,
        )

    def __repr__(self) -> str:
        return f"BrokerClient({self.url!r})"

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._client.close()

    def get(self, path: str) -> bytes:
        """Return the body of `path`. NoAnswerError, AnswerError, SegmentGoneError; StorePathError for a wrong token."""
        patience = self._patience
        patience.renew()
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                patience.begin_try()
                return self._get(path)
            except _TryAgainError as problem:
                pause_s = self._wait(problem, pause_s)

    def read_into(self, path: str, position: int, buffer: memoryview, store_id: str | None) -> int:
        """Fill `buffer` with the bytes of `path` from `position`; return their number. Errors as in `get`."""
        filled = reached = 0
        patience = self._patience
        patience.renew()
        pause_s = _FIRST_PAUSE_S
        while filled < len(buffer):
            try:
                patience.begin_try()
                with contextlib.closing(self._read(path, position + filled, buffer[filled:], store_id)) as counts:
                    for count in counts:
                        filled += count
                return filled
            except _TryAgainError as problem:
                # Retries that yield only a few bytes each would never end.
                if filled >= reached + PROGRESS_BYTES:
                    reached = filled
                    patience.renew()
                    pause_s = _FIRST_PAUSE_S
                pause_s = self._wait(problem, pause_s)
        return filled

    def _wait(self, problem: _TryAgainError, pause_s: float) -> float:
        asked_s = min(problem.pause_s or 0.0, _MAX_RETRY_AFTER_S)
        # Tasks that lost one broker should not all return to it at the same time.
        chosen_s = max(asked_s, pause_s) * random.uniform(0.75, 1.25)
        left_s = self._patience.left_s()
        if left_s <= chosen_s:
            tried = f"tried for {self._patience.seconds:.0f} s"
            raise NoAnswerError(errno.ETIMEDOUT, f"{self.url}: {problem}; {tried}") from None
        if pause_s == _FIRST_PAUSE_S:
            _logger.warning("%s: %s; retrying for up to %.0f s", self.url, problem, left_s)
        time.sleep(chosen_s)
        return min(pause_s * 2, _MAX_PAUSE_S)

    def _get(self, path: str) -> bytes:
        with self._send(path, {"Accept": "application/json"}) as response:
            self._patience.begin_body(MAX_RESPONSE_BYTES)
            if response.status != 200:
                raise self._refused(response, path)
            try:
                return response.body(MAX_RESPONSE_BYTES)
            except AnswerTooLargeError as error:
                text = f"the response {error}, more than any broker sends: give the address of a DelayMQ broker"
                raise AnswerError(f"{self.url}: {text}") from None
            except (OSError, http.client.HTTPException) as error:
                raise _broken(error) from None

    def _read(self, path: str, position: int, buffer: memoryview, store_id: str | None) -> Generator[int, None, None]:
        """Fill `buffer` and yield the number of bytes of each piece."""
        headers = {"Range": f"bytes={position}-{position + len(buffer) - 1}", "Accept-Encoding": "identity"}
        with self._send(path, headers) as response:
            self._patience.begin_body(len(buffer))
            if response.status == 416:
                response.error_body()
                return
            if response.status != 206:
                raise self._refused(response, path)
            self._check_range(response, position, store_id)
            wanted = len(buffer) if response.remaining is None else min(len(buffer), response.remaining)
            filled = 0
            while filled < wanted:
                try:
                    # Not `readinto`, which would wait for all of it, however slowly it arrives.
                    piece = response.read(min(wanted - filled, _PIECE_BYTES))
                except (OSError, http.client.HTTPException) as error:
                    raise _broken(error) from None
                if not piece:
                    raise _TryAgainError(f"the response ended {wanted - filled} bytes early")
                buffer[filled : filled + len(piece)] = piece
                filled += len(piece)
                yield len(piece)

    def _check_range(self, response: Response, position: int, store_id: str | None) -> None:
        stated = response.headers.get("Content-Range", "")
        if not stated.startswith(f"bytes {position}-"):
            raise AnswerError(f"{self.url}: the response does not contain the requested range ({stated[:60]!r})")
        other = response.headers.get("DelayMQ-Store-Id")
        if store_id is not None and other is not None and other != store_id:
            raise AnswerError(
                f"{self.url}: the first response came from store {store_id}, this one from {other[:60]}: give an "
                "address that reaches only one broker"
            )

    def _send(self, path: str, headers: dict[str, str]) -> Response:
        try:
            if self._client.is_connected:
                # The kept connection may have been closed, or its broker may have vanished.
                with contextlib.suppress(OSError):
                    return self._client.send("GET", path, headers=headers)
            return self._client.send("GET", path, headers=headers)
        except OSError as error:
            raise self._unreachable(error.reason if isinstance(error, NotSentError) else error) from None
        except http.client.HTTPException as error:
            raise AnswerError(
                f"{self.url}: the server does not speak HTTP ({type(error).__name__}): give the broker's HTTP port "
                "(httpPort, by default 8080)"
            ) from None
        except UnicodeError:
            raise AnswerError(f"{self.url}: the host name is invalid: give http://HOST:PORT") from None

    def _unreachable(self, error: OSError) -> Exception:
        """Return the error to raise if no response arrived."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return AnswerError(
                f"{self.url}: its certificate is not trusted ({error.verify_message}): give the host name that the "
                "certificate is for, and set SSL_CERT_FILE to its CA"
            )
        if isinstance(error, ssl.SSLError):
            return AnswerError(
                f"{self.url}: the TLS handshake failed ({error.reason}): give http:// if the server does not use TLS"
            )
        return _TryAgainError(f"no response ({_text(error)})")

    def _refused(self, response: Response, path: str) -> Exception:
        """Return the error to raise for an unexpected status."""
        status = response.status
        problem = problem_of(response.error_body())
        message = problem.message[:500]
        if problem.code == "segment_gone":
            return SegmentGoneError(errno.ENOENT, "the broker has deleted the segment")
        if status == 401:
            said = "rejects the token" if self._has_token else "requires a token"
            return StorePathError(
                f"{self.url} {said} (401): set {TOKEN_VARIABLE} to its httpToken, for the driver and all executors, or "
                "give the option `token`"
            )
        if status == 403:
            return StorePathError(f"{self.url} denies access (403): {message or 'no reason given'}")
        if status in (429, 503):
            asked = response.headers.get("Retry-After", "")
            pause_s = float(asked) if asked.isascii() and asked.isdigit() and len(asked) < 6 else None
            return _TryAgainError(message or f"the response is {status}", pause_s)
        if status in (502, 504):
            return _TryAgainError(f"the response is {status}")
        said = (message or response.reason)[:200]
        return AnswerError(f"{self.url}{path}: the response is {status} ({said})", status)


def _broken(error: Exception) -> _TryAgainError:
    return _TryAgainError(str(error) if isinstance(error, AnswerCutError) else f"the connection broke ({_text(error)})")


def _text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200]
