"""Telling the members of a consumer group that others came or went, so that they share its queues anew."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from delaymq.broker.groups.consumer_group import ConsumerGroup
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, request_command

# Members of a larger group hear of changes from `notify_some`, once for all that changed meanwhile: of a thousand that
# come back each would otherwise have all others told.
MAX_NOTIFIED_AT_ONCE: Final = 16


class ChangeNotifier:
    """What is still to be told. `may_notify(group)`: whether members of the group want to hear of it."""

    def __init__(self, groups: Mapping[str, ConsumerGroup], may_notify: Callable[[str], bool]) -> None:
        self._groups = groups
        self._may_notify = may_notify
        self._changed: dict[str, None] = {}
        self._untold: deque[tuple[str, int]] = deque()
        """Group and session id of members that are still to be told."""

    def notify(self, group: ConsumerGroup) -> None:
        """Tells the members of `group` now, or those of a large one soon."""
        if len(group.members) > MAX_NOTIFIED_AT_ONCE:
            self._changed[group.name] = None
        elif self._may_notify(group.name):
            for client in list(group.members.values()):
                client.session.notify(_changed(group.name))

    def notify_some(self, budget: int) -> None:
        """Tells up to `budget` members of large groups; to be called again and again."""
        if not self._untold:
            for name in self._changed:
                group = self._groups.get(name)
                if group is not None and self._may_notify(name):
                    self._untold.extend((name, session_id) for session_id in group.members)
            self._changed.clear()
        while self._untold and budget > 0:
            budget -= 1
            name, session_id = self._untold.popleft()
            group = self._groups.get(name)
            client = group.members.get(session_id) if group is not None else None
            if client is not None:
                client.session.notify(_changed(name))


def _changed(group: str) -> Command:
    return request_command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}, oneway=True)
