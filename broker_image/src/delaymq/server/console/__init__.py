"""Web console of the broker: a single page at `/`.

Here: the page with its styles and scripts (static/, served unchanged, without a build step) and their handler. Not
here: data, which the page reads from /api/v1 with the token like any other client. Invariants: the files contain no
data about the broker, so they need no token; they are read when the page is first opened; the page accesses only this
origin.
"""

from delaymq.server.console.pages import add_console, is_console_path

__all__ = ["add_console", "is_console_path"]
