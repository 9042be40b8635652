"""JSON requests to the API server by the synchronous client, run in a few threads so that they never block the event
loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from delaymq_operator.adapters.credentials import Loader, authorization
from delaymq_operator.reconcile.errors import KubeError

MAX_ERROR_CHARS: Final = 500
"""Maximum length of an error text that does not come from the API server itself, such as a proxy's error page."""
CONNECT_TIMEOUT_S: Final = 5.0
WAITING_FACTOR: Final = 3.0
"""Multiple of the timeout after which a request fails, even if it waits for a thread or its response arrives slowly."""
USER_AGENT: Final = "delaymq-operator"
MERGE_PATCH: Final = "application/merge-patch+json"

_logger = logging.getLogger(__name__)
_decoder = msgspec.json.Decoder()


@dataclass(frozen=True)
class Request:
    """A request; `path` includes the query. `verb` and `kind` are the names used in access rules and metrics."""

    verb: str
    kind: str
    method: str
    path: str
    body: Any = None
    content_type: str = "application/json"


Observer = Callable[[Request, int], None]
"""Called for every request with its status; 0: there was no response."""
Fence = Callable[[], str | None]
"""Return why no change is permitted at present (for example, because another replica is active), or None."""
READS: Final = ("get", "list")
LEASE: Final = "Lease"
"""Excluded from the fence, since a replica writes the Lease before it becomes active."""


class ApiRequests:
    """Sends requests with a deadline and limited concurrency. Credentials are thread-safe; `close` ends the threads."""

    def __init__(self, load: Loader, *, threads: int, timeout_s: float, observe: Observer) -> None:
        self.fence: Fence = _open
        self.listing = asyncio.Lock()
        """Held while a page of a list is requested."""
        self._load = load
        self._threads = threads
        self._timeout_s = timeout_s
        self._observe = observe
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="kube")
        self._lock = threading.Lock()
        self._client: Any = None

    async def send(self, request: Request) -> Any:
        """Return the decoded response, or None if it is empty. KubeError for status 400 and above, and without a
        response (0).
        """
        loop = asyncio.get_running_loop()
        deadline_s = self._timeout_s * WAITING_FACTOR
        status = 0
        try:
            async with asyncio.timeout(deadline_s):
                status, body = await loop.run_in_executor(self._executor, self._send, request)
        except TimeoutError as error:
            message = f"the API server did not respond to {request.method} {request.path} within {deadline_s:g} s"
            raise KubeError(0, "Timeout", message) from error
        finally:
            self._observe(request, status)
        if status >= 400:
            raise _refusal(request, status, body)
        return body

    def close(self) -> None:
        """Drop requests that have not started; the others end within their timeout, in the background."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.rest_client.pool_manager.clear()

    def forget_credentials(self) -> None:
        """Make the next request reload the credentials."""
        with self._lock:
            self._client = None

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                from kubernetes.client import ApiClient

                loaded = self._load()
                # A failure is the caller's to repeat: it knows whether the request still makes sense.
                loaded.retries = False
                loaded.connection_pool_maxsize = self._threads
                self._client = ApiClient(loaded)
            return self._client

    def _send(self, request: Request) -> tuple[int, Any]:
        import urllib3
        from kubernetes.client.exceptions import ApiException

        client = self._connected()
        closed = None if request.verb in READS or request.kind == LEASE else self.fence()
        if closed is not None:
            raise KubeError(0, "NotActive", f"{request.method} {request.path} was not sent: {closed}")
        headers = {"Accept": "application/json", "User-Agent": USER_AGENT}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        try:
            token = authorization(client.configuration)
            if token:
                headers["Authorization"] = token
            answer = client.call_api(
                request.method,
                client.configuration.host.rstrip("/") + request.path,
                headers,
                request.body,
                _request_timeout=(CONNECT_TIMEOUT_S, self._timeout_s),
            )
            data = answer.read()
        except (urllib3.exceptions.HTTPError, ApiException, OSError) as error:
            message = f"no response from the API server at {client.configuration.host}: {_plain(error)}"
            raise KubeError(0, "Unreachable", message) from error
        if answer.status == 401:
            self.forget_credentials()
        return answer.status, _decoded(data)


def micro_time() -> str:
    """Return the current time as a MicroTime of the API server."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _open() -> str | None:
    return None


def _decoded(data: bytes) -> Any:
    if not data:
        return None
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return data.decode(errors="replace")[:MAX_ERROR_CHARS]


def _refusal(request: Request, status: int, body: Any) -> KubeError:
    if isinstance(body, dict) and body.get("kind") == "Status":
        return KubeError(status, str(body.get("reason") or ""), str(body.get("message") or f"HTTP status {status}"))
    text = body if isinstance(body, str) else ""
    return KubeError(status, "", f"{request.method} {request.path}: HTTP status {status} {text}".rstrip())


def _plain(error: BaseException) -> str:
    """Return the readable cause of an error of the HTTP library: the operating system's message, if there is one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error)[:MAX_ERROR_CHARS] or type(error).__name__
