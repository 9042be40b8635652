"""The console: one page at `/` that shows a person what the broker does.

Here: the page with its style and scripts (static/, sent as they are, no build step) and the handler that sends them.
Not here: data. The page takes all of it from /api/v1, as any program may, and with the same token. Invariants: the
files tell nothing about the broker, so they need no token; no file is read before somebody opens the page; the page may
load and ask nothing but this origin.
"""

from delaymq.server.console.pages import add_console, is_console_path

__all__ = ["add_console", "is_console_path"]
