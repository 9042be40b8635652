"""A monitored page of the console: log messages, requests, and names of all controls."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Locator, Request, Response, Route

NETWORK_LOG = "Failed to load resource"
"""Chromium logs responses other than 2xx and failed requests, which the page reports to users itself."""

NAMELESS = (Path(__file__).parent / "nameless.js").read_text().partition("\n")[2]
"""Script that returns every control without a name: text, label, or aria-label."""


class Watched:
    """One page in its own browser context; `options` are the context's. Close it, then read `complaints`."""

    def __init__(self, browser: Browser, origin: str, **options: Any) -> None:
        self.origin = origin
        self.complaints: list[str] = []
        self.asked: list[str] = []
        """Paths that the page requested, in order."""
        # Without a graphics card, painting animations causes most of the load.
        self._context = browser.new_context(**{"reduced_motion": "reduce", **options})
        self.page = self._context.new_page()
        self._context.route("**/*", self._guard)
        self.page.on("console", self._logged)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error in the page: {error}"))
        self.page.on("response", self._answered)
        self.page.on("request", self._requested)

    def go(self, place: str) -> None:
        """Open the console at a place, such as `#/topics`."""
        self.page.goto(f"{self.origin}/{place}")

    def sign_in(self, account: str, secret_key: str) -> None:
        """Give the page the session of an account, as if it had been signed in before."""
        keys = {"accessKey": account, "secretKey": secret_key}
        answer = self._context.request.post(f"{self.origin}/api/v1/session", data=keys)
        assert answer.ok, answer.text()

    def close(self) -> None:
        self._context.close()

    def section(self, title: str) -> Locator:
        """Return a part of the screen by its title."""
        return self.page.get_by_role("region", name=title, exact=True)

    def row(self, text: str) -> Locator:
        """Return the table row that contains this text."""
        return self.page.get_by_role("row").filter(has_text=text)

    def tile(self, name: str) -> Locator:
        """Return a figure by its name."""
        return self.page.locator(".tile").filter(has=self.page.get_by_text(name, exact=True)).locator(".tile-figure")

    def nameless(self) -> list[str]:
        """Return controls that a screen reader could not name."""
        return list(self.page.evaluate(NAMELESS))

    def is_too_wide(self) -> bool:
        """Return whether the page scrolls horizontally."""
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
