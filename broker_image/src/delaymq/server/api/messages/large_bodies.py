"""Receiving of request bodies that contain messages, with limits on their size, their total size and their time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from delaymq.server.api.routing import ApiError
from delaymq.server.http import http_server

MAX_BODY_BYTES: Final = 6 * 1024 * 1024
"""Maximum size of one request body, enough for a message of 4 MiB in Base64 with its properties."""
MAX_TOTAL_BYTES: Final = 32 * 1024 * 1024
"""Maximum total size of the bodies of concurrent requests; further requests get 503."""


class LargeBodies:
    """Receives request bodies and counts their bytes until they are processed."""

    def __init__(self) -> None:
        self._total_bytes = 0

    @asynccontextmanager
    async def receive(self, request: web.Request) -> AsyncIterator[bytes]:
        """Receive the body, which counts until the end of the block. Raises ApiError 400, 408, 413 or 503."""
        parts: list[bytes] = []
        size = 0
        try:
            try:
                async with asyncio.timeout(http_server.BODY_TIMEOUT_S):
                    async for part in request.content.iter_any():
                        parts.append(part)
                        size += len(part)
                        self._total_bytes += len(part)
                        self._check(size)
            except web.RequestPayloadError:
                raise ApiError(400, "bad_request", http_server.NOT_ENCODED) from None
            except TimeoutError:
                raise ApiError(408, "request_timeout", http_server.late_body()) from None
            yield b"".join(parts)
        finally:
            self._total_bytes -= size

    def _check(self, size: int) -> None:
        if size > MAX_BODY_BYTES:
            raise ApiError(413, "request_entity_too_large", f"the request body exceeds {MAX_BODY_BYTES} bytes")
        if self._total_bytes > MAX_TOTAL_BYTES:
            raise ApiError(
                503, "busy", f"the bodies of the current requests exceed {MAX_TOTAL_BYTES} bytes in total: try again"
            )
