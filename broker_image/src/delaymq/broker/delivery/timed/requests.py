"""Due times that clients request with properties of RocketMQ 5 or of hosted RocketMQ."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from delaymq.message import names
from delaymq.message.errors import IllegalMessageError

_NUMBER = re.compile(r"[+-]?[0-9]{1,19}\Z")
UNITS_MS: Final = {names.TIMER_DELAY_SEC: 1_000, names.TIMER_DELAY_MS: 1}
"""Units of the properties that request a delay, in ms. The others request a time."""
_MS_PER_DAY: Final = 86_400_000
OF_EARLIER_TIMERS: Final = frozenset(
    (names.TIMER_OUT_MS, names.TIMER_ENQUEUE_MS, names.TIMER_DEQUEUE_MS, names.TIMER_ROLL_TIMES)
)
"""Properties that brokers add to timed messages."""


def is_repeating(properties: Mapping[str, str]) -> bool:
    """Return whether the properties of a message request a repeating schedule."""
    return names.DELAY_CRON in properties or names.DELAY_EVERY_MS in properties


class TimeRequest(NamedTuple):
    """A requested due time."""

    is_relative: bool
    """Whether `time_ms` is a delay; otherwise, it is a time since the epoch."""
    time_ms: int

    def due_ms(self, now_ms: int) -> int:
        """Return the due time in ms."""
        return now_ms + self.time_ms if self.is_relative else self.time_ms

    def check(self, now_ms: int, max_delay_ms: int) -> None:
        """Raise IllegalMessageError if the due time is too far ahead."""
        if self.due_ms(now_ms) - now_ms > max_delay_ms:
            raise IllegalMessageError(
                f"the message would be due in {(self.due_ms(now_ms) - now_ms) // 1_000} s, and the maximum is"
                f" {max_delay_ms // 1_000} s ({max_delay_ms // _MS_PER_DAY} days, timerMaxDelaySec): choose an earlier"
                " time, in ms since the epoch for a time and in the stated unit for a delay"
            )


def requested_time(properties: dict[str, str], level: int) -> TimeRequest | None:
    """Return the due time that a message of delay level `level` (0: none) requests; None if it requests none.

    As in RocketMQ 5, a level takes precedence, then TIMER_DELAY_SEC, TIMER_DELAY_MS and TIMER_DELIVER_MS. Raises
    IllegalMessageError if the value is not a time, or if RocketMQ does not define which of two schedules applies.
    """
    if names.START_DELIVER_TIME in properties:
        _check_alone(properties, level)
    if level:
        return None
    for name in names.TIMER_PROPERTIES:
        text = properties.get(name)
        if text is not None:
            value = _number(name, text)
            unit_ms = UNITS_MS.get(name)
            return TimeRequest(False, value) if unit_ms is None else TimeRequest(True, value * unit_ms)
    return None


def _check_alone(properties: dict[str, str], level: int) -> None:
    others = [names.DELAY] * (level > 0) + [name for name in names.TIMER_PROPERTIES[:-1] if name in properties]
    if others:
        raise IllegalMessageError(
            f"the message has the property {names.START_DELIVER_TIME} next to {' and '.join(others)}: send only one of"
            " them"
        )


def _number(name: str, text: str) -> int:
    if not _NUMBER.match(text):
        raise IllegalMessageError(f"{name} is {text[:32]!r}, which is not a number of {_unit(name)}")
    value = int(text)
    if value < 0:
        raise IllegalMessageError(f"{name} is {value}: use a number of {_unit(name)} that is not negative")
    return value


def _unit(name: str) -> str:
    if name == names.TIMER_DELAY_SEC:
        return "seconds"
    return "milliseconds" if name in UNITS_MS else "milliseconds since the epoch"


MAX_KEY_BYTES: Final = 255
_EXPIRE_MS: Final = re.compile(r"[0-9]{1,15}\Z", re.ASCII)


class OnSameKey(StrEnum):
    """Treatment of a message with the DELAY_KEY of a pending message of its topic (DELAY_ON_SAME_KEY)."""

    REPLACE = "replace"
    """The pending message ends."""
    KEEP = "keep"
    """The new message is not stored, and the producer receives the response to the pending one."""
    REFUSE = "refuse"
    """The new message is rejected."""


def delay_key(properties: Mapping[str, str]) -> str | None:
    """Return the DELAY_KEY of a message with a schedule or an action; None without one. IllegalMessageError."""
    return _name(properties, names.DELAY_KEY)


def delay_group(properties: Mapping[str, str]) -> str | None:
    """Return the DELAY_GROUP of a message with a schedule or an action; None without one. IllegalMessageError."""
    return _name(properties, names.DELAY_GROUP)


def _name(properties: Mapping[str, str], name: str) -> str | None:
    text = properties.get(name)
    if text is not None and not 0 < len(text.encode("utf-8", "surrogateescape")) <= MAX_KEY_BYTES:
        raise IllegalMessageError(
            f"{name} has {len(text.encode('utf-8', 'surrogateescape'))} bytes: use 1 to {MAX_KEY_BYTES} bytes"
        )
    return text


def group_in(properties: Mapping[str, str]) -> str:
    """Return the group of a stored message; empty without one."""
    try:
        return delay_group(properties) or ""
    except IllegalMessageError:
        return ""  # an earlier version, for which the property had no meaning, stored the message


def on_same_key(properties: dict[str, str]) -> OnSameKey:
    """Return the requested treatment of a pending message with the same key. IllegalMessageError."""
    text = properties.get(names.DELAY_ON_SAME_KEY, OnSameKey.REPLACE)
    try:
        return OnSameKey(text)
    except ValueError:
        raise IllegalMessageError(f"{names.DELAY_ON_SAME_KEY} is {text[:32]!r}: use {', '.join(OnSameKey)}") from None


def check_expiry(properties: dict[str, str]) -> None:
    """Raise IllegalMessageError if DELAY_EXPIRE_MS is not a number of milliseconds."""
    if names.DELAY_EXPIRE_MS in properties and expiry_ms(properties) is None:
        text = properties[names.DELAY_EXPIRE_MS]
        raise IllegalMessageError(
            f"{names.DELAY_EXPIRE_MS} is {text[:32]!r}: use the number of milliseconds by which the message may be late"
        )


def expiry_ms(properties: dict[str, str]) -> int | None:
    """Return the lateness in ms above which a message is dropped; None if there is no such limit."""
    text = properties.get(names.DELAY_EXPIRE_MS, "")
    return int(text) if _EXPIRE_MS.match(text) else None


def drop_earlier_timer(properties: dict[str, str]) -> None:
    """Remove the properties of an earlier timer from a message that was received and is sent again.

    As in RocketMQ 5, the due time that the message requested before does not apply again.
    """
    if OF_EARLIER_TIMERS.isdisjoint(properties):
        return
    if names.TIMER_OUT_MS in properties:
        for name in (*names.TIMER_PROPERTIES, *names.SCHEDULE_PROPERTIES):
            properties.pop(name, None)
    for name in OF_EARLIER_TIMERS:
        properties.pop(name, None)


class RecallHandle(NamedTuple):
    """Content of a recall handle."""

    topic: str
    broker_name: str
    unique_key: str


def read_recall_handle(handle: str) -> RecallHandle:
    """Return the content of a recall handle. IllegalMessageError."""
    try:
        data = urlsafe_b64decode(handle.encode("ascii") + b"=" * (-len(handle) % 4))
        words = data.decode(errors="surrogateescape").split(" ")
    except (ValueError, UnicodeError):
        words = []
    if len(words) < 5 or words[0] != "v1":
        raise IllegalMessageError(f"{handle[:128]!r} is not a recall handle: pass the one of the send's response")
    return RecallHandle(words[1], " ".join(words[2:-2]), words[-1])  # a broker's name may contain spaces


def state_delay(properties: dict[str, str], delay_ms: int) -> None:
    """Replace all requests for a due time by one for a delay."""
    for name in names.TIMER_PROPERTIES:
        properties.pop(name, None)
    properties[names.TIMER_DELAY_MS] = str(delay_ms)


def recall_handle(topic: str, broker_name: str, due_ms: int, unique_key: str) -> str:
    """Return the handle by which clients of RocketMQ 5.3 name a pending message."""
    return urlsafe_b64encode(f"v1 {topic} {broker_name} {due_ms} {unique_key}".encode(errors="surrogateescape")).decode(
        "ascii"
    )
