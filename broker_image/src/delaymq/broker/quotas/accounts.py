"""Usage of all accounts of a broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from delaymq.broker.quotas.names import CONNECTIONS
from delaymq.broker.quotas.usage import AccountUsage, Pausable
from delaymq.throttled_log import ThrottledLogger

if TYPE_CHECKING:
    from delaymq.access.accounts import Account

_logger = logging.getLogger(__name__)


class Metered(Pausable, Protocol):
    """A client's connection, with the usage of its account."""

    usage: AccountUsage | None

    def end(self) -> None:
        """Close the connection after the response to the current request."""


class _NotPaused:
    """A sender whose requests are rejected instead of delayed."""

    def pause(self, seconds: float) -> float:
        return 0.0

    def shorten_pause(self, seconds: float) -> float | None:
        return None


_NOT_PAUSED: Final = _NotPaused()


class AccountUsages:
    """Usage by account, of those that have sent a request since the start."""

    def __init__(self, now_ms: Callable[[], int], clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self.by_account: dict[str, AccountUsage] = {}
        self._throttled = ThrottledLogger(_logger, now_ms)

    def of(self, account: str) -> AccountUsage:
        """Return the usage of an account, which is zero if it has sent nothing yet."""
        return self.by_account.get(account) or AccountUsage(account, self._throttled, self.clock)

    def join(self, session: Metered, account: Account, known: Container[str]) -> AccountUsage:
        """Assign a connection to an account that signed a request. `known` are the keys of all accounts.

        Raises RequestError 2, and closes the connection after the response, if the account has too many.
        """
        usage = self._in_use(account, known)
        refusal = usage.excess(CONNECTIONS)
        if refusal is not None:
            session.end()
            raise refusal
        self.closed(session)
        usage.counts[CONNECTIONS] += 1
        session.usage = usage
        return usage

    def count(self, account: Account, known: Container[str], code: int) -> None:
        """Count a request that came without a connection of its own. Raises RequestError 2 beyond a quota."""
        self._in_use(account, known).take(_NOT_PAUSED, code, 0)

    def _in_use(self, account: Account, known: Container[str]) -> AccountUsage:
        """Return the usage of an account, with its quotas, to be changed."""
        key = account.entry.access_key
        usage = self.by_account.get(key)
        if usage is None:
            self._release_deleted(known)
            usage = self.by_account[key] = self.of(key)
        if usage.quotas is not account.quotas:
            usage.apply(account.quotas)
        return usage

    def _release_deleted(self, known: Container[str]) -> None:
        for key, usage in list(self.by_account.items()):
            if key not in known and not usage.counts[CONNECTIONS]:
                del self.by_account[key]

    def closed(self, session: Metered) -> None:
        """Release the connection from its account."""
        if session.usage is not None:
            session.usage.counts[CONNECTIONS] -= 1
            session.usage = None
