"""Handler of the console's static files, with restrictive security headers."""

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
        # Message text can never become markup: browsers that support this directive reject innerHTML.
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
    # Cached, but revalidated by tag, so that an upgraded broker is never used with old scripts.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file as it is served."""

    body: bytes
    content_type: str
    tag: str
    """Hash of the body, used as `ETag`."""


class Pages:
    """The console's files, loaded by the first request."""

    def __init__(self) -> None:
        self._files: dict[str, StaticFile] | None = None
        self._loading = asyncio.Lock()

    async def page(self, request: web.Request) -> web.StreamResponse:
        """Serve `/`."""
        return await self._answer(request, PAGE)

    async def file(self, request: web.Request) -> web.StreamResponse:
        """Serve `/console/NAME`."""
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
    """Return all servable files by name; other names, including paths with dots, are not found."""
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
    """Add the console's routes at `/`."""
    pages = Pages()
    app.router.add_get("/", pages.page)
    app.router.add_get(PREFIX + "{name}", pages.file)


def is_console_path(path: str) -> bool:
    """Return whether `path` belongs to the console, which needs no token."""
    return path == "/" or path.startswith(PREFIX)
