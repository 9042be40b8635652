"""Files whose one line is a secret: a token, an account's secret key."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from delaymq.cli.errors import EXIT_USAGE, CommandError

MAX_SECRET_BYTES: Final = 4_096
"""A secret is a header's line; what is longer is another file."""


def secret_line(path: Path, what: str, should_be: str, *, encoding: str = "utf-8") -> str:
    """The line of `path`, which holds a `what` (`token`) and should be `should_be`. CommandError that says so."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise CommandError(f"the {what}'s file {path} cannot be read: {error.strerror}", EXIT_USAGE) from error
    text = data.decode(encoding, errors="replace").strip()
    if not text or len(data) > MAX_SECRET_BYTES or not text.isprintable() or "\ufffd" in text:
        raise CommandError(f"{path} holds no {what}: it should be {should_be}", EXIT_USAGE)
    return text
