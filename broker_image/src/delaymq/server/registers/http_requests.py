"""HTTP requests of the registers: sent once, with a deadline, and with a limit on the response. To be imported lazily.

aiohttp automatically repeats idempotent requests when a connection ends without a response. `_single_attempt` prevents
this, because a write that is repeated is rejected with a conflict although it took place.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final, NamedTuple

import aiohttp
import msgspec

MAX_BODY_BYTES: Final = 2 << 20
"""The API server limits an object to about 1.5 MiB."""
_HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "delaymq"}


class RequestError(Exception):
    """There is no complete response; the text says why. The request may have taken effect."""


class Reply(NamedTuple):
    """A complete response."""

    status: int
    content_type: str
    body: bytes

    def json(self) -> object:
        """Return the decoded body. Raises RequestError if it is not JSON."""
        if self.content_type != "application/json":
            raise RequestError(f"the response has the content type {self.content_type[:100]!r}, not application/json")
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise RequestError(f"the response is not JSON: {error}") from error


class HttpRequests:
    """Persistent connections to a few servers."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit_per_host=2, limit=16),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None),
            auto_decompress=False,
            headers=_HEADERS,
        )

    async def send(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        tls: ssl.SSLContext | None,
        body: bytes | None = None,
        headers: Mapping[str, str],
        is_read: bool,
    ) -> Reply:
        """Send a request, once unless it is a read. Redirects are not followed. Raises RequestError."""
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    return await self._send_once(method, url, tls, body, headers)
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                    # The server may have closed an idle connection.
                    if not is_read or isinstance(error, aiohttp.ClientConnectorError):
                        raise
                return await self._send_once(method, url, tls, body, headers)
        except TimeoutError as error:
            raise RequestError(f"no response within {timeout_s:.1f} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise RequestError(str(error)[:300] or type(error).__name__) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def _send_once(
        self, method: str, url: str, tls: ssl.SSLContext | None, body: bytes | None, headers: Mapping[str, str]
    ) -> Reply:
        async with self._session.request(
            method,
            url,
            data=body,
            headers=headers,
            ssl=tls if tls is not None else True,
            allow_redirects=False,
            middlewares=(_single_attempt(),),
        ) as response:
            return Reply(response.status, response.content_type, await _limited(response))


def _single_attempt() -> aiohttp.ClientMiddlewareType:
    """Return a middleware that lets a single request pass, and fails the repetition."""
    sent = False

    async def middleware(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        nonlocal sent
        if sent:
            raise aiohttp.ServerDisconnectedError("the connection ended without a response")
        sent = True
        return await handler(request)

    return middleware


async def _limited(response: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > MAX_BODY_BYTES:
            response.close()
            raise RequestError(f"the response exceeds {MAX_BODY_BYTES} bytes")
    return bytes(data)
