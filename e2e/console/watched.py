"""A monitored page of the console: log messages, requests, and names of all controls."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Locator, Request, Response, Route

NETWORK_LOG = "Failed to load resource"
"""Chromium logs an answer that is no 2xx, and one that did not come; the page tells those to people itself."""

NAMELESS = (Path(__file__).parent / "nameless.js").read_text().partition("\n")[2]
"""Tells every control without a name: text, label, or aria-label."""


class Watched:
    """One page in a browser context of its own; `options` are the context's. Close it, then read `complaints`."""

    def __init__(self, browser: Browser, origin: str, **options: Any) -> None:
        self.origin = origin
        self.complaints: list[str] = []
        self.asked: list[str] = []
        """Paths that the page asked for, in order."""
        # Painting what moves is most of the work of a machine without a graphics card.
        self._context = browser.new_context(**{"reduced_motion": "reduce", **options})
        self.page = self._context.new_page()
        self._context.route("**/*", self._guard)
        self.page.on("console", self._logged)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error in the page: {error}"))
        self.page.on("response", self._answered)
        self.page.on("request", self._requested)

    def go(self, place: str) -> None:
        """Opens the console at a place, such as `#/topics`."""
        self.page.goto(f"{self.origin}/{place}")

    def close(self) -> None:
        self._context.close()

    def section(self, title: str) -> Locator:
        """A part of the screen by its title."""
        return self.page.get_by_role("region", name=title, exact=True)

    def row(self, text: str) -> Locator:
        """The row of a table that has this text."""
        return self.page.get_by_role("row").filter(has_text=text)

    def tile(self, name: str) -> Locator:
        """A figure by its name."""
        return self.page.locator(".tile").filter(has=self.page.get_by_text(name, exact=True)).locator(".tile-figure")

    def nameless(self) -> list[str]:
        """What a screen reader could not name here."""
        return list(self.page.evaluate(NAMELESS))

    def is_too_wide(self) -> bool:
        """Whether the page scrolls sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))

    def _guard(self, route: Route) -> None:
        if route.request.url.startswith(f"{self.origin}/"):
            route.continue_()
        else:
            self.complaints.append(f"asked for {route.request.url}")
            route.abort()

    def _requested(self, request: Request) -> None:
        self.asked.append(urlsplit(request.url).path)

    def _answered(self, response: Response) -> None:
        if response.status in (400, 500):
            self.complaints.append(f"{response.status} for {response.request.method} {response.url}")

    def _logged(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(NETWORK_LOG):
            self.complaints.append(f"{message.type} in the log: {message.text}")
