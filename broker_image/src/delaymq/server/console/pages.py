"""Sends the console's files, with the headers that keep a browser from doing more with them than they ask for."""

import asyncio
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

STATIC_PATH: Final = Path(__file__).parent / "static"
PREFIX: Final = "/console/"
PAGE: Final = "index.html"
CONTENT_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # Text of a message can never become markup: a browser that knows this refuses innerHTML altogether.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Kept, but asked for each time by its tag: an upgraded broker never meets the scripts of the one before.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file as it is sent."""

    body: bytes
    content_type: str
    tag: str
    """Hash of the body, for `ETag`."""


class Pages:
    """The console's files, read at the first request."""

    def __init__(self) -> None:
        self._files: dict[str, StaticFile] | None = None
        self._loading = asyncio.Lock()

    async def page(self, request: web.Request) -> web.StreamResponse:
        """`/`."""
        return await self._answer(request, PAGE)

    async def file(self, request: web.Request) -> web.StreamResponse:
        """`/console/NAME`."""
        return await self._answer(request, request.match_info["name"])

    async def _answer(self, request: web.Request, name: str) -> web.StreamResponse:
        found = (await self._all()).get(name)
        if found is None:
            raise web.HTTPNotFound
        headers = {**HEADERS, "ETag": f'W/"{found.tag}"'}
        if any(tag.value in (found.tag, "*") for tag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        response = web.Response(body=found.body, headers={**headers, "Content-Type": found.content_type})
        response.enable_compression()
        return response

    async def _all(self) -> dict[str, StaticFile]:
        async with self._loading:
            if self._files is None:
                self._files = await asyncio.get_running_loop().run_in_executor(None, load)
        return self._files


def load(path: Path = STATIC_PATH) -> dict[str, StaticFile]:
    """All files that may be sent, by name: a name that is not among them leads nowhere, whatever dots it has."""
    return {
        each.name: StaticFile(
            body=(body := each.read_bytes()),
            content_type=CONTENT_TYPES[each.suffix],
            tag=hashlib.sha256(body).hexdigest()[:16],
        )
        for each in sorted(path.iterdir())
        if each.suffix in CONTENT_TYPES
    }


def add_console(app: web.Application) -> None:
    """Puts the console at `/`."""
    pages = Pages()
    app.router.add_get("/", pages.page)
    app.router.add_get(PREFIX + "{name}", pages.file)


def is_console_path(path: str) -> bool:
    """Whether `path` is one of the files, which need no token."""
    return path == "/" or path.startswith(PREFIX)
