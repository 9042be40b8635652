"""Limits of topics and groups that are created automatically, by connection and by account.

Without access control, all peers with the same address count as one account.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from delaymq.broker.quotas.names import CREATED_GROUPS
from delaymq.broker.requests.errors import system_error
from delaymq.protocol.credential_fields import ACCESS_KEY

if TYPE_CHECKING:
    from delaymq.broker.groups.subscription_groups import Groups
    from delaymq.broker.requests.session import Session
    from delaymq.protocol.bodies import SubscriptionGroupConfig
    from delaymq.protocol.command import Command

_MAX_MAKERS: Final = 20_000
"""Number of accounts whose creations are counted. Beyond it, those with the fewest creations are dropped."""


class CreationLimits(Protocol):
    """Settings that limit automatic creation."""

    @property
    def auto_create_max_per_connection(self) -> int:
        """Maximum number of topics and groups that one connection may create by use."""

    @property
    def auto_create_max_per_account(self) -> int:
        """Maximum number of topics and groups that one account may create by use."""


class AutoCreation:
    """Counters of automatic creations since the start, by connection and by account."""

    def __init__(self, limits: CreationLimits, groups: Groups, *, has_accounts: bool) -> None:
        self.limits = limits
        self._groups = groups
        self._has_accounts = has_accounts
        self._of_session: dict[int, int] = {}
        self._of_account: dict[str, int] = {}

    def check(self, session: Session, command: Command, quota: str = "") -> None:
        """Raise RequestError 1 if this peer has reached a limit, and 2 if it has reached this quota of its account."""
        if quota and session.usage is not None:
            refusal = session.usage.excess(quota)
            if refusal is not None:
                raise refusal
        limits = self.limits
        if self._of_session.get(session.id, 0) >= limits.auto_create_max_per_connection:
            raise system_error(
                f"this connection has already created {limits.auto_create_max_per_connection} topics and groups by"
                " using them (autoCreateMaxPerConnection): create them with mqadmin updateTopic or updateSubGroup"
            )
        account = self._account(session, command)
        if self._of_account.get(account, 0) >= limits.auto_create_max_per_account:
            raise system_error(
                f"[{account}] has already created {limits.auto_create_max_per_account} topics and groups by using"
                " them (autoCreateMaxPerAccount): create them with mqadmin updateTopic or updateSubGroup"
            )

    def made(self, session: Session, command: Command, quota: str = "") -> None:
        """Count one creation by this peer, and by its account for this quota."""
        if quota and session.usage is not None:
            session.usage.counts[quota] += 1
        self._of_session[session.id] = self._of_session.get(session.id, 0) + 1
        account = self._account(session, command)
        if account not in self._of_account and len(self._of_account) >= _MAX_MAKERS:
            del self._of_account[min(self._of_account, key=self._of_account.__getitem__)]
        self._of_account[account] = self._of_account.get(account, 0) + 1

    def find_group(self, session: Session, command: Command, name: str) -> SubscriptionGroupConfig | None:
        """Return the group, created if permitted, or None. Raises RequestError as `check` does."""
        groups = self._groups
        if name in groups.table:
            return groups.table[name]
        self.check(session, command, CREATED_GROUPS)
        group = groups.find(name)
        if group is not None:
            self.made(session, command, CREATED_GROUPS)
        return group

    def session_closed(self, session: Session) -> None:
        """Release the counter of a closed connection."""
        self._of_session.pop(session.id, None)

    def _account(self, session: Session, command: Command) -> str:
        key = command.fields.get(ACCESS_KEY) if self._has_accounts else None
        return key or session.remote_address.rpartition(":")[0]
