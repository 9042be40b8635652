"""Tables of HTTP routes: changes with their actions and the names of what they change, and all others."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from delaymq.server.http.guard import SESSION_PATH
from delaymq.server.http.responses import READING_METHODS

MAX_BODY_BYTES: Final = 64 * 1024
"""Longer bodies are not read for a line; only resends have some."""

Key = tuple[str, str]
"""Method and path template."""


@dataclass(frozen=True, slots=True)
class RouteChange:
    """A route that changes something."""

    action: str
    members: Mapping[str, str]
    """Members of the body that name what is changed, with their kinds."""
    action_member: str = ""
    """Member of the body that states the action, after a dot."""


def _change(action: str, action_member: str = "", **members: str) -> RouteChange:
    return RouteChange(action, members, action_member)


CHANGES: Final[Mapping[Key, RouteChange]] = {
    ("POST", SESSION_PATH): _change("session.sign-in"),
    ("DELETE", SESSION_PATH): _change("session.sign-out"),
    ("PUT", "/api/v1/log-level"): _change("log-level.set", level="level"),
    ("POST", "/api/v1/drain"): _change("broker.drain", mode="mode"),
    ("POST", "/api/v1/decommission"): _change("broker.decommission"),
    ("POST", "/api/v1/replication/switchover"): _change("replica.switchover", target="member"),
    ("POST", "/api/v1/replication/promote"): _change("replica.promote"),
    ("POST", "/api/v1/replication/prepare-detach"): _change("replica.prepare-detach"),
    ("POST", "/api/v1/replication/detach"): _change("replica.detach", member="member"),
    ("POST", "/api/v1/deadletters/{group}/resend"): _change("deadletter.resend"),
    ("POST", "/api/v1/offsets/forget"): _change("offset.forget"),
    ("POST", "/api/v1/delay/changes"): _change("delay", "action", topic="topic", key="key", id="id", group="group"),
    ("PUT", "/api/v1/delay/settings/topics/{topic}"): _change("delay.settings"),
    ("PUT", "/api/v1/delay/settings/accounts/{account}"): _change("delay.settings"),
    ("POST", "/api/v1/delay/pause"): _change("delay.pause"),
    ("POST", "/api/v1/delay/resume"): _change("delay.resume", overdue="overdue"),
    ("POST", "/api/v1/store/pins"): _change("store.pin", holder="holder"),
    ("DELETE", "/api/v1/store/pins/{holder}"): _change("store.unpin"),
}
"""Changes by method and path."""

OTHERS: Final[Mapping[Key, str]] = {
    (
        "POST",
        "/api/v1/topics/{topic}/messages",
    ): "a message, as those of producers",
}
"""Routes that change something and are not audited, with the reason. Requests with GET change nothing."""

_ACTION: Final = re.compile("[a-z]{1,16}")


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(template)))


_PATTERNS: Final = {key: _pattern(key[1]) for key in CHANGES}


def change_at(method: str, path: str) -> tuple[Key, dict[str, str]] | None:
    """Return the changing route of a decoded path, and the names in the path. None: it is not one."""
    if method in READING_METHODS:
        return None
    for key, pattern in _PATTERNS.items():
        if key[0] == method and (found := pattern.fullmatch(path)) is not None:
            return key, found.groupdict()
    return None


def names_in_body(change: RouteChange, body: bytes) -> tuple[str, dict[str, object]]:
    """Return the action, and the names that a JSON body states; those of an invalid body are omitted."""
    try:
        stated = json.loads(body) if len(body) <= MAX_BODY_BYTES else None
    except (ValueError, RecursionError):
        stated = None
    if not isinstance(stated, dict):
        return change.action, {}
    action = stated.get(change.action_member) if change.action_member else None
    named: dict[str, object] = {
        kind: stated[member] for member, kind in change.members.items() if isinstance(stated.get(member), str)
    }
    if isinstance(action, str) and _ACTION.fullmatch(action):
        return f"{change.action}.{action}", named
    return change.action, named
