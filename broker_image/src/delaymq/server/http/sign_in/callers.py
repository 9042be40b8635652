"""Callers of HTTP: their account, role and permissions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from delaymq.access import PUB, ROLES, SUB
from delaymq.message.names import retry_topic

if TYPE_CHECKING:
    from delaymq.access.accounts import Account

NOTHING: Final = 0
READ: Final = 1
OPERATE: Final = 2
ADMINISTER: Final = 3
ROLE_NAMES: Final = ("", *ROLES)
"""Names of the roles, by number."""


def role_of(account: Account) -> int:
    """Return the role of an account."""
    return ADMINISTER if account.admin else ROLE_NAMES.index(account.entry.role)


@dataclass(frozen=True, slots=True)
class Caller:
    """Sender of a request, or of all requests if there is no access control."""

    account: Account | None = None
    """None: everything is permitted, by the token or because nothing is restricted."""
    reply_topic: str = ""
    """The cluster's reply topic, which has rules of its own."""

    @property
    def name(self) -> str:
        """Access key of the account; empty without one."""
        return "" if self.account is None else self.account.entry.access_key

    @property
    def role(self) -> int:
        """The caller's role."""
        return ADMINISTER if self.account is None else role_of(self.account)

    def may(self, topic: str, permission: int) -> bool:
        """Return whether the caller has one of the permissions for a topic; a group is named by its retry topic."""
        if self.account is None or self.role == ADMINISTER:
            return True
        from delaymq.access.permissions import owned  # most brokers have no accounts

        return bool(owned(self.account, topic, self.reply_topic) & permission)

    def may_view(self, topic: str) -> bool:
        """Return whether the caller may view messages of a topic."""
        return self.may(topic, SUB)

    @property
    def sees_all(self) -> bool:
        """Whether the caller may know all topics."""
        return self.role >= READ

    def sees_topic(self, topic: str) -> bool:
        """Return whether the caller may know a topic and its figures."""
        return self.sees_all or self.may(topic, PUB | SUB)

    def sees_group(self, group: str) -> bool:
        """Return whether the caller may know a group and its figures."""
        return self.sees_all or self.may(retry_topic(group), SUB)


EVERYTHING: Final = Caller()
"""A caller that may do everything."""
