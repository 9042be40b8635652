"""Observer `schedule` of a replica: applies the records of another broker's log to the pending messages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from delaymq.broker.delivery.recovery import Replay
from delaymq.message.errors import NewerFormError
from delaymq.store.errors import StoreError
from delaymq.store.model import Dispatched, StateFiles

if TYPE_CHECKING:
    from delaymq.broker.delivery import Delivery
    from delaymq.store.message_store import MessageStore

_logger = logging.getLogger(__name__)


class FollowedSchedule:
    """The schedule of a replica.

    The replay that ran at the start continues: it is the only interpretation of a log that another broker writes.
    """

    name = Replay.name
    concerned_topics = Replay.concerned_topics
    concerned_properties = Replay.concerned_properties

    def __init__(self, store: MessageStore, delivery: Delivery, replay: Replay, decide: Callable[[], None]) -> None:
        """`decide` is called before each snapshot, so that other observers also decide what they deferred."""
        self._store = store
        self._delivery = delivery
        self._replay = replay
        self._decide_others = decide
        self._version = store.format_version
        delivery.follow(replay)

    def dispatch(self, record: Dispatched) -> None:
        """Apply one record. If that is impossible, the store accepts nothing more until a restart, as in a master."""
        try:
            self._replay.dispatch(record)
        except (OSError, StoreError, NewerFormError) as error:
            self._delivery.fail(error)
        if self._replay.timed.version > self._version:
            self._raise_version()

    def _raise_version(self) -> None:
        """State what the log needs. If that is impossible, the next snapshot tries again: the log is authoritative."""
        self._version = self._replay.timed.version
        try:
            self._store.raise_format_version(self._version)
        except StoreError as error:
            _logger.error("state.json does not exclude older programs, which would ignore pending messages: %s", error)

    def state(self) -> object:
        """Return the state for a snapshot, which is valid for the current end of the log."""
        self.decide()
        if self._version > self._store.format_version:
            self._raise_version()
        return self._delivery.state()

    def decide(self) -> None:
        """Decide all cases that were deferred because deciding one costs as much as deciding all."""
        self._replay.timed.decide(self._delivery.reader)
        self._decide_others()

    def state_files(self) -> StateFiles | None:
        """Return the files to which the result of `state` refers."""
        return self._delivery.state_files()

    def end(self) -> None:
        """Let the delivery continue on its own."""
        self._delivery.lead(self._replay)
