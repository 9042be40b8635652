"""Requests over http.client: one connection, kept between requests if the caller wants so."""

import http.client
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from delaymq.api_types.base import Problem, Refusal

MAX_ERROR_BYTES: Final = 64 * 1024
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_NO_HEADERS: Final[Mapping[str, str]] = {}


class NotSentError(OSError):
    """Nobody took the request; `reason` is why."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(*reason.args)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.reason)


class AnswerTooLargeError(Exception):
    """The answer is larger than the caller takes."""


@dataclass(frozen=True)
class Reply:
    """What was answered. Of the body of an error at most MAX_ERROR_BYTES are read."""

    status: int
    reason: str
    headers: http.client.HTTPMessage
    data: bytes

    @property
    def problem(self) -> Problem:
        """The code and message of an error; empty where the body has not the form of a broker's error."""
        try:
            return msgspec.json.decode(self.data, type=Refusal).error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Problem(code="", message="")


class HttpClient:
    """Requests to `url`, such as http://10.0.0.5:8080. Not for two threads at once."""

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        timeout_s: float,
        max_answer_bytes: int,
        keeps_connection: bool = False,
        uses_proxy: bool = False,
    ) -> None:
        """`timeout_s`: for each wait on the socket. `uses_proxy`: as http_proxy, https_proxy and no_proxy say."""
        self.url = url
        self._parts = parts = urlsplit(url)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout_s
        self._max_answer_bytes = max_answer_bytes
        self._keeps_connection = keeps_connection
        self._connection: http.client.HTTPConnection | None = None
        self._proxy = _proxy_of(parts) if uses_proxy else None
        self._prefix = parts.path.rstrip("/")
        """What stands before the path of each request."""
        if self._proxy is not None and parts.scheme == "http":
            self._prefix = f"http://{parts.netloc}{self._prefix}"
            self._headers |= _proxy_account(self._proxy)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = _NO_HEADERS
    ) -> Reply:
        """One request with JSON as `body`. NotSentError, OSError, HTTPException, AnswerTooLargeError, ValueError."""
        sent = {**self._headers, **headers}
        if body is not None:
            sent["Content-Type"] = "application/json"
        if not self._keeps_connection:
            sent["Connection"] = "close"
        try:
            reply = self._request(method, path, body, sent)
        except BaseException:
            # What is left of an answer would be taken for the next one.
            self.close()
            raise
        if not self._keeps_connection:
            self.close()
        return reply

    def close(self) -> None:
        """Ends the connection; the next request makes another."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _request(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Reply:
        try:
            connection = self._connection = self._connection or self._new_connection()
            connection.request(method, self._prefix + path, body=body, headers=headers)
        except OSError as error:
            raise NotSentError(error) from error
        with connection.getresponse() as answer:
            data = self._read(answer)
            if not answer.isclosed():
                self.close()
            return Reply(answer.status, answer.reason, answer.headers, data)

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        if answer.status >= 300:
            try:
                return answer.read(MAX_ERROR_BYTES)
            except (OSError, http.client.HTTPException):
                self.close()
                return b""
        data = answer.read(self._max_answer_bytes + 1)
        if len(data) > self._max_answer_bytes:
            raise AnswerTooLargeError(f"{self.url} answers more than {self._max_answer_bytes} bytes")
        return data

    def _new_connection(self) -> http.client.HTTPConnection:
        # Without a port http.client takes the end of an IPv6 address for one.
        host, port = _host_and_port(self._proxy or self._parts)
        if self._parts.scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        context = ssl.create_default_context()
        made = http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
        if self._proxy is not None:
            made.set_tunnel(*_host_and_port(self._parts), headers=_proxy_account(self._proxy))
        return made


def _host_and_port(parts: SplitResult) -> tuple[str, int]:
    return parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme, 80)


def _proxy_of(parts: SplitResult) -> SplitResult | None:
    """The proxy that the environment names for an address; none leads back to this machine."""
    if parts.hostname in _LOOPBACK:
        return None
    from urllib.request import getproxies, proxy_bypass

    named = getproxies().get(parts.scheme)
    if not named or proxy_bypass(parts.netloc):
        return None
    return urlsplit(named if "://" in named else f"http://{named}")


def _proxy_account(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None or proxy.password is None:
        return {}
    account = f"{unquote(proxy.username)}:{unquote(proxy.password)}".encode()
    return {"Proxy-Authorization": f"Basic {b64encode(account).decode()}"}
