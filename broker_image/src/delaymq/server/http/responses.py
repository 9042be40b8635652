"""Helpers for all responses: the error format, security headers, and refusals that several checks share."""

import logging
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from delaymq.api_types.base import Problem, Refusal
from delaymq.api_types.broker import NotReady, Ready
from delaymq.store.disk.files import is_shortage

SECURITY_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Default headers of responses; the console's page sets another policy."""

READING_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods of requests that change nothing."""
JSON: Final = "application/json"
RETRY_AFTER_S: Final = 1
"""`Retry-After` of responses with status 503, whose requests may succeed when repeated."""

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class ApiError(Exception):
    """Error response: HTTP status, machine-readable code and message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def decode_json(data: bytes, kind: type[T]) -> T:
    """Decode the JSON `data` as `kind`, where 5.0 counts as an integer; raise msgspec.DecodeError if it is invalid."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
        try:
            plain = _with_integers(msgspec.json.decode(data))
        except RecursionError:
            raise error from None
        return msgspec.convert(plain, kind)


def _with_integers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_with_integers(each) for each in value]
    if isinstance(value, dict):
        return {name: _with_integers(each) for name, each in value.items()}
    return value


def json_response(answer: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a JSON response of /api/v1."""
    return web.Response(body=msgspec.json.encode(answer), status=status, headers=headers, content_type=JSON)


def error_response(status: int, code: str, message: str) -> web.Response:
    """Return an error response; with status 503 it contains Retry-After."""
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else None
    return json_response(Refusal(error=Problem(code=code, message=message)), status, headers)


def unauthorized(code: str, message: str) -> web.Response:
    """Return the response to a request that nothing identifies."""
    refusal = error_response(401, code, message)
    refusal.headers["WWW-Authenticate"] = 'Bearer realm="delaymq"'
    return refusal


def not_json(request: web.Request) -> web.Response | None:
    """Return a refusal of a change with a content type that a form of another origin can send.

    Browsers block cross-origin DELETE requests, which are never permitted here.
    """
    if request.method == "DELETE" or request.content_type == JSON:
        return None
    return error_response(415, "json_needed", f"requests that change state require the header Content-Type: {JSON}")


def readiness(problems: list[str]) -> web.Response:
    """Return the response of /readyz."""
    if problems:
        error = Problem(code="not_ready", message="; ".join(problems))
        return json_response(NotReady(ready=False, not_ready=tuple(problems), error=error), 503)
    return json_response(Ready(ready=True, not_ready=()))


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Convert routing errors and unexpected errors to error responses; answer OPTIONS with the methods."""
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed as error:
        allow = {"Allow": ", ".join(sorted({*error.allowed_methods, "OPTIONS"}))}
        if request.method == "OPTIONS":
            return web.Response(status=204, headers=allow)
        response = error_response(405, "method_not_allowed", f"{request.path} supports only {allow['Allow']}")
        response.headers.update(allow)
        return response
    except web.HTTPException as error:
        if error.status < 400:
            raise
        code = (error.reason or "error").lower().replace(" ", "_")
        return error_response(error.status, code, f"{request.method} {request.path}: {error.reason}")
    except Exception as error:
        if isinstance(error, ConnectionResetError) and (request.transport is None or request.transport.is_closing()):
            raise  # the peer disconnected before its response: aiohttp handles this, and nothing failed here
        if is_shortage(error) or _lacks_thread(error):
            _logger.warning("%s %s: %s", request.method, request.path, error)
            text = f"out of descriptors, memory or threads ({error}): try again, or raise the limit"
            return error_response(503, "shortage", text)
        _logger.exception("%s %s failed", request.method, request.path)
        return error_response(500, "internal_error", f"{type(error).__name__}: {error}")


def _lacks_thread(error: Exception) -> bool:
    # Python raises a plain RuntimeError.
    return isinstance(error, RuntimeError) and str(error) == "can't start new thread"


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers of every response; a signal handler of aiohttp."""
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers["Server"] = "delaymq"  # hides libraries and their versions
