"""Files whose only line is a secret: a token or an account's secret key."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from delaymq.cli.errors import EXIT_USAGE, CommandError

MAX_SECRET_BYTES: Final = 4_096
"""Limit of a secret, which must fit into a header line; a longer file is a wrong one."""


def secret_line(path: Path, what: str, should_be: str, *, encoding: str = "utf-8") -> str:
    """Return the only line of `path`.

    `what` (`token`) and `should_be` describe the expected content in errors. Raises CommandError.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise CommandError(f"cannot read the {what} file {path}: {error.strerror}", EXIT_USAGE) from error
    text = data.decode(encoding, errors="replace").strip()
    if not text or len(data) > MAX_SECRET_BYTES or not text.isprintable() or "\ufffd" in text:
        raise CommandError(f"{path} does not contain a {what}: the file must contain {should_be}", EXIT_USAGE)
    return text
