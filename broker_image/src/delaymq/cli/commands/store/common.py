"""Helpers shared by the store commands: progress bars, parsing and formatting of sizes, and error messages."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from delaymq.cli.errors import EXIT_USAGE, CommandError, exit_code_of_path
from delaymq.store.errors import NotAStoreError, StoreError, WrongFolderError

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def progress(title: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr while the block runs, if stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def explain_errors(what: str, again: str) -> Iterator[None]:
    """Convert errors of the store and the disk to CommandError; `again` says what to do once disk space is freed."""
    try:
        yield
    except (NotAStoreError, WrongFolderError) as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    except StoreError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        if error.errno in _FULL:
            raise CommandError(f"{what}: disk full ({error.strerror}): free some space; {again}") from error
        shown = f" ({error.filename})" if error.filename else ""
        raise CommandError(f"{what}: {error.strerror or error}{shown}", exit_code_of_path(error)) from error


def parse_bytes(text: str, option: str) -> int:
    """Parse `64M`, `1.5G`, `500k` or plain bytes; raise CommandError with the option's name."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kKmMgG]?)(?:i?[bB])?(?:/s)?", text.strip())
    value = int(float(match[1]) * _UNITS[match[2].lower()]) if match else 0
    if value < 1:
        raise CommandError(
            f"{option}: {text!r} is not a number of bytes: use a value such as 500k, 64M or 1G", EXIT_USAGE
        )
    return value


def size(count: float) -> str:
    """Return a number of bytes in a readable unit."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
