"""Notification of a consumer group's members that its membership changed, so that they rebalance."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from delaymq.broker.groups.consumer_group import ConsumerGroup
from delaymq.protocol.codes import RequestCode
from delaymq.protocol.command import Command, request_command

MAX_NOTIFIED_AT_ONCE: Final = 16
"""Members of larger groups are notified by `notify_some`, once for all changes. Otherwise each of a thousand returning
members would cause a thousand notifications.
"""


class ChangeNotifier:
    """Pending notifications. `may_notify(group)` states whether the members of a group want them."""

    def __init__(self, groups: Mapping[str, ConsumerGroup], may_notify: Callable[[str], bool]) -> None:
        self._groups = groups
        self._may_notify = may_notify
        self._changed: dict[str, None] = {}
        self._untold: deque[tuple[str, int]] = deque()
        """Group and session id of members that are yet to be notified."""

    def notify(self, group: ConsumerGroup) -> None:
        """Notify the members of `group` now, or those of a large group soon."""
        if len(group.members) > MAX_NOTIFIED_AT_ONCE:
            self._changed[group.name] = None
        elif self._may_notify(group.name):
            for client in list(group.members.values()):
                client.session.notify(_changed(group.name))

    def notify_some(self, budget: int) -> None:
        """Notify up to `budget` members of large groups. Call it repeatedly."""
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
