"""A broker's HTTP interface, as commands use it: one small client with limits, and errors that say what to do."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final

from delaymq.cli.errors import EXIT_NOT_DONE, EXIT_UNREACHABLE, EXIT_USAGE, CommandError
from delaymq.cli.target.contexts import Target

TIMEOUT_S: Final = 10.0
"""For each wait on the socket: an answer over all groups of a large broker takes seconds."""
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""1,000 levels need some 300 KiB; another program on the port must not fill the memory."""
MAX_ERROR_BYTES: Final = 64 * 1024
_ONLY_OURS: Final = "this needs DelayMQ's HTTP interface, which RocketMQ's own broker does not have"


class ApiError(CommandError):
    """The broker's answer is an error: `status` of HTTP, `code` of /api/v1."""

    def __init__(self, text: str, status: int, code: str) -> None:
        super().__init__(text, EXIT_USAGE if status == 400 else EXIT_NOT_DONE)
        self.status = status
        self.code = code


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would take the token to another host."""

    def redirect_request(self, *_: object) -> None:
        return None


class HttpApi:
    """Requests to `/api/v1` of the broker at `target.http`. CommandError for everything that goes wrong."""

    def __init__(self, target: Target, *, timeout_s: float = TIMEOUT_S) -> None:
        self.url = checked_url(target.http)
        self._token = target.token
        self._timeout_s = timeout_s
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if urllib.parse.urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1"):
            handlers.append(urllib.request.ProxyHandler({}))  # no proxy leads back to this machine
        self._opener = urllib.request.build_opener(*handlers)

    def get(self, path: str, **parameters: object) -> dict[str, Any]:
        """GET `path` below /api/v1; parameters that are None are left out."""
        return self._ask("GET", path, parameters)

    def post(self, path: str, body: object = None, **parameters: object) -> dict[str, Any]:
        """POST with a JSON body."""
        return self._ask("POST", path, parameters, {} if body is None else body)

    def put(self, path: str, body: object, **parameters: object) -> dict[str, Any]:
        """PUT with a JSON body."""
        return self._ask("PUT", path, parameters, body)

    def delete(self, path: str, **parameters: object) -> dict[str, Any]:
        """DELETE."""
        return self._ask("DELETE", path, parameters)

    def _ask(self, method: str, path: str, parameters: dict[str, object], body: object = None) -> dict[str, Any]:
        query = urllib.parse.urlencode({name: value for name, value in parameters.items() if value is not None})
        url = f"{self.url}/api/v1/{path.lstrip('/')}" + (f"?{query}" if query else "")
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            request = urllib.request.Request(url, data=data, headers=headers, method=method)
            with self._opener.open(request, timeout=self._timeout_s) as response:
                content = response.read(MAX_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error, path) from error
        except (http.client.HTTPException, ConnectionResetError) as error:
            raise CommandError(
                f"{self.url} does not speak HTTP ({error}): name the broker's HTTP address with --http"
                " (default port 8080)",
                EXIT_UNREACHABLE,
            ) from error
        except (urllib.error.URLError, OSError) as error:
            raise self._nobody(getattr(error, "reason", error)) from error
        except (ValueError, UnicodeError) as error:
            raise CommandError(f"{self.url} is not an address that can be asked: {error}", EXIT_USAGE) from error
        return self._content(content)

    def _content(self, content: bytes) -> dict[str, Any]:
        if not content:
            return {}
        if len(content) > MAX_ANSWER_BYTES:
            raise CommandError(f"{self.url} answers more than {MAX_ANSWER_BYTES} bytes: is it a DelayMQ broker?")
        return json_object(content, self.url)

    def _nobody(self, reason: object) -> CommandError:
        if isinstance(reason, TimeoutError):
            return CommandError(
                f"{self.url} did not answer within {self._timeout_s:g} s: is it the broker's HTTP address?",
                EXIT_UNREACHABLE,
            )
        return CommandError(
            f"no broker at {self.url} ({reason}): is it running? Start one with `delaymq standalone`,"
            f" or name its HTTP address with --http; {_ONLY_OURS}.",
            EXIT_UNREACHABLE,
        )

    def _refusal(self, error: urllib.error.HTTPError, path: str) -> CommandError:
        code, message = _told_by(error)
        status = error.code
        if status in (401, 403):
            hint = "give the broker's httpToken in a file with --token-file, or in DELAYMQ_HTTP_TOKEN"
            return ApiError(f"{self.url} answers {status} {error.reason}: {hint}", status, code)
        if not code:
            return ApiError(
                f"{self.url} answers {status} {error.reason} to /api/v1/{path.lstrip('/')}, and not as a DelayMQ broker"
                f" does: is --http right? {_ONLY_OURS[0].upper()}{_ONLY_OURS[1:]}.",
                status,
                code,
            )
        if status == 404 and code == "not_found" and message.startswith(("GET ", "POST ", "PUT ", "DELETE ")):
            return ApiError(f"{self.url} has no /api/v1/{path}: the broker is older than this command", status, code)
        return ApiError(f"{self.url} refuses: {message or error.reason} ({code})", status, code)


def _told_by(error: urllib.error.HTTPError) -> tuple[str, str]:
    try:
        return error_of(error.read(MAX_ERROR_BYTES))
    except (OSError, http.client.HTTPException):
        return "", ""


def error_of(data: bytes) -> tuple[str, str]:
    """Code and message of an error's body; empty where it is not ours."""
    try:
        told = json.loads(data)["error"]
        return str(told["code"]), str(told["message"])
    except (ValueError, RecursionError, KeyError, TypeError):
        return "", ""


def json_object(content: bytes, url: str, expected: str = "expected") -> dict[str, Any]:
    """The object that an answer is. CommandError for anything else."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{url} answers no JSON: is it a DelayMQ broker?") from error
    if not isinstance(answer, dict):
        raise CommandError(f"{url} answers something else than {expected}: is it a DelayMQ broker?")
    return answer


def checked_url(url: str) -> str:
    """`url` without a closing slash; `host:port` is taken for HTTP. CommandError for what is no HTTP address."""
    full = url if "://" in url else f"http://{url}"
    try:
        parts = urllib.parse.urlsplit(full)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_good = False
    if "@" in full.partition("://")[2].partition("/")[0]:
        # Not shown: what stands there is a password most likely.
        raise CommandError(
            "an HTTP address has no name and password before an @: give the token with --token-file", EXIT_USAGE
        )
    if not is_good:
        raise CommandError(f"{url} is not an HTTP address: write one such as http://127.0.0.1:8080", EXIT_USAGE)
    return full.rstrip("/")
