"""Sessions of accounts on HTTP, in memory. The caller provides the time, in seconds, and the accounts."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from delaymq.server.http.sign_in.callers import role_of

if TYPE_CHECKING:
    from delaymq.access.accounts import Account

MAX_SESSIONS: Final = 1_024
"""Maximum sessions of all accounts; each takes about a kilobyte."""
MAX_OF_ACCOUNT: Final = 32
"""Maximum sessions of one account; a further one ends the one that was not used for the longest time."""
TOKEN_PREFIX: Final = "dmqs_"
_TOKEN_BYTES: Final = 32
_MAX_TOKEN_CHARACTERS: Final = 128


@dataclass(slots=True)
class Session:
    """A session of an account."""

    access_key: str
    secret_key: str
    """The account's secret key at the sign-in."""
    role: int
    """The account's role at the sign-in; a lower one ends the session."""
    began_s: float
    used_s: float


class Sessions:
    """All sessions of one server."""

    def __init__(
        self,
        accounts: Callable[[], Mapping[str, Account]],
        idle_s: float,
        lifetime_s: float,
    ) -> None:
        """`accounts` returns the accounts in force. Sessions end `idle_s` after their use, and after `lifetime_s`."""
        self.idle_s = idle_s
        self.lifetime_s = lifetime_s
        self._accounts = accounts
        self._table: dict[bytes, Session] = {}
        """Sessions by the hashes of their tokens, the least recently used one first."""

    def __len__(self) -> int:
        return len(self._table)

    def begin(self, account: Account, now_s: float) -> tuple[str, Session]:
        """Create a session and return its token."""
        key = account.entry.access_key
        if sum(each.access_key == key for each in self._table.values()) >= MAX_OF_ACCOUNT:
            self._end_least_recent(key)
        if len(self._table) >= MAX_SESSIONS:
            self.review(now_s)
        if len(self._table) >= MAX_SESSIONS:
            counts = Counter(each.access_key for each in self._table.values())
            self._end_least_recent(counts.most_common(1)[0][0])
        token = TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
        session = Session(key, account.entry.secret_key, role_of(account), now_s, now_s)
        self._table[_hash(token)] = session
        return token, session

    def use(self, token: str, now_s: float, *, renews: bool = True) -> tuple[Account, Session] | None:
        """Return the account and session of a token; None if there is none, or none any more.

        `renews`: the session counts as used.
        """
        if not token.startswith(TOKEN_PREFIX) or len(token) > _MAX_TOKEN_CHARACTERS:
            return None
        hashed = _hash(token)
        session = self._table.get(hashed)
        if session is None:
            return None
        account = self._account_of(session, now_s)
        if account is None:
            del self._table[hashed]
            return None
        if renews:
            session.used_s = now_s
            self._table[hashed] = self._table.pop(hashed)
        return account, session

    def end(self, token: str) -> bool:
        """End the session of a token; return whether there was one."""
        return self._table.pop(_hash(token), None) is not None

    def review(self, now_s: float) -> None:
        """End all sessions that are no longer valid."""
        for hashed in [key for key, each in self._table.items() if self._account_of(each, now_s) is None]:
            del self._table[hashed]

    def _account_of(self, session: Session, now_s: float) -> Account | None:
        if now_s >= session.used_s + self.idle_s or now_s >= session.began_s + self.lifetime_s:
            return None
        account = self._accounts().get(session.access_key)
        if account is None or session.secret_key not in account.entry.secret_keys or role_of(account) < session.role:
            return None
        return account

    def _end_least_recent(self, access_key: str) -> None:
        del self._table[next(key for key, each in self._table.items() if each.access_key == access_key)]


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
