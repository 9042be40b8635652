"""Requests for changes, whatever their transport, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from delaymq.broker.delivery.changes.changes import Changed, Requester
from delaymq.broker.delivery.changes.fates import UNKNOWN, Fate, FateKind, fate_of
from delaymq.broker.delivery.changes.lookup import Found
from delaymq.broker.delivery.delay_rewrite import requested_level
from delaymq.broker.delivery.timed.requests import TimeRequest, delay_key, requested_time
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.record import Record
from delaymq.store.errors import StoreFailedError

if TYPE_CHECKING:
    from delaymq.broker.delivery.changes.changes import Changes
    from delaymq.broker.delivery.changes.lookup import Lookup
    from delaymq.message.levels import DelayLevels

MAX_ID_CHARACTERS: Final = 512
"""Longest unique id that is searched for; those of RocketMQ's clients have 32 characters."""
_ENDED: Final = frozenset((FateKind.CANCELLED, FateKind.REPLACED))


class Action(StrEnum):
    """Changes of pending messages (DELAY_ACTION)."""

    CANCEL = "cancel"
    MOVE = "move"
    FIRE = "fire"
    """Deliver now."""
    TOUCH = "touch"
    """Restart the delay from now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRequest:
    """A requested change of the pending message with a DELAY_KEY, or of those with a unique id: one of the two."""

    action: Action
    topic: str
    key: str | None = None
    unique_id: str | None = None
    time: TimeRequest | None = None
    """New due time of a move."""

    @property
    def target(self) -> str:
        """Description of the message."""
        name = f"{names.DELAY_KEY} {self.key!r}" if self.key is not None else f"unique id {self.unique_id!r}"
        return f"{name} in topic {self.topic}"


class Changeable(Protocol):
    """The parts of the delivery that a change needs."""

    @property
    def lookup(self) -> Lookup: ...
    @property
    def changes(self) -> Changes: ...
    @property
    def levels(self) -> DelayLevels: ...


class Outcome(NamedTuple):
    """Outcome of a request. Without a change, `fate` states why."""

    changed: list[Changed]
    fate: Fate | None
    record: Record | None
    """Record of the message; None if it is unknown."""

    def __str__(self) -> str:
        """Return a sentence."""
        return "done" if self.fate is None else str(self.fate)


def perform(delivery: Changeable, request: ChangeRequest, requester: Requester) -> Outcome:
    """Make a change. IllegalMessageError, StoreError: nothing was changed.

    Several messages can have the same unique id if a producer repeated its send. All of them are changed, up to the
    first error.
    """
    lookup = delivery.lookup
    try:
        if request.key is not None:
            found, record = lookup.pending_by_key(request.topic, request.key)
        else:
            found, record = lookup.pending_by_id(request.topic, request.unique_id or "")
        if not found:
            fate = UNKNOWN if record is None else fate_of(lookup, record)
            is_repeated = request.action is Action.CANCEL and fate.kind is FateKind.CANCELLED
            return Outcome([], None if is_repeated else fate, record)
        return Outcome([_change(delivery, request, each, requester) for each in found], None, record)
    except OSError as error:
        raise StoreFailedError(f"the index of pending messages cannot be read ({error}): restart the broker") from error


def _change(delivery: Changeable, request: ChangeRequest, found: Found, requester: Requester) -> Changed:
    changes = delivery.changes
    match request.action:
        case Action.CANCEL:
            return changes.cancel(found, requester)
        case Action.MOVE:
            assert request.time is not None
            return changes.move(found, request.time, delivery.levels, requester)
        case Action.FIRE:
            return changes.fire(found, delivery.levels, requester)
        case Action.TOUCH:
            return changes.touch(found, delivery.levels, requester)


def request_of(topic: str, properties: Mapping[str, str], levels: Callable[[], DelayLevels]) -> ChangeRequest:
    """Return the change that a message with DELAY_ACTION or TIMER_DEL_UNIQKEY requests. IllegalMessageError."""
    properties = dict(properties)
    action = _action(properties.get(names.DELAY_ACTION, Action.CANCEL))
    key, unique_id = delay_key(properties), properties.get(names.TIMER_DELETE_UNIQUE_KEY)
    if (key is None) == (unique_id is None):
        raise IllegalMessageError(
            f"{names.DELAY_ACTION}={action} needs a message: send either {names.DELAY_KEY} or the unique id in"
            f" {names.TIMER_DELETE_UNIQUE_KEY}"
        )
    if unique_id is not None and not 0 < len(unique_id) <= MAX_ID_CHARACTERS:
        raise IllegalMessageError(f"{names.TIMER_DELETE_UNIQUE_KEY} has {len(unique_id)} characters: send a unique id")
    time = _time(properties, levels) if action is Action.MOVE else None
    return ChangeRequest(action=action, topic=topic, key=key, unique_id=unique_id, time=time)


def _action(text: str) -> Action:
    try:
        return Action(text)
    except ValueError:
        raise IllegalMessageError(f"{names.DELAY_ACTION} is {text[:32]!r}: use {', '.join(Action)}") from None


def _time(properties: dict[str, str], levels: Callable[[], DelayLevels]) -> TimeRequest:
    level = requested_level(properties)
    time = TimeRequest(True, levels().delay_ms(level)) if level else requested_time(properties, 0)
    if time is None:
        raise IllegalMessageError(
            f"{names.DELAY_ACTION}=move needs a new due time: send {names.TIMER_DELIVER_MS}, {names.TIMER_DELAY_MS} or"
            f" {names.DELAY}"
        )
    return time
