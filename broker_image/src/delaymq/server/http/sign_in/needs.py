"""What a route needs of its caller: a role, or a permission for the topic or group that the request names.

The permissions are those of similar requests over the remoting protocol (delaymq.broker.access.requirements). The role
`administer` suffices for everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from delaymq.access import PUB, SUB
from delaymq.message.names import retry_topic
from delaymq.server.http.responses import ApiError
from delaymq.server.http.sign_in.callers import ADMINISTER, NOTHING, OPERATE, READ, ROLE_NAMES, Caller

_NAMES: Final = {PUB: "PUB", SUB: "SUB", PUB | SUB: "PUB or SUB"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """Needs of a route."""

    is_open: bool = False
    """Whether requests need no credentials."""
    role: int = ADMINISTER
    """Role that suffices without a permission."""
    permission: int = 0
    """Permissions of which one suffices without the role; 0: there is none."""
    topic: str = ""
    """Parameter, or member of the body, that names the topic of the permission."""
    group: str = ""
    """The same for a group, whose permission is that for its retry topic."""
    in_body: Any = None
    """Type of the body that names the topic; None: a parameter does."""
    lists: bool = False
    """Whether a request that names no topic is answered with what the caller may know."""
    in_handler: bool = False
    """Whether the handler checks the permission, because only it knows the topic."""

    @property
    def text(self) -> str:
        """Description for people."""
        if self.is_open:
            return "nothing"
        if self.role == NOTHING:
            return "an account"
        parts = [f"the role {ROLE_NAMES[self.role]}"]
        if self.permission:
            parts.insert(0, f"{_NAMES[self.permission]} of the {'group' if self.group else 'topic'}")
        return ", or ".join(parts) + ("; otherwise, topics and groups without it are omitted" if self.lists else "")

    def check(self, caller: Caller, named: Any) -> None:
        """Raise ApiError 403 unless the caller has what a request needs; `named` has the parameters as attributes."""
        if self.is_open or caller.role >= self.role:
            return
        name = getattr(named, self.topic or self.group, None) if self.permission else None
        if self.in_handler and not name:
            return
        if self.permission and name is not None:
            if not caller.may(retry_topic(name) if self.group else name, self.permission):
                raise self.refusal(caller, name)
        elif not self.lists:
            raise self.refusal(caller)

    def refusal(self, caller: Caller, name: str = "") -> ApiError:
        """Return the error for a caller without what a request needs."""
        kind = "group" if self.group else "topic"
        text = f"account {caller.name[:64]} lacks the role {ROLE_NAMES[self.role]}"
        if name:
            text = (
                f"account {caller.name[:64]} has neither {_NAMES[self.permission]} of {kind} {name[:127]} nor the"
                + (f" role {ROLE_NAMES[self.role]}")
            )
        code = "permission_needed" if name else "role_needed"
        return ApiError(403, code, f"{text}: ask an administrator to change its rules")


OPEN: Final = Needs(is_open=True)
METRICS: Final = Needs(is_open=True)
"""Open unless `httpMetricsToken` is set, which the guard checks."""
ACCOUNT: Final = Needs(role=NOTHING)
TO_READ: Final = Needs(role=READ)
TO_OPERATE: Final = Needs(role=OPERATE)
TO_ADMINISTER: Final = Needs(role=ADMINISTER)
LISTED: Final = Needs(role=READ, lists=True)
"""A list of topics or groups."""
SEEN_TOPIC: Final = Needs(role=READ, permission=PUB | SUB, topic="topic")
SEEN_IF_NAMED: Final = Needs(role=READ, permission=PUB | SUB, topic="topic", lists=True)
"""Figures of the topic in the query, or of all that the caller may know."""
SEEN_GROUP: Final = Needs(role=READ, permission=SUB, group="group")
VIEWED_TOPIC: Final = Needs(permission=SUB, topic="topic")
"""Messages of a topic."""
LISTED_IF_NAMED: Final = Needs(role=READ, permission=SUB, topic="topic", lists=True)
"""Pending messages, of which the role alone shows no bodies and no properties of the producer."""
VIEWED_RECORD: Final = Needs(permission=SUB, topic="topic", in_handler=True)
"""A message whose topic is known when it has been read."""
SENT: Final = Needs(permission=PUB, topic="topic")
RETURNED: Final = Needs(role=OPERATE, permission=SUB, group="group")
"""Messages that are sent back to their group."""


def changed_in(body: Any) -> Needs:
    """Return the needs of a change of messages of the topic that a body names."""
    return Needs(role=OPERATE, permission=PUB, topic="topic", in_body=body)
