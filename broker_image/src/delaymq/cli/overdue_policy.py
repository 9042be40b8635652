"""`--overdue`: policy for delayed messages that came due while deliveries were stopped."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from delaymq.cli.errors import EXIT_USAGE, CommandError

MAX_SPREAD_MS: Final = 30 * 86_400_000
"""The broker's own limit."""
_TIMES_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_CHOICES: Final = "deliver, spread=DURATION (such as spread=30m), {shift}drop, or pause"


@dataclass(frozen=True, kw_only=True)
class OverduePolicy:
    """A parsed `--overdue` option."""

    what: str
    """`deliver`, `spread`, `shift`, `drop` or `pause`."""
    over_ms: int = 0
    """Duration of `spread`, in ms."""


def parse_overdue(text: str, *, may_shift: bool = False) -> OverduePolicy:
    """Parse the option's value; raise CommandError if it is invalid."""
    what, _, duration = text.partition("=")
    if (what in ("deliver", "drop", "pause") or (what == "shift" and may_shift)) and not duration:
        return OverduePolicy(what=what)
    if what == "spread" and duration:
        return OverduePolicy(what=what, over_ms=_duration_ms(duration))
    choices = _CHOICES.format(shift="shift, " if may_shift else "")
    raise CommandError(f"--overdue: {text!r} is invalid: use {choices}", EXIT_USAGE)


def _duration_ms(text: str) -> int:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*(ms|s|m|h|d)", text.strip())
    value = int(float(match[1]) * _TIMES_MS[match[2]]) if match else 0
    if not 1 <= value <= MAX_SPREAD_MS:
        raise CommandError(
            f"--overdue: {text!r} is not a duration: use one such as 90s, 30m or 2h, at most 30d", EXIT_USAGE
        )
    return value
