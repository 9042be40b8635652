"""Delays and due times that callers request, and the properties by which a broker receives them."""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

import msgspec

from delaymq.client.errors import NoSuchDelayError
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError

Delay: TypeAlias = str | int | float | timedelta
"""A string such as `1500ms`, `5s` or `1.5h`, a number of seconds, or a timedelta."""
MAX_HANDLE_CHARACTERS: Final = 4_096
_DELAY: Final = re.compile(r"(\d{1,12})(?:\.(\d{1,12}))?(ms|s|m|h|d)\Z", re.ASCII)
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MILLISECOND: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN_CHARACTERS: Final = 60
_NUMBER: Final = re.compile(r"\d{1,18}\Z", re.ASCII)


class Schedule(msgspec.Struct, frozen=True):
    """Requested time of a delivery: a delay by the broker's clock, or a due time. Exactly one of them is set."""

    delay_ms: int | None = None
    """More than 0."""
    due_ms: int | None = None
    """In ms since 1970."""

    @property
    def timer_property(self) -> tuple[str, str]:
        """Name and value of the property that requests it."""
        if self.delay_ms is not None:
            return names.TIMER_DELAY_MS, str(self.delay_ms)
        return names.TIMER_DELIVER_MS, str(self.due_ms)


def delay_in_ms(delay: object) -> int:
    """Return a `Delay` in milliseconds, 0 or more, rounded up. NoSuchDelayError if it is invalid."""
    length: object = delay
    if isinstance(delay, str):
        length = _parsed(delay)
    elif isinstance(delay, int | float) and not isinstance(delay, bool):
        try:
            length = timedelta(seconds=delay)
        except (OverflowError, ValueError) as error:  # too large, or not a number
            raise NoSuchDelayError(f"{_shown(delay)} s is not a valid delay: {error}") from error
    if not isinstance(length, timedelta):
        raise NoSuchDelayError(
            f"{_shown(delay)} is not a valid delay: use a string such as '5s', a number of seconds or a timedelta"
        )
    if length < timedelta(0):
        raise NoSuchDelayError(f"{_shown(delay)} is not a valid delay: it must not be negative")
    return -(-length // _MILLISECOND)


def due_in_ms(at: object) -> int:
    """Return a due time in ms since 1970, rounded up. IllegalMessageError unless it is an aware datetime."""
    if not isinstance(at, datetime):
        raise IllegalMessageError(
            f"{_shown(at)} is not a due time: use a datetime with a time zone, such as"
            " datetime(2027, 1, 1, 9, tzinfo=timezone.utc)"
        )
    if at.utcoffset() is None:
        raise IllegalMessageError(
            f"the due time {at} has no time zone: use at.astimezone() for local time, or at.replace(tzinfo=...)"
        )
    if at < _EPOCH:
        raise IllegalMessageError(f"the due time {at} is before 1970: use a later one")
    return -((_EPOCH - at) // _MILLISECOND)


def due_of_handle(handle: str | None) -> int | None:
    """Return the due time in a recall handle in ms since 1970; None if there is none or it is invalid.

    A handle is `v1 TOPIC BROKERNAME DUE_MS UNIQ_KEY` in URL-safe base64 with padding, as in RocketMQ 5.
    """
    words = _words_of_handle(handle)
    return int(words[-2]) if words is not None else None


def unique_id_of_handle(handle: str | None) -> str | None:
    """Return the unique id in a recall handle; None if there is none or it is invalid."""
    words = _words_of_handle(handle)
    return words[-1] if words is not None else None


def _words_of_handle(handle: str | None) -> list[str] | None:
    if handle is None or len(handle) > MAX_HANDLE_CHARACTERS:
        return None
    try:
        words = base64.b64decode(handle.encode(), altchars=b"-_", validate=True).decode().split(" ")
    except (binascii.Error, UnicodeError):
        return None
    # Counted from the end, since the broker's name may contain spaces.
    return words if len(words) >= 5 and words[0] == "v1" and _NUMBER.match(words[-2]) is not None else None


def _parsed(text: str) -> timedelta:
    match = _DELAY.match(text)
    if match is None:
        raise NoSuchDelayError(
            f"{_shown(text)} is not a delay: use a number and ms, s, m, h or d, such as 1500ms, 30s or 1.5h"
        )
    whole, decimals, unit = match[1], match[2] or "", match[3]
    # In whole numbers, since a float would round a delay of 0.1 s up to 101 ms.
    delay_ms = -(-int(whole + decimals) * _UNIT_MS[unit] // 10 ** len(decimals))
    try:
        return timedelta(milliseconds=delay_ms)
    except OverflowError:
        raise NoSuchDelayError(f"{_shown(text)} is not a delay: it is out of range, use a shorter one") from None


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python converts
        return f"this {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
