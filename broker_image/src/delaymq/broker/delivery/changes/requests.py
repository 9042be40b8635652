"""Requests for changes, whatever their transport, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from delaymq.broker.delivery.changes.appending import Stated
from delaymq.broker.delivery.changes.changes import Changed, Requester
from delaymq.broker.delivery.changes.fates import UNKNOWN, Fate, FateKind, fate_of
from delaymq.broker.delivery.delay_rewrite import requested_level
from delaymq.broker.delivery.reader import Found
from delaymq.broker.delivery.repeating.schedules import check_no_schedule
from delaymq.broker.delivery.timed.requests import TimeRequest, delay_group, delay_key, requested_time
from delaymq.message import names
from delaymq.message.errors import IllegalMessageError
from delaymq.message.record import Record
from delaymq.message.timed_marks import GroupMarkKind
from delaymq.store.errors import StoreFailedError

if TYPE_CHECKING:
    from delaymq.broker.delivery.changes.changes import Changes
    from delaymq.broker.delivery.changes.groups import GroupChanges
    from delaymq.broker.delivery.changes.lookup import Lookup
    from delaymq.broker.delivery.changes.pauses import Pauses
    from delaymq.message.levels import DelayLevels
    from delaymq.schedule.timeline import Timeline

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
    PAUSE = "pause"
    """Deliver no messages of a group or topic until they are resumed."""
    RESUME = "resume"


_PAUSES: Final = frozenset((Action.PAUSE, Action.RESUME))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRequest:
    """A requested change of the pending message with a DELAY_KEY, of those with a unique id, or of those of a group.

    One of the three is named. Pauses name a group, or nothing for the whole topic.
    """

    action: Action
    topic: str
    key: str | None = None
    unique_id: str | None = None
    group: str | None = None
    time: TimeRequest | None = None
    """New due time of a move."""

    @property
    def target(self) -> str:
        """Description of the messages."""
        if self.key is not None:
            return f"the message with {names.DELAY_KEY} {self.key!r} in topic {self.topic}"
        if self.unique_id is not None:
            return f"the message with unique id {self.unique_id!r} in topic {self.topic}"
        if self.group is not None:
            return f"the messages with {names.DELAY_GROUP} {self.group!r} in topic {self.topic}"
        return f"topic {self.topic}"


class Changeable(Protocol):
    """The parts of the delivery that a change needs."""

    @property
    def lookup(self) -> Lookup: ...
    @property
    def changes(self) -> Changes: ...
    @property
    def group_changes(self) -> GroupChanges: ...
    @property
    def pauses(self) -> Pauses: ...
    @property
    def levels(self) -> DelayLevels: ...
    @property
    def timeline(self) -> Timeline: ...
    def wake(self) -> None: ...


class Outcome(NamedTuple):
    """Outcome of a request. Without a change, `fate` states why."""

    changed: list[Changed]
    fate: Fate | None
    record: Record | None
    """Record of the message; None if it is unknown."""

    @property
    def messages(self) -> int:
        """Number of changed messages; with a pause, number of pending messages to which it applies."""
        return sum(each.messages for each in self.changed)

    @property
    def end(self) -> int | None:
        """Physical offset up to which the log must be on disk for the change to be safe.

        None: up to its present end, because an earlier request made the change, and its mark may not be on disk yet.
        """
        return max((each.end for each in self.changed), default=0) or None

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
        if request.action in _PAUSES:
            return _pause(delivery, request, requester)
        if request.group is not None:
            return _change_group(delivery, request, request.group, requester)
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
    raise AssertionError(request.action)


def _change_group(delivery: Changeable, request: ChangeRequest, group: str, requester: Requester) -> Outcome:
    changes, topic, changed = delivery.group_changes, request.topic, None
    match request.action:
        case Action.CANCEL:
            changed = changes.cancel(topic, group, requester)
        case Action.MOVE:
            assert request.time is not None
            changed = changes.move(topic, group, request.time, requester)
        case Action.FIRE:
            changed = changes.fire(topic, group, requester)
    if changed is not None:
        return Outcome([changed], None, None)
    newest = next(delivery.lookup.group_marks(topic, group), None)
    is_repeated = newest is not None and newest[1].kind is GroupMarkKind.CANCELLED and request.action is Action.CANCEL
    return Outcome([], None if is_repeated else UNKNOWN, None)


def _pause(delivery: Changeable, request: ChangeRequest, requester: Requester) -> Outcome:
    topic, group = request.topic, request.group or ""
    change = delivery.pauses.pause if request.action is Action.PAUSE else delivery.pauses.resume
    stated = change(topic, group, requester) or Stated(0, 0)
    partitions = delivery.timeline.partitions
    totals = partitions.totals_of_group(topic, group) if group else partitions.totals(topic)
    kind = GroupMarkKind.PAUSED if request.action is Action.PAUSE else GroupMarkKind.RESUMED
    delivery.wake()
    return Outcome([Changed(kind, None, None, stated.place, stated.end, totals.messages)], None, None)


def request_of(topic: str, properties: Mapping[str, str], levels: Callable[[], DelayLevels]) -> ChangeRequest:
    """Return the change that a message with DELAY_ACTION or TIMER_DEL_UNIQKEY requests. IllegalMessageError."""
    properties = dict(properties)
    action = _action(properties.get(names.DELAY_ACTION, Action.CANCEL))
    check_no_schedule(properties, f"{names.DELAY_ACTION}={action}")
    key, unique_id = delay_key(properties), properties.get(names.TIMER_DELETE_UNIQUE_KEY)
    group = delay_group(properties)
    check_names(action, key is not None, unique_id is not None, group is not None)
    if unique_id is not None and not 0 < len(unique_id) <= MAX_ID_CHARACTERS:
        raise IllegalMessageError(f"{names.TIMER_DELETE_UNIQUE_KEY} has {len(unique_id)} characters: send a unique id")
    time = _time(properties, levels) if action is Action.MOVE else None
    return ChangeRequest(action=action, topic=topic, key=key, unique_id=unique_id, group=group, time=time)


def check_names(action: Action, *named: bool) -> None:
    """Raise IllegalMessageError unless an action applies to what is named: by key, by unique id, or by group."""
    has_key, has_id, has_group = named
    if action in _PAUSES:
        if has_key or has_id:
            raise IllegalMessageError(
                f"{action} applies to a group or to a topic: name {names.DELAY_GROUP}, or neither a message nor a group"
            )
    elif sum(named) != 1:
        raise IllegalMessageError(
            f"{action} needs a message or a group: name exactly one of {names.DELAY_KEY}, the unique id"
            f" ({names.TIMER_DELETE_UNIQUE_KEY}) and {names.DELAY_GROUP}"
        )
    elif has_group and action is Action.TOUCH:
        raise IllegalMessageError(f"touch applies to single messages: use move for those of a {names.DELAY_GROUP}")


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
