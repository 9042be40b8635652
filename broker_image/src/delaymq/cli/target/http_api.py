"""Client of a broker's HTTP API for commands, with errors that say what to do."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from delaymq.cli.errors import EXIT_NOT_DONE, EXIT_UNREACHABLE, EXIT_USAGE, CommandError
from delaymq.cli.target.contexts import Target
from delaymq.cli.target.http_sessions import SessionClient, credentials_hint
from delaymq.cli.target.https import https_options, https_problem, needs_https, needs_https_text
from delaymq.http_client import AnswerTooLargeError, HttpClient, NotSentError, Reply

TIMEOUT_S: Final = 10.0
"""Timeout of each socket operation: a response with all groups of a large broker takes seconds."""
MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024
"""1,000 levels take some 300 KiB; another program on the port must not exhaust the memory."""
SEVERAL_BROKERS: Final = "several_brokers"
"""Error code of a supervisor of several brokers, for requests that concern one of them."""
_HEADERS: Final = {"Accept": "application/json"}
NEEDS_RIGHTS: Final = ("role_needed", "permission_needed")
"""Error codes of requests that the account may not send."""
_ONLY_DELAYMQ: Final = "this command requires DelayMQ's HTTP API, which RocketMQ's broker does not have"


class ApiError(CommandError):
    """An error response of the broker: `status` of HTTP, `code` of /api/v1."""

    def __init__(self, text: str, status: int, code: str) -> None:
        super().__init__(text, EXIT_USAGE if status == 400 else EXIT_NOT_DONE)
        self.status = status
        self.code = code


class HttpApi:
    """Client of `/api/v1` of the broker at `target.http`; raises CommandError for all errors.

    Responses are returned unchanged, so that `--json` also shows members unknown to this version.
    """

    def __init__(
        self, target: Target, *, timeout_s: float = TIMEOUT_S, is_stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """If `is_stopped` returns True, no further request is sent."""
        self.url = checked_url(target.http)
        self._is_stopped = is_stopped
        self._timeout_s = timeout_s
        client = HttpClient(
            self.url,
            timeout_s=timeout_s,
            max_answer_bytes=MAX_RESPONSE_BYTES,
            uses_proxy=True,
            https=https_options(target),
        )
        self._client = SessionClient(client, target.http_account, target.token)

    def get(self, path: str, **parameters: object) -> dict[str, Any]:
        """GET `path` below /api/v1; parameters that are None are omitted."""
        return self._request("GET", path, parameters)

    def post(self, path: str, body: object = None, **parameters: object) -> dict[str, Any]:
        """POST with a JSON body."""
        return self._request("POST", path, parameters, {} if body is None else body)

    def put(self, path: str, body: object, **parameters: object) -> dict[str, Any]:
        """PUT with a JSON body."""
        return self._request("PUT", path, parameters, body)

    def delete(self, path: str, **parameters: object) -> dict[str, Any]:
        """DELETE."""
        return self._request("DELETE", path, parameters)

    def _request(self, method: str, path: str, parameters: dict[str, object], body: object = None) -> dict[str, Any]:
        if self._is_stopped():
            raise CommandError("interrupted")
        query = urlencode({name: value for name, value in parameters.items() if value is not None})
        where = f"/api/v1/{path.lstrip('/')}" + (f"?{query}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        try:
            reply = self._client.request(method, where, data, _HEADERS)
        except AnswerTooLargeError as error:
            raise CommandError(f"{error}: is it a DelayMQ broker?") from error
        except NotSentError as error:
            raise self._unreachable(error.reason) from error
        except (http.client.HTTPException, ConnectionResetError) as error:
            raise CommandError(
                f"{self.url} is not an HTTP server ({error}): specify the broker's HTTP address with --http"
                " (default port 8080)",
                EXIT_UNREACHABLE,
            ) from error
        except OSError as error:
            raise self._unreachable(error) from error
        except (ValueError, UnicodeError) as error:
            raise CommandError(f"{self.url} is not a usable address: {error}", EXIT_USAGE) from error
        if reply.status >= 300:
            raise self._refusal(reply, path)
        return _json_object(reply.data, self.url) if reply.data else {}

    def _unreachable(self, reason: object) -> CommandError:
        if isinstance(reason, ssl.SSLError):
            return CommandError(https_problem(self.url, reason), EXIT_UNREACHABLE)
        if isinstance(reason, TimeoutError):
            return CommandError(
                f"{self.url} did not respond within {self._timeout_s:g} s: is it the broker's HTTP address?",
                EXIT_UNREACHABLE,
            )
        return CommandError(
            f"cannot connect to a broker at {self.url} ({reason}): is it running? Start one with `delaymq standalone`,"
            f" or specify its HTTP address with --http; {_ONLY_DELAYMQ}.",
            EXIT_UNREACHABLE,
        )

    def _refusal(self, reply: Reply, path: str) -> CommandError:
        status, reason, code, message = reply.status, reply.reason, reply.problem.code, reply.problem.message
        if status in (401, 403):
            if code in NEEDS_RIGHTS:
                return ApiError(f"{self.url}: {message}", status, code)
            return ApiError(f"{self.url} returned {status} {reason}: {credentials_hint(code)}", status, code)
        if needs_https(reply):
            return ApiError(needs_https_text(self.url), status, code)
        if code == SEVERAL_BROKERS:
            text = f"{self.url} serves several brokers: name one of them, as in --http {self.url}/brokers/NAME"
            return ApiError(f"{text}; `delaymq cluster show` lists them", status, code)
        if not code:
            return ApiError(
                f"{self.url} returned {status} {reason} for /api/v1/{path.lstrip('/')} and is probably not a DelayMQ"
                f" broker: is --http correct? {_ONLY_DELAYMQ[0].upper()}{_ONLY_DELAYMQ[1:]}.",
                status,
                code,
            )
        if status == 404 and code == "not_found" and message.startswith(("GET ", "POST ", "PUT ", "DELETE ")):
            return ApiError(
                f"{self.url} does not support /api/v1/{path}: the broker is older than this command", status, code
            )
        return ApiError(f"{self.url} rejected the request: {message or reason} ({code})", status, code)


def _json_object(content: bytes, url: str) -> dict[str, Any]:
    """Decode a response that must be a JSON object; raise CommandError for anything else."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{url} did not return JSON: is it a DelayMQ broker?") from error
    if not isinstance(answer, dict):
        raise CommandError(f"{url} returned an unexpected response: is it a DelayMQ broker?")
    return answer


def checked_url(url: str) -> str:
    """Return `url` without a trailing slash; `host:port` means HTTP. Raises CommandError for an invalid address."""
    full = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(full)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_good = False
    if "@" in full.partition("://")[2].partition("/")[0]:
        # The address is not shown, because it probably contains a password.
        raise CommandError(
            "the HTTP address must not contain a user name or password (before an @): pass the token with --token-file",
            EXIT_USAGE,
        )
    if not is_good:
        raise CommandError(f"{url} is not an HTTP address: use one such as http://127.0.0.1:8080", EXIT_USAGE)
    return full.rstrip("/")
