"""HTTP client based on http.client, with a single, optionally persistent connection."""

import http.client
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

import msgspec

from delaymq.api_types.base import Problem
from delaymq.api_types.sends import SendBody, Sent
from delaymq.http_client.response import AnswerTooLargeError, Pace, Response, problem_of

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_NO_HEADERS: Final[Mapping[str, str]] = {}


class NotSentError(OSError):
    """The request could not be sent; `reason` is the cause."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(*reason.args)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.reason)


@dataclass(frozen=True)
class Reply:
    """A response; at most MAX_ERROR_BYTES of the body of an error are read."""

    status: int
    reason: str
    headers: http.client.HTTPMessage
    data: bytes

    @property
    def problem(self) -> Problem:
        """Code and message of an error; empty if the body is not a broker's error."""
        return problem_of(self.data)


class RefusedError(Exception):
    """The broker rejected the request; `reply` is its response."""

    def __init__(self, reply: Reply) -> None:
        problem = reply.problem
        super().__init__(problem.message or f"status {reply.status} {reply.reason}")
        self.reply = reply


@dataclass(frozen=True)
class HttpsOptions:
    """TLS of https:// addresses."""

    context: Callable[[], ssl.SSLContext] = ssl.create_default_context
    """Called for each connection, so that renewed files take effect; its errors are passed on."""
    server_name: str = ""
    """Name that the server's certificate must have; empty: the host of the address."""


class HttpClient:
    """HTTP client of `url`, such as http://10.0.0.5:8080. Not thread-safe."""

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        timeout_s: float | Pace,
        max_answer_bytes: int,
        keeps_connection: bool = False,
        uses_proxy: bool = False,
        https: HttpsOptions | None = None,
    ) -> None:
        """`timeout_s`: of each socket operation, or a Pace. `uses_proxy`: obey http_proxy, https_proxy and no_proxy."""
        self.url = url
        self._parts = parts = urlsplit(url)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._pace = timeout_s if isinstance(timeout_s, Pace) else Pace(timeout_s)
        self._max_answer_bytes = max_answer_bytes
        self._keeps_connection = keeps_connection
        self._connection: http.client.HTTPConnection | None = None
        self._https = https or HttpsOptions()
        self._proxy = _proxy_of(parts) if uses_proxy else None
        self._prefix = parts.path.rstrip("/")
        """Prefix of the path of each request."""
        if self._proxy is not None and parts.scheme == "http":
            self._prefix = f"http://{parts.netloc}{self._prefix}"
            self._headers |= _proxy_account(self._proxy)

    def use_token(self, token: str) -> None:
        """Send a bearer token with all further requests; none if it is empty."""
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        else:
            self._headers.pop("Authorization", None)

    @property
    def is_connected(self) -> bool:
        """Whether a connection is kept for the next request; the other side may have closed it."""
        return self._connection is not None

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = _NO_HEADERS
    ) -> Reply:
        """Send a request with an optional JSON `body`.

        Raises NotSentError, OSError, HTTPException, AnswerTooLargeError or ValueError.
        """
        with self.send(method, path, body, headers) as response:
            try:
                data = response.error_body() if response.status >= 300 else response.body(self._max_answer_bytes)
            except AnswerTooLargeError as error:
                raise AnswerTooLargeError(f"the response from {self.url} {error}") from None
        if not self._keeps_connection:
            self.close()
        return Reply(response.status, response.reason, response.headers, data)

    def send_message(self, topic: str, message: SendBody) -> Sent:
        """Send a message to `topic` and return its ids.

        Raises RefusedError for an error response, msgspec.DecodeError for a response that is not a broker's, and the
        errors of `request`. After other errors than RefusedError and NotSentError, the message may be stored. The same
        applies to a RefusedError with the code `not_flushed`.
        """
        path = f"/api/v1/topics/{quote(topic, safe='')}/messages"
        reply = self.request("POST", path, msgspec.json.encode(message))
        if reply.status != http.client.OK:
            raise RefusedError(reply)
        return msgspec.json.decode(reply.data, type=Sent)

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = _NO_HEADERS
    ) -> Response:
        """Send a request and return the response, whose body has not been read. Errors as in `request`."""
        sent = {**self._headers, **headers}
        if body is not None:
            sent["Content-Type"] = "application/json"
        if not self._keeps_connection:
            sent["Connection"] = "close"
        try:
            try:
                connection, wire = self._connected()
                connection.request(method, self._prefix + path, body=body, headers=sent)
            except OSError as error:
                raise NotSentError(error) from error
            return Response(connection.getresponse(), wire, self._pace, self.close)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _connected(self) -> tuple[http.client.HTTPConnection, socket.socket]:
        if self._connection is None or self._connection.sock is None:
            self._connection = self._new_connection()
            self._connection.connect()
        wire: socket.socket = self._connection.sock
        wire.settimeout(self._pace.wait_s())
        return self._connection, wire

    def _new_connection(self) -> http.client.HTTPConnection:
        # Without a port, http.client would parse the end of an IPv6 address as one.
        host, port = _host_and_port(self._proxy or self._parts)
        # A name may have several addresses, which are tried one at a time.
        timeout_s = self._pace.connect_s(len(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
        if self._parts.scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        made = _HttpsConnection(host, port, timeout_s, self._https)
        if self._proxy is not None:
            made.set_tunnel(*_host_and_port(self._parts), headers=_proxy_account(self._proxy))
        return made


class _HttpsConnection(http.client.HTTPSConnection):
    """Connection whose server may be expected to have another name than in its address."""

    def __init__(self, host: str, port: int, timeout_s: float, options: HttpsOptions) -> None:
        self._tls = options.context()
        self._server_name = options.server_name
        super().__init__(host, port, timeout=timeout_s, context=self._tls)

    def connect(self) -> None:
        if not self._server_name:
            super().connect()
            return
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._server_name)


def _host_and_port(parts: SplitResult) -> tuple[str, int]:
    return parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme, 80)


def _proxy_of(parts: SplitResult) -> SplitResult | None:
    """Return the proxy that the environment sets for an address; None for loopback addresses."""
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
